/* Reads the folder of the tuning entries.  Only regular files whose name is that of an
 * entry (16 hexadecimal digits and .json) or of a write in progress (.tmp- after that) are
 * looked at, because ENTWINE_CACHE_DIR may name any folder. */
#include "tune/tuning_files.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { NAME_DIGITS = 16 };
static const char entry_end[] = ".json", leftover_mark[] = ".tmp-";

/* The part of an entry's name after its digits and ending; NULL: no entry's name. */
static const char *after_entry_name(const char *name)
{
    const size_t end = sizeof entry_end - 1;
    if (strspn(name, "0123456789abcdef") != NAME_DIGITS ||
        strncmp(name + NAME_DIGITS, entry_end, end) != 0)
        return NULL;
    return name + NAME_DIGITS + end;
}

static int is_ours(const struct dirent *item)
{
    const char *rest = after_entry_name(item->d_name);
    return rest && strlen(item->d_name) < sizeof((cli_tuning_file *)0)->name &&
           (!*rest || strncmp(rest, leftover_mark, sizeof leftover_mark - 1) == 0);
}

void cli_tuning_file_path(const cli_tuning_files *files, const cli_tuning_file *file,
                          char *path, size_t bytes)
{
    snprintf(path, bytes, "%s/%s", files->folder, file->name);
}

static void look_inside(const char *path, cli_tuning_file *file)
{
    char place[PATH_MAX + 64];
    if (ew_tuning_load(path, &file->tuning) ||
        ew_tuning_path(file->tuning.key, place, sizeof place)) {
        file->kind = CLI_TUNING_DAMAGED;
        snprintf(file->why, sizeof file->why, "%.*s", (int)strcspn(ew_last_error(), "\n"),
                 ew_last_error());
        return;
    }
    const char *slash = strrchr(place, '/');
    if (strcmp(slash ? slash + 1 : place, file->name) != 0) {
        file->kind = CLI_TUNING_DAMAGED;
        snprintf(file->why, sizeof file->why, "the file of its key is %.40s",
                 slash ? slash + 1 : place);
    }
}

static void read_file(cli_tuning_files *files, const char *name)
{
    char path[PATH_MAX + 64];
    struct stat about;
    cli_tuning_file *file = &files->at[files->count];
    *file = (cli_tuning_file){.kind = CLI_TUNING_ENTRY};
    snprintf(file->name, sizeof file->name, "%.60s", name);
    cli_tuning_file_path(files, file, path, sizeof path);
    if (lstat(path, &about) != 0 || !S_ISREG(about.st_mode))
        return;
    file->changed = about.st_mtime;
    if (*after_entry_name(name))
        file->kind = CLI_TUNING_LEFTOVER;
    else
        look_inside(path, file);
    files->count++;
}

cli_exit cli_tuning_files_open(cli_tuning_files *files)
{
    struct dirent **items = NULL;
    *files = (cli_tuning_files){.count = 0};
    ew_status status = ew_tuning_folder(files->folder, sizeof files->folder);
    if (status)
        return cli_fail_status(status, ew_last_error());
    int count = scandir(files->folder, &items, is_ours, alphasort);
    if (count < 0 && errno == ENOENT)
        return CLI_EXIT_OK;
    if (count < 0)
        return cli_fail(EW_ERR_SYSTEM, "ENTWINE_CACHE_DIR names another folder",
                        "cannot read the folder of the tuning entries, %.200s: %s",
                        files->folder, strerror(errno));
    files->at = calloc((size_t)count + 1, sizeof *files->at);
    for (int at = 0; at < count; at++) {
        if (files->at)
            read_file(files, items[at]->d_name);
        free(items[at]);
    }
    free(items);
    return files->at ? CLI_EXIT_OK : cli_fail_memory("for the list of entries");
}

void cli_tuning_files_close(cli_tuning_files *files)
{
    free(files->at);
    files->at = NULL;
    files->count = 0;
}

const cli_tuning_file *cli_tuning_files_find(const cli_tuning_files *files, const char *key)
{
    for (int at = 0; at < files->count; at++)
        if (files->at[at].kind == CLI_TUNING_ENTRY &&
            strcmp(files->at[at].tuning.key, key) == 0)
            return &files->at[at];
    return NULL;
}

double cli_tuning_gain(const ew_tuning *tuning)
{
    return tuning->time_us > 0 && tuning->default_us > 0
               ? tuning->default_us / tuning->time_us
               : NAN;
}
