/* entwine cache: the tuning entries of this user, listed and cleaned. */
#include "cmd/commands.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tune/tuning_files.h"

static const double leftover_after_s = 60.0; /* a younger one may still be in use */

/* ---- list ---- */

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

static void print_line(const cli_tuning_file *file)
{
    const double gain = cli_tuning_gain(&file->tuning);
    char text[32];
    age_text(entry_age_s(&file->tuning), text, sizeof text);
    if (isnan(gain))
        printf("%7s", "-");
    else
        printf("%7.3f", gain);
    printf(" %8s  %.16s  %s\n", text, file->name, file->tuning.key);
}

static cli_exit list_entries(const cli_tuning_files *files)
{
    int num_entries = 0, num_others = 0;
    for (int at = 0; at < files->count; at++) {
        if (files->at[at].kind != CLI_TUNING_ENTRY) {
            num_others++;
            continue;
        }
        if (num_entries++ == 0)
            printf("#%6s %8s  %-16s  %s\n", "gain", "age", "file", "key");
        print_line(&files->at[at]);
    }
    cli_print(stdout, "# Entries : %d in %s\n", num_entries, files->folder);
    for (int at = 0; at < files->count; at++)
        if (files->at[at].kind == CLI_TUNING_DAMAGED)
            printf("# Damaged : %s: %s\n", files->at[at].name, files->at[at].why);
    if (num_others)
        printf("# Damaged or left over : %d, removed by entwine cache prune\n", num_others);
    return CLI_EXIT_OK;
}

/* ---- prune ---- */

static bool is_prunable(const cli_settings *settings, const cli_tuning_file *file)
{
    if (file->kind == CLI_TUNING_LEFTOVER)
        return difftime(time(NULL), file->changed) >= leftover_after_s;
    return file->kind == CLI_TUNING_DAMAGED || settings->all ||
           (settings->older_days >= 0 &&
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
    cli_print(stdout, "# Removed : %d entr%s, %d damaged, %d left over; %d entr%s in %s\n",
              removed[CLI_TUNING_ENTRY], removed[CLI_TUNING_ENTRY] == 1 ? "y" : "ies",
              removed[CLI_TUNING_DAMAGED], removed[CLI_TUNING_LEFTOVER], kept,
              kept == 1 ? "y stays" : "ies stay", files->folder);
    return CLI_EXIT_OK;
}

/* ---- The command ---- */

static cli_exit check_words(const cli_settings *settings)
{
    static const char *const names[] = {"list", "prune", NULL};
    const char *name = settings->num_words ? settings->words[0] : NULL;
    char near[96];
    if (!name)
        return cli_fail_usage("one of list, prune", "'cache' needs to know what to do");
    if (strcmp(name, "list") == 0 && (settings->all || settings->older_days >= 0))
        return cli_fail_usage("leave them out", "--all and --older are for 'cache prune'");
    if (strcmp(name, "list") == 0 || strcmp(name, "prune") == 0)
        return CLI_EXIT_OK;
    cli_suggestion(name, names, near, sizeof near);
    return cli_fail_usage("one of list, prune; entries are files, and `entwine cache list` "
                          "names their folder",
                          "'cache' does not know '%.60s'%s", name, near);
}

cli_exit cli_cache_main(const cli_settings *settings, int argc, char **argv)
{
    (void)argc, (void)argv;
    cli_exit result = check_words(settings);
    if (result)
        return result;
    cli_tuning_files *files = calloc(1, sizeof *files);
    if (!files)
        return cli_fail_memory("for the entries");
    result = cli_tuning_files_open(files);
    if (!result)
        result = strcmp(settings->words[0], "list") == 0 ? list_entries(files)
                                                         : prune_files(settings, files);
    cli_tuning_files_close(files);
    free(files);
    return result;
}
