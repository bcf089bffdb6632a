/* Inputs of a report: what kind each is, where it was measured, what it holds and what
 * follows from it.  They come from outside: every value that is used is checked. */
#include "report/report_inputs.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "options/option_rules.h"
#include "output/output.h"

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

int report_number_of(json_t *known, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    json_t *key = json_vsprintf(format, arguments);
    va_end(arguments);
    const char *text = json_string_value(key);
    const json_t *number = json_object_get(known, text);
    int found = (int)json_integer_value(number);
    if (!number) {
        found = (int)json_object_size(known);
        json_object_set_new(known, text, json_integer(found));
    }
    json_decref(key);
    return found;
}

const report_row *report_find_row(const report_problem *problem, const char *method)
{
    for (int at = 0; at < problem->num_rows; at++)
        if (!problem->rows[at].error &&
            strcmp(problem->rows[at].measured->method, method) == 0)
            return &problem->rows[at];
    return NULL;
}

/* ---- Context ---- */

static void read_context(const cli_report *report, report_source *source,
                         const json_t *context)
{
    const json_t *gpu;
    size_t at;
    ewx_text machine = ewx_text_in(source->machine, sizeof source->machine);
    const double cores = report_number(context, "cores_usable");
    source->context = context;
    source->commit = report_string(context, "commit", "unknown");
    source->version = report_string(context, "version", "unknown");
    json_array_foreach(json_object_get(context, "gpus"), at, gpu)
    {
        ewx_text_add(&machine, "%.60s (%.0f SMs), ", report_string(gpu, "name", "GPU"),
                     fmax(0, report_number(gpu, "sms")));
    }
    ewx_text_add(&machine, "%.100s, %.0f usable core%s",
                 report_string(context, "cpu", "unknown CPU"), fmax(0, cores),
                 cores == 1 ? "" : "s");
    source->section = report_number_of(report->sections, "%s\n%s\n%s", source->machine,
                                       source->commit, source->version);
    while (report->sources[source->hosts]->network != source->network &&
           !json_equal(report->sources[source->hosts]->network, source->network))
        source->hosts++;
}

/* ---- What follows from a problem's rows ---- */

/* The first of a method's rows that ran, whatever its layer or variant. */
static const report_row *find_method(const report_problem *problem, const char *method)
{
    for (int at = 0; at < problem->num_rows; at++)
        if (!problem->rows[at].error &&
            cli_method_is(problem->rows[at].measured->method, method))
            return &problem->rows[at];
    return NULL;
}

/* The one whose speedup is exactly 1; sequential where several are. */
static void find_baseline(report_problem *problem)
{
    for (int at = 0; at < problem->num_rows; at++) {
        const report_row *row = &problem->rows[at];
        if (row->values[REPORT_SPEEDUP] == 1.0 &&
            (!problem->baseline || strcmp(row->measured->method, "sequential") == 0))
            problem->baseline = row->measured->method;
    }
}

/* Documents may come from a tool that knows more operations. */
static ew_op op_of(const cli_measured *shape)
{
    const cli_choice *found = cli_choice_find(cli_op_choices, shape->op);
    return found ? (ew_op)found->value : EW_OP_GEMM_RS;
}

static cli_ratio ratio_of(const report_problem *problem, const report_row *over,
                          const report_row *under)
{
    const cli_measured *a = over->measured, *b = under->measured;
    if (over == under || a->num_samples != b->num_samples || *problem->shape->profile)
        return (cli_ratio){NAN, NAN, NAN};
    return cli_paired_ratio(a->rounds_us, b->rounds_us, a->num_samples);
}

/* Ours among the other methods, as the tool's own table has it. */
static const char *lead_of(const report_problem *problem)
{
    const report_row *ours = find_method(problem, "entwine");
    cli_field field = {0};
    for (int at = 0; at < problem->num_rows && ours; at++) {
        const report_row *row = &problem->rows[at];
        if (row->error || cli_method_is(row->measured->method, "entwine"))
            continue;
        const cli_ratio ratio = ratio_of(problem, row, ours);
        cli_field_add(&field, &ratio);
    }
    return cli_field_name(&field);
}

static double achieved_gbs(const cli_measured *shape, double time_us)
{
    const ew_dtype dtype =
        (ew_dtype)cli_choice_find(cli_dtype_choices, shape->dtype)->value;
    ew_problem problem = EW_PROBLEM(shape->m, shape->n, shape->k, dtype);
    problem.op = op_of(shape);
    return cli_remote_gbs(&problem, (int)shape->ranks, time_us);
}

