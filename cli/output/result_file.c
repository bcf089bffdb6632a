/* Reading and checking of result documents. */
#include "output/result_file.h"

#include <stdlib.h>
#include <string.h>

#include "base/stats.h"
#include "base/text.h"
#include "options/option_rules.h"
#include "output/output.h"

enum { MOST_SAMPLES = EW_BENCH_MAX_SAMPLES };
static const char fix_document[] = "give a file that `entwine bench -o json` or -J wrote";

/* For texts that are printed among others. */
static bool is_plain(const char *text)
{
    return !strpbrk(text, "\n\t");
}

static cli_exit read_gpus(cli_result_file *file, json_t *gpus)
{
    size_t at;
    json_t *gpu;
    json_error_t error;
    ewx_text text = ewx_text_in(file->gpus, sizeof file->gpus);
    json_array_foreach(gpus, at, gpu)
    {
        const char *name;
        int sms;
        if (json_unpack_ex(gpu, &error, 0, "{s:s, s:i}", "name", &name, "sms", &sms))
            return cli_fail_usage(fix_document, "%.200s: GPU %zu: %.120s", file->path,
                                  at + 1, error.text);
        ewx_text_add(&text, "%s%.60s (%d SMs)", at ? ", " : "", name, sms);
    }
    return CLI_EXIT_OK;
}

static cli_exit read_head(cli_result_file *file, json_t **results_out)
{
    json_error_t error;
    const char *schema = NULL;
    json_t *gpus = NULL;
    int complete;
    if (json_unpack_ex(file->document, &error, 0, "{s:s}", "schema", &schema))
        return cli_fail_usage(fix_document, "%.200s: not a result document: %.120s",
                              file->path, error.text);
    if (strcmp(schema, CLI_SCHEMA) != 0)
        return cli_fail_usage(fix_document, "%.200s: its schema is '%.60s', not '%s'",
                              file->path, schema, CLI_SCHEMA);
    if (json_unpack_ex(file->document, &error, 0, "{s:b, s:o, s:{s:s, s:s, s:s, s?o}}",
                       "complete", &complete, "results", results_out, "context", "time",
                       &file->time, "commit", &file->commit, "cpu", &file->cpu, "gpus",
                       &gpus))
        return cli_fail_usage(fix_document, "%.200s: %.120s", file->path, error.text);
    if (!json_is_array(*results_out) || (gpus && !json_is_array(gpus)))
        return cli_fail_usage(fix_document, "%.200s: %s must be an array", file->path,
                              json_is_array(*results_out) ? "gpus" : "results");
    file->complete = complete;
    cli_exit failed = read_gpus(file, gpus);
    if (!failed && !(is_plain(file->time) && is_plain(file->commit) &&
                     is_plain(file->cpu) && is_plain(file->gpus)))
        failed = cli_fail_usage(fix_document,
                                "%.200s: several lines or columns in a text of its context",
                                file->path);
    return failed;
}

/* NULL, or what is wrong with the samples; sorts them. */
static const char *read_samples(const json_t *array, cli_measured *result)
{
    size_t count = json_array_size(array);
    if (!json_is_array(array) || count > MOST_SAMPLES)
        return "samples_us must be an array of at most 1024 numbers";
    result->samples_us = calloc(count + 1, sizeof(double));
    result->rounds_us = calloc(count + 1, sizeof(double));
    if (!result->samples_us || !result->rounds_us)
        return "no memory for its samples";
    for (size_t at = 0; at < count; at++) {
        double value = json_number_value(json_array_get(array, at));
        if (!(value > 0))
            return "a sample is not a positive number";
        result->samples_us[at] = result->rounds_us[at] = value;
    }
    if (count == 0)
        return "it has no samples";
    result->num_samples = (int)count;
    result->median_us = cli_median(result->samples_us, result->num_samples); /* sorts */
    return NULL;
}

