/* Completion for bash.  A script without dependencies: the completion library of the
 * distributions may not be installed. */
#include "options/help_bash.h"

#include <string.h>

#include "options/option_rules.h"

static void print_names(const char *const *names, int count)
{
    for (int at = 0; at < count; at++)
        printf("%s%s", at ? " " : "", names[at]);
}

/* The names that a command's text explains, one a line behind two blanks. */
static void print_words(const cli_command *command)
{
    const char *between = "";
    for (const char *line = command->text; *line;) {
        const size_t length = strcspn(line, "\n");
        if (strncmp(line, "  ", 2) == 0 && line[2] != ' ') {
            printf("%s%.*s", between, (int)strcspn(line + 2, " "), line + 2);
            between = " ";
        }
        line += length;
        line += *line == '\n';
    }
}

/* The options of a command whose values can be named, as cases of the word before. */
static void print_values(const cli_command *command)
{
    for (const cli_option *option = NULL; (option = cli_options_next(command, option));) {
        const char *names[CLI_MAX_CHOICES];
        const int count = cli_option_choices(option, names);
        if (!option->argument)
            continue;
        printf("        --%s", option->name);
        if (option->letter)
            printf(" | -%c", option->letter);
        if (count > 0) {
            fputs(") values='", stdout);
            print_names(names, count);
            fputs("' ;;\n", stdout);
        } else {
            puts(strcmp(option->argument, "FILE") == 0 ? ") files=yes ;;" : ") return ;;");
        }
    }
}

static void print_command(const cli_command *command)
{
    printf("    %s)\n        options='", command->name);
    for (const cli_option *option = NULL; (option = cli_options_next(command, option));)
        printf("--%s ", option->name);
    fputs("'\n", stdout);
    if (command->words && strstr(command->words, ".json")) {
        puts("        words=FILES");
    } else if (command->words) {
        fputs("        words='", stdout);
        print_words(command);
        fputs("'\n", stdout);
    }
    puts("        case $before in");
    print_values(command);
    puts("        esac ;;");
}

void cli_help_bash(cli_commands commands)
{
    printf(
        "# bash completion for entwine %s, made from its tables of commands and options.\n"
        "_entwine()\n{\n"
        "    local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}\n"
        "    local options='' words='' values='' files='' commands='",
        ew_version());
    for (int at = 0; at < commands.count; at++)
        printf("%s ", commands.at[at].name);
    fputs("help'\n"
          "    COMPREPLY=()\n"
          "    if [ \"$COMP_CWORD\" = 1 ]; then\n"
          "        mapfile -t COMPREPLY < <(compgen -W \"$commands --help --version\" -- "
          "\"$word\")\n"
          "        return\n"
          "    fi\n"
          "    # --option=value comes as three words.\n"
          "    [ \"$word\" = '=' ] && word=''\n"
          "    [ \"$before\" = '=' ] && before=${COMP_WORDS[COMP_CWORD - 2]}\n"
          "    case ${COMP_WORDS[1]} in\n"
          "    help) words=$commands ;;\n",
          stdout);
    for (int at = 0; at < commands.count; at++)
        print_command(&commands.at[at]);
    fputs("    esac\n"
          "    if [ -n \"$values\" ]; then\n"
          "        # The last of a list: fp32,b\n"
          "        local list=''\n"
          "        [[ $word == *,* ]] && list=${word%,*},\n"
          "        mapfile -t COMPREPLY < <(compgen -P \"$list\" -W \"$values\" -- "
          "\"${word##*,}\")\n"
          "    elif [[ $word == -* && -z $files ]]; then\n"
          "        mapfile -t COMPREPLY < <(compgen -W \"$options\" -- \"$word\")\n"
          "    elif [ -n \"$files\" ] || [ \"$words\" = FILES ]; then\n"
          "        compopt -o filenames 2>/dev/null\n"
          "        mapfile -t COMPREPLY < <(compgen -f -- \"$word\")\n"
          "    elif [ -n \"$words\" ]; then\n"
          "        mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$word\")\n"
          "    fi\n"
          "}\n"
          "complete -F _entwine entwine\n",
          stdout);
}
