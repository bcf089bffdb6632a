/* Inputs of a report: what kind each is, where it was measured, and what it holds. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "report_data.h"

static const char fix_trace[] = "give a file that `entwine trace` wrote";

double report_number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    const double number = json_is_number(value) ? json_number_value(value) : NAN;
    const double size = fabs(number);
    return size == 0 || (size > 1e-15 && size < 1e15) ? number : NAN;
}

const char *report_string(const json_t *object, const char *key, const char *otherwise)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : otherwise;
}

const char *report_config_value(const char *config, const char *key)
{
    const size_t length = strlen(key);
    for (const char *at = config; at && *at; at += *at == ',') {
        if (strncmp(at, key, length) == 0 && at[length] == '=')
            return at + length + 1;
        at += strcspn(at, ",");
    }
    return NULL;
}

const report_row *report_find_row(const report_problem *problem, const char *method)
{
    for (int at = 0; at < problem->num_rows; at++)
        if (!problem->rows[at].error && strcmp(problem->rows[at].method, method) == 0)
            return &problem->rows[at];
    return NULL;
}

bool report_same_section(const report_source *a, const report_source *b)
{
    return strcmp(a->machine, b->machine) == 0 && strcmp(a->commit, b->commit) == 0 &&
           strcmp(a->version, b->version) == 0;
}

/* ---- Context ---- */

static void read_context(report_source *source, json_t *context)
{
    const json_t *gpu;
    size_t at, used = 0;
    source->context = context;
    source->time = report_string(context, "time", "unknown");
    source->commit = report_string(context, "commit", "unknown");
    source->version = report_string(context, "version", "unknown");
    source->host = report_string(context, "host", "unknown");
    json_array_foreach(json_object_get(context, "gpus"), at, gpu)
    {
        const double sms = report_number(gpu, "sms");
        snprintf(source->machine + used, sizeof source->machine - used,
                 sms >= 1 ? "%.60s (%.0f SMs), " : "%.60s, ",
                 report_string(gpu, "name", "GPU"), sms);
        used = strlen(source->machine);
    }
    snprintf(source->machine + used, sizeof source->machine - used, "%.100s",
             report_string(context, "cpu", "unknown CPU"));
    used = strlen(source->machine);
    if (report_number(context, "cores_usable") >= 1)
        snprintf(source->machine + used, sizeof source->machine - used,
                 ", %.0f usable cores", report_number(context, "cores_usable"));
}

/* ---- Results ---- */

static void read_row(report_row *row, const json_t *object, const cli_measured *measured)
{
    row->method = measured->method;
    row->config = report_string(object, "config", "");
    row->time_us = report_number(object, "time_us");
    row->gemm_us = report_number(object, "gemm_us");
    row->tail_us = report_number(object, "tail_us");
    row->cv = report_number(object, "cv");
    row->algbw = report_number(object, "algbw_gbs");
    row->breq = report_number(object, "breq_gbs");
    row->speedup = report_number(object, "speedup");
    if (!measured->ran)
        row->error =
            report_string(object, "error", report_string(object, "status", "skipped"));
    else if (!(row->time_us > 0))
        row->error = "has no time";
}

static void begin_problem(report_source *source, const json_t *params, int first)
{
    report_problem *problem = &source->problems[source->num_problems++];
    const double link_gbps = report_number(params, "link_gbs") * 8;
    const double sms = report_number(params, "sms_per_rank");
    *problem = (report_problem){
        .source = source,
        .shape = &source->results.results[first],
        .name = json_string_value(json_object_get(params, "name")),
        .link_gbps = link_gbps > 0 ? link_gbps : 0,
        .virtual_node = json_is_true(json_object_get(params, "virtual_node")),
        .simulated = json_is_true(json_object_get(params, "simulated")),
        .profile = report_string(params, "profile", ""),
        .sms_per_rank = sms >= 1 && sms < 1e6 ? (int)sms : 0,
        .rows = &source->rows[first],
    };
}

/* The one whose speedup is exactly 1; sequential where several are. */
static void find_baseline(report_problem *problem)
{
    for (int at = 0; at < problem->num_rows; at++) {
        const report_row *row = &problem->rows[at];
        if (row->speedup == 1.0 &&
            (!problem->baseline || strcmp(row->method, "sequential") == 0))
            problem->baseline = row->method;
    }
}