/* Documents of version 0.1 had gigabits per second. */
static void convert_link(json_t *params)
{
    char text[96];
    const json_t *old = json_object_get(params, "link_gbps");
    const double gbs = json_number_value(old) / 8;
    if (!json_is_number(old))
        return;
    json_object_set_new(params, "link_gbs", json_real(gbs));
    json_object_del(params, "link_gbps");
    if (!(gbs > 0))
        return;
    cli_emulated_link_text(gbs,
                           json_number_value(json_object_get(params, "link_latency_us")), 0,
                           text, sizeof text);
    json_object_set_new(params, "link", json_string(text));
}

/* NULL, or what is wrong with one result. */
static const char *read_result(json_t *object, cli_measured *result, json_error_t *error)
{
    const char *status;
    json_t *samples = NULL;
    json_int_t wrong = 0;
    int simulated = 0;
    convert_link(json_object_get(object, "params"));
    result->op = ew_op_name(EW_OP_GEMM_RS); /* the only one of older documents */
    result->profile = "";
    if (json_unpack_ex(
            object, error, 0,
            "{s:{s?s, s:I, s:I, s:I, s:I, s:s, s:s, s:s, s?b, s?s}, s:s, s:s, s?o}",
            "params", "op", &result->op, "m", &result->m, "n", &result->n, "k", &result->k,
            "ranks", &result->ranks, "dtype", &result->dtype, "weight", &result->weight,
            "link", &result->link, "simulated", &simulated, "profile", &result->profile,
            "method", &result->method, "status", &status, "samples_us", &samples))
        return error->text;
    if (!simulated)
        result->profile = "";
    else if (!*result->profile)
        return "it is simulated and names no profile";
    if (result->m < 1 || result->n < 1 || result->k < 1 || result->ranks < 1)
        return "its m, n, k or ranks is less than 1";
    if (!cli_choice_find(cli_dtype_choices, result->dtype) ||
        !cli_choice_find(cli_weight_choices, result->weight))
        return "its dtype or weight is unknown";
    if (!is_plain(result->op) || !is_plain(result->link) || !is_plain(result->method) ||
        !is_plain(result->profile))
        return "its op, link, method or profile has several lines or columns";
    result->ran = strcmp(status, "EW_OK") == 0;
    if (!result->ran)
        return NULL;
    /* A simulation computes no values that could be wrong. */
    if (!simulated &&
        json_unpack_ex(object, error, 0, "{s:{s:I}}", "check", "wrong", &wrong))
        return error->text;
    if (wrong != 0)
        return "it computed wrong values";
    return read_samples(samples, result);
}

static cli_exit read_results(cli_result_file *file, json_t *results)
{
    size_t count = json_array_size(results);
    file->results = calloc(count + 1, sizeof *file->results);
    if (!file->results)
        return cli_fail_memory("for the results");
    for (size_t at = 0; at < count; at++) {
        json_error_t error;
        cli_measured *result = &file->results[file->num_results++];
        const char *why = read_result(json_array_get(results, at), result, &error);
        if (why)
            return cli_fail_usage("measure again", "%.200s: result %zu%s%.60s%s: %.120s",
                                  file->path, at + 1, result->method ? " (" : "",
                                  result->method ? result->method : "",
                                  result->method ? ")" : "", why);
    }
    return CLI_EXIT_OK;
}

cli_exit cli_result_file_take(cli_result_file *file, const char *path, json_t *document)
{
    json_t *results = NULL;
    *file = (cli_result_file){.path = path, .document = document};
    cli_exit failed = read_head(file, &results);
    if (!failed)
        failed = read_results(file, results);
    return failed;
}

cli_exit cli_result_file_open(cli_result_file *file, const char *path)
{
    json_t *document = NULL;
    *file = (cli_result_file){.path = path};
    cli_exit failed = cli_json_load(path, fix_document, &document);
    return failed ? failed : cli_result_file_take(file, path, document);
}

void cli_result_file_close(cli_result_file *file)
{
    for (int at = 0; at < file->num_results; at++) {
        free(file->results[at].samples_us);
        free(file->results[at].rounds_us);
    }
    free(file->results);
    json_decref(file->document);
    *file = (cli_result_file){.path = NULL};
}