static void derive_row(const report_problem *problem, const report_row *plain,
                       const report_row *base, report_row *row)
{
    const cli_measured *shape = problem->shape;
    double *v = row->values;
    v[REPORT_EFFICIENCY] =
        cli_overlap_efficiency(row->measured->method, v[REPORT_TIME], v[REPORT_GEMM],
                               plain ? plain->values[REPORT_GEMM] : NAN);
    if (shape->ranks > 1 && shape->ranks < 1 << 16)
        v[REPORT_ACHIEVED] = achieved_gbs(shape, v[REPORT_TIME]);
    if (!base)
        return;
    const cli_ratio ratio = ratio_of(problem, base, row);
    v[REPORT_LOW] = ratio.low;
    v[REPORT_HIGH] = ratio.high;
    v[REPORT_RELATIVE] = v[REPORT_TIME] / base->values[REPORT_TIME];
    v[REPORT_RELATIVE_GEMM] =
        fmax(0.0, v[REPORT_TIME] - v[REPORT_TAIL]) / base->values[REPORT_TIME];
}

/* Of our config: blocks of a rank over its SMs, or over its workers. */
static double waves_of(const report_problem *problem)
{
    const cli_measured *shape = problem->shape;
    const report_row *ours = find_method(problem, "entwine");
    const double sms = report_number(problem->params, "sms_per_rank");
    ew_config config = EW_CONFIG_INIT;
    if (!ours || ew_config_parse(ours->config, &config) || shape->m > 1 << 30 ||
        shape->n > 1 << 30 || shape->ranks > 1 << 16)
        return NAN;
    const bool on_cpu = cli_bed_of(config.backend)->on_cores;
    return cli_waves(shape->m, shape->n, cli_num_parts(op_of(shape), (int)shape->ranks),
                     config.block_m, config.block_n,
                     sms >= 1 && sms < 1e6 ? (int)sms
                     : on_cpu              ? config.workers
                                           : 0);
}

/* The fastest other method's time over ours. */
static double gain_of(const report_problem *problem)
{
    const report_row *ours = report_find_row(problem, "entwine");
    double least_us = NAN;
    for (int at = 0; at < problem->num_rows; at++)
        if (!problem->rows[at].error &&
            !cli_method_is(problem->rows[at].measured->method, "entwine"))
            least_us = fmin(least_us, problem->rows[at].values[REPORT_TIME]);
    return ours ? least_us / ours->values[REPORT_TIME] : NAN;
}

static void derive(report_problem *problem)
{
    find_baseline(problem);
    const report_row *plain = find_method(problem, "sequential");
    const report_row *base =
        problem->baseline ? report_find_row(problem, problem->baseline) : NULL;
    for (int at = 0; at < problem->num_rows; at++)
        if (!problem->rows[at].error)
            derive_row(problem, plain, base, &problem->rows[at]);
    problem->waves = waves_of(problem);
    problem->gain = gain_of(problem);
    problem->lead = lead_of(problem);
}

/* ---- Results ---- */

static void read_row(report_row *row, const json_t *object, const cli_measured *measured)
{
    static const char *const keys[] = {
        "time_us", "gemm_us", "tail_us", "cv", "speedup", [REPORT_REQUIRED] = "breq_gbs"};
    *row = (report_row){measured, report_string(object, "config", ""), NULL, {0}};
    for (int at = 0; at < REPORT_NUM_VALUES; at++)
        row->values[at] =
            at <= REPORT_REQUIRED && keys[at] ? report_number(object, keys[at]) : NAN;
    if (!measured->ran)
        row->error =
            report_string(object, "error", report_string(object, "status", "skipped"));
    else if (!(row->values[REPORT_TIME] > 0))
        row->error = "has no time";
}

/* Problems of one input in one setting are a group.  Links and methods are single lines. */
static void end_problem(cli_report *report)
{
    report_problem *problem = &report->problems[report->num_problems - 1];
    const report_source *source = problem->source;
    derive(problem);
    problem->group = report_number_of(
        report->settings, "%p %d %d %d\n%s\n%s\n%s%s", (const void *)source->name,
        source->section, source->hosts, (int)problem->is_virtual, problem->shape->link,
        problem->shape->profile, problem->baseline ? "over " : "",
        problem->baseline ? problem->baseline : "");
    if (problem->group == report->num_groups)
        report->num_groups++;
}

static void begin_problem(cli_report *report, report_source *source, int first,
                          const json_t *params)
{
    const double link_gbs = report_number(params, "link_gbs");
    report->problems[report->num_problems++] = (report_problem){
        .source = source,
        .shape = &source->results.results[first],
        .params = params,
        .link_gbs = link_gbs > 0 ? link_gbs : 0,
        .is_virtual = json_is_true(json_object_get(params, "virtual_node")),
        .rows = &source->rows[first]};
}

static bool make_room(cli_report *report, report_source *source, size_t num_results)
{
    const size_t most = (size_t)report->num_problems + num_results + 1;
    report_problem *grown = realloc(report->problems, most * sizeof *grown);
    if (grown)
        report->problems = grown;
    source->rows = calloc(num_results + 1, sizeof *source->rows);
    return grown && source->rows;
}

/* Problems follow each other; one that was asked for twice starts again with a method that
 * it has. */
