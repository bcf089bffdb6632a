/* entwine cache: the tuning entries of this user as a list, as a file to carry elsewhere,
 * checked and cleaned. */
#include "cmd/commands.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tune/cache_carry.h"

static const double leftover_after_s = 60.0; /* a younger one may still be written */

typedef struct action {
    const char *name;
    const char *word; /* what it takes; NULL: nothing */
    cli_exit (*run)(const cli_settings *settings, cli_tuning_files *files);
} action;

/* ---- list, show ---- */

static void age_text(double seconds, char *text, size_t bytes)
{
    if (seconds < 120)
        snprintf(text, bytes, "%.0f s", seconds > 0 ? seconds : 0.0);
    else if (seconds < 2 * 3600)
        snprintf(text, bytes, "%.0f min", seconds / 60);
    else if (seconds < 48 * 3600)
        snprintf(text, bytes, "%.0f h", seconds / 3600);
    else
        snprintf(text, bytes, "%.0f d", seconds / 86400);
}

static double entry_age_s(const ew_tuning *tuning)
{
    return difftime(time(NULL), (time_t)tuning->when);
}

/* The key without what has a column of its own. */
static void print_key_rest(const char *key)
{
    static const char *const columns[] = {"m=", "n=", "k=", "ranks=", "type="};
    const char *between = "";
    while (*key) {
        int part = (int)strcspn(key, ",");
        bool shown = false;
        for (size_t at = 0; at < sizeof columns / sizeof columns[0]; at++)
            shown = shown || strncmp(key, columns[at], strlen(columns[at])) == 0;
        if (!shown) {
            printf("%s%.*s", between, part, key);
            between = ",";
        }
        key += part;
        key += *key == ',';
    }
}

static void print_line(const cli_tuning_file *file)
{
    static const struct {
        const char *name;
        int width;
    } columns[] = {{"m", 7}, {"n", 7}, {"k", 7}, {"ranks", 4}, {"type", 4}};
    const ew_tuning *tuning = &file->tuning;
    char text[32];
    for (size_t at = 0; at < sizeof columns / sizeof columns[0]; at++) {
        cli_tuning_key_part(tuning->key, columns[at].name, text, sizeof text);
        printf("%*s ", columns[at].width, *text ? text : "-");
    }
    double gain = cli_tuning_gain(tuning);
    if (isnan(gain))
        printf("%6s", "-");
    else
        printf("%6.3f", gain);
    age_text(entry_age_s(tuning), text, sizeof text);
    printf(" %8s  %.16s  ", text, file->name);
    print_key_rest(tuning->key);
    putchar('\n');
}

static cli_exit list_entries(const cli_settings *settings, cli_tuning_files *files)
{
    int num_entries = 0, num_others = 0;
    (void)settings;
    for (int at = 0; at < files->count; at++) {
        if (files->at[at].kind != CLI_TUNING_ENTRY) {
            num_others++;
            continue;
        }
        if (num_entries++ == 0)
            printf("#%6s %7s %7s %4s %4s %6s %8s  %-16s  %s\n", "M", "N", "K", "W", "type",
                   "gain", "age", "file", "rest of the key");
        print_line(&files->at[at]);
    }
    printf("# Entries : %d in %s\n", num_entries, files->folder);
    if (num_others)
        printf("# Damaged or left over : %d, see entwine cache verify and prune\n",
               num_others);
    return CLI_EXIT_OK;
}

static bool starts_with(const char *text, const char *start)
{
    return strncmp(text, start, strlen(start)) == 0;
}

static void print_entry(const cli_tuning_files *files, const cli_tuning_file *file)
{
    const ew_tuning *tuning = &file->tuning;
    char config[EW_CONFIG_TEXT_BYTES] = "", date[32] = "unknown";
    time_t when = (time_t)tuning->when;
    double gain = cli_tuning_gain(tuning);
    struct tm utc;
    if (ew_config_print(&tuning->config, config, sizeof config))
        config[0] = '\0';
    if (when > 0 && gmtime_r(&when, &utc))
        strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    printf("file     %s/%s\n", files->folder, file->name);
    printf("stored   %s\n", date);
    printf("key      %s\n", tuning->key);
    printf("config   %s\n", config);
    printf("time     %.1f us\n", tuning->time_us);
    if (!isnan(gain))
        printf("default  %.1f us, gain %.3f\n", tuning->default_us, gain);
    if (*tuning->profile)
        printf("planned  with profile %s\n", tuning->profile);
}

static cli_exit show_entry(const cli_settings *settings, cli_tuning_files *files)
{
    const char *wanted = settings->words[1];
    const cli_tuning_file *found = NULL;
    int num_found = 0;
    for (int at = 0; at < files->count; at++) {
        const cli_tuning_file *file = &files->at[at];
        if (file->kind != CLI_TUNING_ENTRY ||
            !(starts_with(file->name, wanted) || starts_with(file->tuning.key, wanted)))
            continue;
        found = file;
        num_found++;
    }
    if (num_found != 1)
        return cli_fail_usage(
            "entwine cache list names the files", "%s of %s starts with '%.60s'",
            num_found ? "more than one entry" : "no entry", files->folder, wanted);
    print_entry(files, found);
    return CLI_EXIT_OK;
}

