#include "base/json_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/paths.h"
#include "base/text.h"

/* Of a file, and of what jansson makes of it: thirteen times as much of a long trace, but
 * forty times as much where all is brackets. */
enum { MOST_BYTES = 64 << 20, MOST_PARSED = 1 << 30 };
/* File-scope because jansson's allocator gets no argument. */
static size_t room = SIZE_MAX;
static bool lacked;

/* The length of the character at `text`, as it is or escaped, if it steers; else 0. */
static size_t steering(const char *text)
{
    char digits[5] = "", *end;
    uint32_t character = 0;
    if (*text != '\\') {
        const size_t length = ewx_text_decode(text, &character);
        return character >= 0x7f && ewx_text_steers(character) ? length : 0;
    }
    if (text[1] != 'u')
        return text[1] && strchr("bfr", text[1]) ? 2 : 0;
    memccpy(digits, text + 2, '\0', 4);
    character = (uint32_t)strtoul(digits, &end, 16);
    return end == digits + 4 && ewx_text_steers(character) ? 6 : 0;
}

/* Names and values of documents end on terminals and pages: what would steer those becomes
 * a question mark. */
static void disarm(char *text)
{
    char *to = text;
    while (*text) {
        const size_t length = steering(text);
        if (length) {
            *to++ = '?';
            text += length;
            continue;
        }
        if (*text == '\\' && text[1])
            *to++ = *text++; /* a backslash that is escaped escapes nothing */
        *to++ = *text++;
    }
    *to = '\0';
}

static void *allocate(size_t bytes)
{
    void *memory = bytes <= room ? malloc(bytes) : NULL;
    if (room != SIZE_MAX)
        room -= bytes <= room ? bytes : room;
    lacked = lacked || !memory;
    return memory;
}

void cli_json_init(void)
{
    json_set_alloc_funcs(allocate, free);
}

void cli_json_lack(void)
{
    lacked = true;
}

bool cli_json_lacks(void)
{
    return lacked;
}

static json_t *parse(const char *text, json_error_t *error)
{
    room = MOST_PARSED;
    json_t *document = json_loads(text, JSON_REJECT_DUPLICATES, error);
    if (!room)
        snprintf(error->text, sizeof error->text, "it needs more than %d MiB of memory",
                 MOST_PARSED >> 20);
    room = SIZE_MAX;
    return document;
}

cli_exit cli_json_load(const char *path, const char *fix, json_t **document_out)
{
    json_error_t error;
    const char *why;
    char *text = cli_path_read(path, MOST_BYTES, &why);
    if (!text)
        return cli_fail_usage(fix, "cannot read '%.200s': %s", path, why);
    disarm(text);
    json_t *document = parse(text, &error);
    free(text);
    if (!document)
        return cli_fail_usage(fix, "%.200s:%d: not a JSON document: %.120s", path,
                              error.line, error.text);
    *document_out = document;
    return CLI_EXIT_OK;
}

void cli_json_print(json_t *document)
{
    json_dumpf(document, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(document);
}

json_t *cli_number_json(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

void cli_json_merge(json_t *object, json_t *more)
{
    json_object_update(object, more);
    json_decref(more);
}

json_t *cli_problem_json(const ew_problem *problem, int num_ranks)
{
    return json_pack("{ss sI sI sI si ss ss}", "op", ew_op_name(problem->op), "m",
                     (json_int_t)problem->max_m, "n", (json_int_t)problem->n, "k",
                     (json_int_t)problem->k, "ranks", num_ranks, "dtype",
                     ew_dtype_name(problem->dtype), "weight",
                     problem->weight_layout == EW_WEIGHT_NK ? "nk" : "kn");
}

json_t *cli_text_json(const char *text)
{
    json_t *string = json_string(text);
    return string ? string : json_string("(not UTF-8)");
}