static cli_exit read_results(cli_report *report, report_source *source, json_t *document)
{
    cli_exit failed = cli_result_file_take(&source->results, source->name, document);
    if (failed)
        return failed;
    const cli_result_file *file = &source->results;
    const json_t *results = json_object_get(document, "results"), *params_before = NULL;
    report_problem *problem = NULL;
    if (!make_room(report, source, (size_t)file->num_results))
        return cli_fail_memory("for the report");
    json_t *ran = json_object(); /* the present problem's methods */
    read_context(report, source, json_object_get(document, "context"));
    for (int at = 0; at < file->num_results; at++) {
        const json_t *object = json_array_get(results, (size_t)at);
        const json_t *params = json_object_get(object, "params");
        read_row(&source->rows[at], object, &file->results[at]);
        if (!problem || !json_equal(params, params_before) ||
            json_object_get(ran, file->results[at].method)) {
            if (problem)
                end_problem(report);
            begin_problem(report, source, at, params);
            problem = &report->problems[report->num_problems - 1];
            json_object_clear(ran);
        }
        problem->num_rows++;
        params_before = params;
        if (!source->rows[at].error)
            json_object_set_new(ran, file->results[at].method, json_true());
    }
    if (problem)
        end_problem(report);
    json_decref(ran);
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

static cli_exit check_events(const report_source *source, int num_ranks)
{
    const json_t *event;
    size_t at;
    json_array_foreach(json_object_get(source->trace, "traceEvents"), at, event)
    {
        const char *phase = json_string_value(json_object_get(event, "ph"));
        if (!phase || (strcmp(phase, "X") == 0 && !is_slice_sound(event, num_ranks)))
            return cli_fail_usage(fix_trace, "%.200s: event %zu is not one of a trace",
                                  source->name, at + 1);
    }
    return CLI_EXIT_OK;
}

static cli_exit read_trace(const cli_report *report, report_source *source,
                           json_t *document)
{
    json_t *about = json_object_get(document, "otherData"), *context = NULL;
    json_error_t error;
    const char *schema = NULL;
    int num_ranks = 0, simulated = 0;
    json_int_t m, n, k, wrong = 0;
    source->trace = document;
    if (json_unpack_ex(about, &error, 0, "{s:s}", "schema", &schema))
        return cli_fail_usage(fix_trace, "%.200s: not a trace of entwine: %.120s",
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
    read_context(report, source, context);
    return check_events(source, num_ranks);
}

/* ---- Any input ---- */

/* NULL: no memory. */
static report_source *add_source(cli_report *report, const char *name)
{
    report_source *source = calloc(1, sizeof *source);
    report_source **grown = realloc(report->sources, (size_t)(report->num_sources + 1) *
                                                         sizeof *report->sources);
    if (grown)
        report->sources = grown;
    if (!source || !grown) {
        free(source);
        return NULL;
    }
    source->name = name;
    source->number = report->num_sources;
    report->sources[report->num_sources++] = source;
    return source;
}

/* The runs of `entwine bench` among those of a collection; others have no calls to draw. */
static cli_exit add_runs(cli_report *report, const char *name, const json_t *collection)
{
    json_t *run;
    size_t at;
    cli_exit failed = CLI_EXIT_OK;
    const json_t *first = collection;
    json_array_foreach(json_object_get(collection, "runs"), at, run)
    {
        json_t *output = json_object_get(run, "output");
        if (failed || strcmp(report_string(output, "schema", ""), CLI_SCHEMA) != 0)
            continue;
        report_source *source = add_source(report, name);
        if (!source)
            return cli_fail_memory("for the report");
        source->run = (int)at + 1;
        source->network = json_object_get(run, "network");
        source->collection = first;
        first = NULL;
        failed = read_results(report, source, json_incref(output));
    }
    if (!failed && first)
        failed = cli_fail_usage("give a file with runs of `entwine bench`",
                                "%.200s: none of its runs is one of entwine bench", name);
    return failed;
}

cli_exit cli_report_add(cli_report *report, const char *name, json_t *document)
{
    const char *schema = report_string(document, "schema", "");
    if (strncmp(schema, "entwine-bench-", strlen("entwine-bench-")) == 0) {
        json_array_append_new(report->collections, document);
        return add_runs(report, name, document);
    }
    report_source *source = add_source(report, name);
    if (!source) {
        json_decref(document);
        return cli_fail_memory("for the report");
    }
    return json_is_array(json_object_get(document, "traceEvents"))
               ? read_trace(report, source, document)
               : read_results(report, source, document);
}

cli_report *cli_report_create(void)
{
    cli_report *report = calloc(1, sizeof *report);
    if (report) {
        report->collections = json_array();
        report->settings = json_object();
        report->sections = json_object();
    }
    return report;
}

void cli_report_destroy(cli_report *report)
{
    if (!report)
        return;
    for (int at = 0; at < report->num_sources; at++) {
        free(report->sources[at]->rows);
        json_decref(report->sources[at]->trace);
        cli_result_file_close(&report->sources[at]->results);
        free(report->sources[at]);
    }
    free(report->sources);
    free(report->problems);
    json_decref(report->collections);
    json_decref(report->settings);
    json_decref(report->sections);
    free(report);
}
