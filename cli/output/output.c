/* Derives rows from results, hands them to the format asked for, and keeps the JSON
 * document and its file up to date, so that an interrupted run loses nothing. */
#include "output/output.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/out_file.h"
#include "entwine/sim.h"
#include "output/derived.h"
#include "run/context.h"

enum { MAX_CONFIG_LINES = 64 };

typedef struct config_line {
    const cli_entry *entry;
    char config[EW_CONFIG_TEXT_BYTES];
} config_line;

struct cli_output {
    const cli_job *job;
    cli_format format;
    const char *json_path; /* NULL: no file */
    cli_out_file json_file;
    json_t *document;
    json_t *results; /* borrowed from document */
    bool wants_clocks;
    cli_summary summary;
    bool is_figure;
    /* The table shows each config once, below the rows. */
    config_line config_lines[MAX_CONFIG_LINES];
    int num_config_lines;
    bool begun;
};

/* Table and CSV wait for their first row: a run that fails prints no bare header. */
static void print_begin(cli_output *output)
{
    if (output->begun)
        return;
    output->begun = true;
    if (output->format == CLI_FORMAT_TABLE)
        cli_table_begin(output->job);
    else if (output->format == CLI_FORMAT_CSV)
        cli_csv_begin();
    fflush(stdout);
}

cli_exit cli_output_open(const cli_job *job, const cli_settings *settings, json_t *context,
                         cli_output **output_out)
{
    cli_output *output = calloc(1, sizeof *output);
    json_t *document = json_pack("{ss so so s[]}", "schema", CLI_SCHEMA, "context", context,
                                 "complete", json_false(), "results");
    cli_exit failed = CLI_EXIT_OK;
    if (!output || !document)
        failed = cli_fail_memory("for the results");
    else if (settings->json_path)
        failed = cli_out_file_open(&output->json_file, "JSON", settings->json_path);
    if (failed) {
        json_decref(document);
        free(output);
        return failed;
    }
    output->job = job;
    output->format = settings->format;
    output->json_path = settings->json_path;
    output->document = document;
    output->results = json_object_get(document, "results");
    output->wants_clocks =
        job->bed->on_gpus && (settings->json_path || settings->format == CLI_FORMAT_JSON);
    output->is_figure = settings->figure;
    if (settings->figure)
        json_object_set_new(document, "figure",
                            json_pack("{ss}", "name", settings->figure));
    if (output->wants_clocks)
        json_object_set_new(document, "clocks",
                            json_pack("{ss so so}", "query", CLI_CLOCKS_QUERY, "before",
                                      cli_gpu_clocks(), "after", json_null()));
    *output_out = output;
    return CLI_EXIT_OK;
}

static bool dump(const void *document, FILE *stream)
{
    return json_dumpf(document, stream, JSON_INDENT(1)) == 0 && fputc('\n', stream) != EOF;
}

/* How many blocks of its GEMM a rank runs at once: one on each SM or worker; 0: unknown. */
static int slots_of(const cli_job *job, int num_ranks, const ew_config *config)
{
    ew_sim_hardware hardware;
    if (job->bed->on_gpus)
        return cli_gpu_sms_per_rank(&job->gpus, num_ranks);
    if (!job->bed->is_simulated)
        return config->workers;
    if (ew_sim_describe(NULL, num_ranks, &hardware) == EW_OK)
        return hardware.sms;
    cli_json_lack();
    return 0;
}

/* The GEMM of `sequential` has nothing beside it. */
static double lone_gemm_us(const cli_job *job, const ew_bench_result *results)
{
    for (int at = 0; at < job->num_entries; at++)
        if (strcmp(job->entries[at].method, "sequential") == 0 &&
            results[at].status == EW_OK)
            return results[at].gemm_us;
    return NAN;
}

static const cli_ratio no_ratio = {NAN, NAN, NAN};

/* A simulation has no noise, so that an interval would say more than is known. */
static cli_ratio ratio_of(const cli_job *job, const ew_bench_result *over,
                          const ew_bench_result *under)
{
    if (job->bed->is_simulated || over == under || over->status != EW_OK ||
        under->status != EW_OK || over->num_samples != under->num_samples)
        return no_ratio;
    return cli_paired_ratio(over->samples_us, under->samples_us, over->num_samples);
}