cli_exit report_read_results(report_source *source, json_t *document)
{
    cli_exit failed = cli_result_file_take(&source->results, source->name, document);
    if (failed)
        return failed;
    const cli_result_file *file = &source->results;
    const json_t *results = json_object_get(document, "results"), *params_before = NULL;
    source->complete = file->complete;
    source->clocks = json_object_get(document, "clocks");
    read_context(source, json_object_get(document, "context"));
    source->rows = calloc((size_t)file->num_results + 1, sizeof *source->rows);
    source->problems = calloc((size_t)file->num_results + 1, sizeof *source->problems);
    if (!source->rows || !source->problems)
        return cli_fail(EW_ERR_MEMORY, "free some memory", "no memory for the results");
    for (int at = 0; at < file->num_results; at++) {
        const json_t *object = json_array_get(results, (size_t)at);
        const json_t *params = json_object_get(object, "params");
        read_row(&source->rows[at], object, &file->results[at]);
        /* Problems follow each other; one that was asked for twice starts again with a
         * method that it has. */
        if (!params_before || !json_equal(params, params_before) ||
            report_find_row(&source->problems[source->num_problems - 1],
                            source->rows[at].method))
            begin_problem(source, params, at);
        source->problems[source->num_problems - 1].num_rows++;
        params_before = params;
    }
    for (int at = 0; at < source->num_problems; at++)
        find_baseline(&source->problems[at]);
    return CLI_EXIT_OK;
}

/* ---- Traces ---- */

static bool is_slice_sound(const json_t *event, int num_ranks)
{
    const json_t *arguments = json_object_get(event, "args");
    const double rank = report_number(event, "pid"), worker = report_number(event, "tid");
    const double dst = report_number(arguments, "dst");
    return rank >= 1 && rank <= num_ranks && worker >= 1 && worker <= 65536 &&
           report_number(event, "ts") >= 0 && report_number(event, "dur") >= 0 &&
           dst >= 0 && dst < num_ranks && json_is_string(json_object_get(event, "cat"));
}

static cli_exit check_trace(const report_source *source)
{
    const json_t *events = json_object_get(source->trace, "traceEvents"), *event;
    json_t *about = json_object_get(source->trace, "otherData"), *context = NULL;
    json_error_t error;
    const char *schema = NULL;
    int num_ranks = 0, simulated = 0;
    size_t at;
    json_int_t m, n, k, wrong = 0;
    if (json_unpack_ex(about, &error, 0, "{s:s}", "schema", &schema))
        return cli_fail_usage(fix_trace, "%.200s: no trace of entwine: %.120s",
                              source->name, about ? error.text : "it has no otherData");
    if (strcmp(schema, "entwine-trace/1") != 0)
        return cli_fail_usage(fix_trace,
                              "%.200s: its schema is '%.60s', not 'entwine-trace/1'",
                              source->name, schema);
    if (json_unpack_ex(about, &error, 0, "{s:{s:I, s:I, s:I, s:i, s?b}, s?I, s:o}",
                       "params", "m", &m, "n", &n, "k", &k, "ranks", &num_ranks,
                       "simulated", &simulated, "wrong", &wrong, "context", &context))
        return cli_fail_usage(fix_trace, "%.200s: %.120s", source->name, error.text);
    if (num_ranks < 1 || num_ranks > 256)
        return cli_fail_usage(fix_trace, "%.200s: its ranks are not between 1 and 256",
                              source->name);
    if (wrong != 0 && !simulated)
        return cli_fail_usage("trace again", "%.200s: it computed wrong values",
                              source->name);
    json_array_foreach(events, at, event)
    {
        const char *phase = json_string_value(json_object_get(event, "ph"));
        if (!phase || (strcmp(phase, "X") == 0 && !is_slice_sound(event, num_ranks)))
            return cli_fail_usage(fix_trace, "%.200s: event %zu is not one of a trace",
                                  source->name, at + 1);
    }
    return CLI_EXIT_OK;
}

cli_exit report_read_trace(report_source *source, json_t *document)
{
    source->is_trace = true;
    source->complete = true;
    source->trace = document;
    cli_exit failed = check_trace(source);
    if (!failed)
        read_context(source,
                     json_object_get(json_object_get(document, "otherData"), "context"));
    return failed;
}
