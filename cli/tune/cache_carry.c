#include "tune/cache_carry.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- export ---- */

static json_t *entry_json(const ew_tuning *tuning)
{
    char text[EW_TUNING_TEXT_BYTES];
    json_t *object = NULL;
    if (ew_tuning_print(tuning, text, sizeof text) == EW_OK)
        object = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    return object;
}

static cli_exit write_array(const char *path, const json_t *array)
{
    bool to_stdout = strcmp(path, "-") == 0;
    FILE *file = to_stdout ? stdout : fopen(path, "w");
    bool written = file &&
                   json_dumpf(array, file, JSON_INDENT(1) | JSON_REAL_PRECISION(12)) == 0 &&
                   fputc('\n', file) != EOF && fflush(file) == 0;
    int error = errno;
    if (file && !to_stdout && fclose(file) != 0) {
        written = false;
        error = errno;
    }
    if (written || to_stdout) /* main reports a stdout that cannot be written */
        return CLI_EXIT_OK;
    return cli_fail(EW_ERR_SYSTEM, "give a file in a folder you may write to",
                    "cannot write '%.200s': %s", path, strerror(error));
}

cli_exit cli_cache_export(const cli_settings *settings, cli_tuning_files *files)
{
    json_t *array = json_array();
    int num_left_out = 0;
    for (int at = 0; at < files->count; at++) {
        const cli_tuning_file *file = &files->at[at];
        if (file->kind != CLI_TUNING_ENTRY ||
            json_array_append_new(array, entry_json(&file->tuning)) != 0)
            num_left_out += file->kind != CLI_TUNING_LEFTOVER;
    }
    size_t count = json_array_size(array);
    cli_exit failed = write_array(settings->words[1], array);
    json_decref(array);
    if (failed)
        return failed;
    if (num_left_out)
        cli_warn("%d damaged entries were left out; entwine cache verify names them",
                 num_left_out);
    fprintf(stderr, "# Exported : %zu entries from %s\n", count, files->folder);
    return CLI_EXIT_OK;
}

/* ---- import ---- */

enum { MAX_REASONS = 3, REASON_BYTES = 200 };

typedef struct import_list {
    ew_tuning *at;
    int count;
    int num_bad;
    char reasons[MAX_REASONS * REASON_BYTES]; /* a line each, of the first few */
} import_list;

static void add_reason(import_list *list, size_t number, const char *why)
{
    size_t used = strlen(list->reasons);
    if (list->num_bad++ < MAX_REASONS)
        snprintf(list->reasons + used, sizeof list->reasons - used, "\n  entry %zu: %.*s",
                 number, (int)strcspn(why, "\n"), why);
}

/* What import makes of an element of the array; NULL: it was taken. */
static const char *take_entry(import_list *list, const json_t *element)
{
    ew_tuning *slot = &list->at[list->count];
    char *text = json_is_object(element) ? json_dumps(element, JSON_COMPACT) : NULL;
    ew_status status = text ? ew_tuning_parse(text, strlen(text), slot) : EW_ERR_ARGUMENT;
    const char *why = text ? ew_last_error() : "it is no JSON object";
    free(text);
    if (status)
        return why;
    for (int at = 0; at < list->count; at++)
        if (strcmp(list->at[at].key, slot->key) == 0)
            return "an entry before it has the same key";
    list->count++;
    return NULL;
}

static cli_exit read_array(const char *path, json_t **array_out)
{
    static const char fix[] = "give a file that entwine cache export wrote";
    json_error_t error;
    bool from_stdin = strcmp(path, "-") == 0;
    FILE *file = from_stdin ? stdin : fopen(path, "r");
    if (!file)
        return cli_fail_usage(fix, "cannot read '%.200s': %s", path, strerror(errno));
    json_t *array = json_loadf(file, JSON_REJECT_DUPLICATES, &error);
    if (!from_stdin)
        fclose(file);
    if (!array)
        return cli_fail_usage(fix, "%.200s:%d: %.120s", path, error.line, error.text);
    if (!json_is_array(array)) {
        json_decref(array);
        return cli_fail_usage(fix, "%.200s: no array of entries", path);
    }
    *array_out = array;
    return CLI_EXIT_OK;
}

static cli_exit store_all(const import_list *list, const cli_tuning_files *files)
{
    int num_replaced = 0;
    for (int at = 0; at < list->count; at++) {
        for (int there = 0; there < files->count; there++)
            num_replaced += files->at[there].kind == CLI_TUNING_ENTRY &&
                            strcmp(files->at[there].tuning.key, list->at[at].key) == 0;
        ew_status status = ew_tuning_store(&list->at[at]);
        if (status && at > 0)
            cli_warn("%d entries had been stored before this failure", at);
        if (status)
            return cli_fail_status(status, ew_last_error());
    }
    printf("# Imported : %d entries into %s, %d of them replaced older ones\n", list->count,
           files->folder, num_replaced);
    return CLI_EXIT_OK;
}

cli_exit cli_cache_import(const cli_settings *settings, cli_tuning_files *files)
{
    const char *path = settings->words[1];
    json_t *array = NULL;
    cli_exit result = read_array(path, &array);
    if (result)
        return result;
    import_list list = {.count = 0};
    size_t count = json_array_size(array);
    list.at = calloc(count + 1, sizeof *list.at);
    for (size_t at = 0; list.at && at < count; at++) {
        const char *why = take_entry(&list, json_array_get(array, at));
        if (why)
            add_reason(&list, at + 1, why);
    }
    if (!list.at)
        result = cli_fail(EW_ERR_MEMORY, "free some memory", "no memory for the entries");
    else if (list.num_bad)
        result = cli_fail_usage("correct or remove them: an import is all or nothing",
                                "%.200s: %d of %zu entries cannot be imported%s", path,
                                list.num_bad, count, list.reasons);
    else
        result = store_all(&list, files);
    free(list.at);
    json_decref(array);
    return result;
}