static void derive_ratios(const cli_job *job, int at, const ew_bench_result *results,
                          cli_row *row)
{
    const int ours = cli_job_find(job, "entwine");
    const cli_extra *extra = row->extra;
    row->over_base = ratio_of(job, &results[job->baseline], &results[at]);
    if (ours >= 0 && strcmp(row->entry->method, "entwine") != 0)
        row->over_ours = ratio_of(job, &results[at], &results[ours]);
    if (extra && extra->num_again > 0)
        row->drift =
            cli_paired_ratio(extra->again_us, results[at].samples_us, extra->num_again);
}

void cli_row_derive(const cli_job *job, const cli_problem *problem, int at,
                    const ew_bench_result *results, const cli_extra *extras, cli_row *row)
{
    const ew_problem *shape = &problem->problem;
    const ew_bench_result *result = &results[at];
    const ew_bench_result *base = &results[job->baseline];
    size_t elem_bytes = ew_dtype_bytes(shape->dtype);
    double flops = 2.0 * (double)shape->max_m * (double)shape->n * (double)shape->k;
    double seconds = result->time_us * 1e-6;
    *row = (cli_row){.job = job,
                     .problem = problem,
                     .entry = &job->entries[at],
                     .result = result,
                     .extra = extras ? &extras[at] : NULL,
                     .gflops = NAN,
                     .algbw = NAN,
                     .breq = NAN,
                     .speedup = NAN,
                     .over_base = no_ratio,
                     .over_ours = no_ratio,
                     .drift = no_ratio,
                     .efficiency = NAN,
                     .waves = NAN};
    if (result->status != EW_OK || !(seconds > 0))
        return;
    row->gflops = flops / seconds * 1e-9;
    row->algbw =
        (double)shape->max_m * (double)shape->n * (double)elem_bytes / seconds * 1e-9;
    if (result->gemm_us > 0)
        row->breq = cli_remote_gbs(shape, problem->num_ranks, result->gemm_us);
    if (base->status == EW_OK && base->time_us > 0)
        row->speedup = base->time_us / result->time_us;
    derive_ratios(job, at, results, row);
    row->efficiency = cli_overlap_efficiency(row->entry->method, result->time_us,
                                             result->gemm_us, lone_gemm_us(job, results));
    row->waves =
        cli_waves(shape->max_m, shape->n, cli_num_parts(shape->op, problem->num_ranks),
                  result->config.block_m, result->config.block_n,
                  slots_of(job, problem->num_ranks, &result->config));
    if (result->config.struct_size &&
        ew_config_print(&result->config, row->config, sizeof row->config))
        row->config[0] = '\0';
}

static void add_to_summary(cli_output *output, const cli_row *row, int at)
{
    cli_summary *summary = &output->summary;
    const ew_bench_result *result = row->result;
    if (result->status != EW_OK) {
        summary->num_skipped++;
        /* A figure tries configs on every machine; what one of them refuses is no failure.
         */
        if (result->status != EW_ERR_UNSUPPORTED && !summary->entry_failure &&
            !(output->is_figure && result->status == EW_ERR_CONFIG))
            summary->entry_failure = result->status;
        return;
    }
    summary->num_ok++;
    summary->wrong += result->check.wrong;
    if (result->cv > summary->worst_cv)
        summary->worst_cv = result->cv;
    summary->num_tuned += row->extra && row->extra->tuned;
    summary->num_cut_short +=
        row->extra && row->extra->tuned && !row->extra->tuning.complete;
    if (!isnan(row->drift.value)) {
        const double drift = fabs(row->drift.value - 1);
        summary->num_drifts++;
        summary->drift_sum += drift;
        summary->worst_drift = fmax(summary->worst_drift, drift);
    }
    if (row->speedup > 0 && at != row->job->baseline) {
        summary->log_speedup_sum[at] += log(row->speedup);
        summary->num_speedups[at]++;
        summary->last_over_base[at] = row->over_base;
    }
}

static void remember_config(cli_output *output, const cli_row *row)
{
    if (!*row->config || output->num_config_lines == MAX_CONFIG_LINES)
        return;
    for (int at = 0; at < output->num_config_lines; at++)
        if (output->config_lines[at].entry == row->entry &&
            strcmp(output->config_lines[at].config, row->config) == 0)
            return;
    config_line *line = &output->config_lines[output->num_config_lines++];
    line->entry = row->entry;
    memcpy(line->config, row->config, sizeof line->config);
}

