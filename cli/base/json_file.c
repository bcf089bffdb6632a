#include "base/json_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

cli_exit cli_json_load(const char *path, const char *fix, json_t **document_out)
{
    json_error_t error;
    FILE *stream = fopen(path, "r");
    if (!stream)
        return cli_fail_usage(fix, "cannot read '%.200s': %s", path, strerror(errno));
    json_t *document = json_loadf(stream, JSON_REJECT_DUPLICATES, &error);
    fclose(stream);
    if (!document)
        return cli_fail_usage(fix, "%.200s:%d: no JSON document: %.120s", path, error.line,
                              error.text);
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