/* ---- prune, verify ---- */

static bool is_prunable(const cli_settings *settings, const cli_tuning_file *file)
{
    switch (file->kind) {
    case CLI_TUNING_DAMAGED:
        return true;
    case CLI_TUNING_LEFTOVER:
        return difftime(time(NULL), file->changed) >= leftover_after_s;
    case CLI_TUNING_ENTRY:
        break;
    }
    return settings->all || (settings->older_days >= 0 &&
                             entry_age_s(&file->tuning) > settings->older_days * 86400);
}

static cli_exit prune_files(const cli_settings *settings, cli_tuning_files *files)
{
    int removed[3] = {0}, kept = 0;
    for (int at = 0; at < files->count; at++) {
        const cli_tuning_file *file = &files->at[at];
        char path[PATH_MAX + 64];
        if (!is_prunable(settings, file)) {
            kept += file->kind == CLI_TUNING_ENTRY;
            continue;
        }
        cli_tuning_file_path(files, file, path, sizeof path);
        if (unlink(path) != 0 && errno != ENOENT)
            return cli_fail(EW_ERR_SYSTEM, "make the folder writable",
                            "cannot remove '%.200s': %s", path, strerror(errno));
        removed[file->kind]++;
    }
    printf("# Removed : %d entries, %d damaged, %d left over; %d entries stay in %s\n",
           removed[CLI_TUNING_ENTRY], removed[CLI_TUNING_DAMAGED],
           removed[CLI_TUNING_LEFTOVER], kept, files->folder);
    return CLI_EXIT_OK;
}

static cli_exit verify_files(const cli_settings *settings, cli_tuning_files *files)
{
    int num_ok = 0, num_bad = 0;
    (void)settings;
    for (int at = 0; at < files->count; at++) {
        const cli_tuning_file *file = &files->at[at];
        if (file->kind == CLI_TUNING_LEFTOVER)
            continue;
        bool good = file->kind == CLI_TUNING_ENTRY;
        num_ok += good;
        num_bad += !good;
        printf("%-4s %.21s  %s\n", good ? "OK" : "BAD", file->name,
               good ? file->tuning.key : file->why);
    }
    printf("# Verified : %d OK, %d BAD in %s%s\n", num_ok, num_bad, files->folder,
           num_bad ? "; entwine cache prune removes the bad ones" : "");
    return num_bad ? CLI_EXIT_WRONG : CLI_EXIT_OK;
}

/* ---- The command ---- */

static const action actions[] = {{"list", NULL, list_entries},
                                 {"show", "the start of a file's name or key", show_entry},
                                 {"export", "a file, or - for stdout", cli_cache_export},
                                 {"import", "a file, or - for stdin", cli_cache_import},
                                 {"prune", NULL, prune_files},
                                 {"verify", NULL, verify_files}};
enum { NUM_ACTIONS = sizeof actions / sizeof actions[0] };

static cli_exit fail_action(const char *name)
{
    const char *names[NUM_ACTIONS + 1];
    char near[96];
    for (int at = 0; at < NUM_ACTIONS; at++)
        names[at] = actions[at].name;
    names[NUM_ACTIONS] = NULL;
    cli_suggestion(name, names, near, sizeof near);
    return cli_fail_usage("one of list, show, export, import, prune, verify",
                          "'cache' does not know '%.60s'%s", name, near);
}

static cli_exit find_action(const cli_settings *settings, const action **found_out)
{
    const action *found = NULL;
    if (settings->num_words == 0)
        return cli_fail_usage("one of list, show, export, import, prune, verify",
                              "'cache' needs to know what to do");
    for (int at = 0; at < NUM_ACTIONS; at++)
        if (strcmp(actions[at].name, settings->words[0]) == 0)
            found = &actions[at];
    if (!found)
        return fail_action(settings->words[0]);
    if (found->word && (settings->num_words < 2 || !*settings->words[1]))
        return cli_fail_usage(found->word, "'cache %s' needs an argument", found->name);
    if (!found->word && settings->num_words > 1)
        return cli_fail_usage("leave it out", "'cache %s' does not take '%.60s'",
                              found->name, settings->words[1]);
    if (found->run != prune_files && (settings->all || settings->older_days >= 0))
        return cli_fail_usage("leave them out", "--all and --older are for 'cache prune'");
    *found_out = found;
    return CLI_EXIT_OK;
}

cli_exit cli_cache_main(const cli_settings *settings, int argc, char **argv)
{
    const action *found = NULL;
    cli_tuning_files *files = NULL;
    (void)argc, (void)argv;
    cli_exit result = find_action(settings, &found);
    if (result)
        return result;
    files = calloc(1, sizeof *files);
    if (!files)
        return cli_fail(EW_ERR_MEMORY, "free some memory", "no memory for the entries");
    result = cli_tuning_files_open(files);
    if (!result)
        result = found->run(settings, files);
    cli_tuning_files_close(files);
    free(files);
    return result;
}