static void print_row(cli_output *output, const cli_row *row)
{
    print_begin(output);
    if (output->format == CLI_FORMAT_TABLE) {
        cli_table_row(row);
        remember_config(output, row);
    } else if (output->format == CLI_FORMAT_CSV) {
        cli_csv_row(row);
    }
}

void cli_output_problem(cli_output *output, const cli_problem *problem,
                        const ew_bench_result *results, const cli_extra *extras)
{
    cli_field field = {0};
    for (int at = 0; at < output->job->num_entries; at++) {
        cli_row row;
        cli_row_derive(output->job, problem, at, results, extras, &row);
        cli_field_add(&field, &row.over_ours);
        add_to_summary(output, &row, at);
        print_row(output, &row);
        json_array_append_new(output->results, cli_row_json(&row));
    }
    const char *stand = cli_field_name(&field);
    output->summary.num_ahead += stand && strcmp(stand, "ahead") == 0;
    output->summary.num_level += stand && strcmp(stand, "level") == 0;
    output->summary.num_behind += stand && strcmp(stand, "behind") == 0;
    fflush(stdout);
    if (output->json_path) /* a failure shows at the end, if it lasts */
        cli_out_file_renew(&output->json_file, dump, output->document);
}

void cli_emulated_link_text(double gbs, double latency_us, double header_bytes, char *text,
                            size_t bytes)
{
    char headers[48] = "";
    if (header_bytes > 0)
        snprintf(headers, sizeof headers, ", headers of %g bytes", header_bytes);
    snprintf(text, bytes, "EMULATED %g GB/s per rank and direction, %g us%s", gbs,
             latency_us, headers);
}

void cli_link_text(const cli_job *job, char *text, size_t bytes)
{
    const ew_world_options *options = &job->ranks.options;
    if (options->link_gbps > 0)
        cli_emulated_link_text(options->link_gbps / 8, options->link_latency_us,
                               options->link_header_bytes, text, bytes);
    else
        snprintf(text, bytes, job->bed->is_simulated ? "the profile's" : "none");
}

/* What stands beside cuBLAS in the baseline that is named after it. */
static const char *blas_text(const cli_job *job, const cli_entry *entry)
{
    switch (job->problems[0].problem.op) {
    case EW_OP_AG_GEMM:
        return "Entwine's AllGather, then cuBLAS";
    case EW_OP_GEMM_AR:
        return "cuBLAS, then Entwine's AllReduce on all SMs of a rank";
    case EW_OP_GEMM_RS:
        break;
    }
    return entry->uses_nccl
               ? "cuBLAS, then NCCL's ReduceScatter (W divides m, else Entwine's)"
               : "cuBLAS, then Entwine's ReduceScatter on all SMs of a rank";
}

static void print_end(cli_output *output, bool complete)
{
    if (output->format == CLI_FORMAT_JSON)
        cli_json_print(json_incref(output->document));
    if (output->format != CLI_FORMAT_TABLE || !output->begun)
        return;
    for (int at = 0; at < output->num_config_lines; at++) {
        const cli_entry *entry = output->config_lines[at].entry;
        printf("# config %s : %s\n", entry->label, output->config_lines[at].config);
        if (output->job->bed->on_gpus && strcmp(entry->method, "blas") == 0)
            printf("# %s : %s\n", entry->label, blas_text(output->job, entry));
    }
    cli_table_end(output->job, &output->summary, complete);
}

/* The exit status of a job that ran to its end. */
static cli_exit judge(const cli_summary *summary)
{
    if (summary->wrong)
        return CLI_EXIT_WRONG;
    if (summary->entry_failure)
        return cli_exit_of(summary->entry_failure);
    return summary->num_ok ? CLI_EXIT_OK : CLI_EXIT_SKIPPED;
}

cli_exit cli_output_close(cli_output *output, bool complete)
{
    const cli_exit judged = complete ? judge(&output->summary) : CLI_EXIT_OK;
    json_object_set_new(output->document, "complete", json_boolean(complete));
    if (output->wants_clocks && complete)
        json_object_set_new(json_object_get(output->document, "clocks"), "after",
                            cli_gpu_clocks());
    print_end(output, complete);
    const cli_exit failed =
        output->json_path ? cli_out_file_write(&output->json_file, dump, output->document)
                          : CLI_EXIT_OK;
    json_decref(output->document);
    free(output);
    return judged ? judged : failed;
}
