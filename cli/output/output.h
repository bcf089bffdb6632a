/* Results on their way out: a table, CSV, JSON or JSON lines on stdout, and a JSON file
 * besides.  docs/CLI.md defines every column and docs/schema.json every field. */
#ifndef ENTWINE_CLI_OUTPUT_H
#define ENTWINE_CLI_OUTPUT_H

#include <jansson.h>

#include "output/derived.h"
#include "run/job.h"

#define CLI_SCHEMA "entwine-bench/1"

/* One result with all that is derived from it; NAN where it has no value. */
typedef struct cli_row {
    const cli_job *job;
    const cli_problem *problem;
    const cli_entry *entry;
    const ew_bench_result *result;
    const cli_extra *extra; /* NULL: not known */
    double gflops;          /* of one rank, over the whole call */
    double algbw;   /* GB/s: bytes of one whole contribution / time, as nccl-tests has it */
    double breq;    /* GB/s: Eq. 4 at the rate of the GEMM window */
    double speedup; /* time of the baseline method / time */
    cli_ratio over_base;               /* the same, with its interval */
    cli_ratio over_ours;               /* time of a rival / time of ours; NAN: no rival */
    cli_ratio drift;                   /* second / first turn of the repeated entry */
    double efficiency, waves;          /* output/derived.h */
    char config[EW_CONFIG_TEXT_BYTES]; /* empty for methods that are no config */
} cli_row;

/* What the footer and the exit status are made of. */
typedef struct cli_summary {
    int num_ok, num_skipped;
    int64_t wrong;
    double worst_cv;
    double log_speedup_sum[CLI_MAX_METHODS];
    int num_speedups[CLI_MAX_METHODS];
    cli_ratio last_over_base[CLI_MAX_METHODS]; /* of the last problem */
    int num_ahead, num_level, num_behind;      /* problems on which we are, see cli_field */
    int num_tuned, num_cut_short; /* searches; those that did not end by themselves */
    int num_drifts;
    double drift_sum, worst_drift; /* of |ratio - 1| */
    ew_status entry_failure;       /* the first entry that failed without being skipped */
} cli_summary;

/* The row of the entry `at`; `results` are those of all entries of the problem, as `extras`
 * are, which may be NULL. */
void cli_row_derive(const cli_job *job, const cli_problem *problem, int at,
                    const ew_bench_result *results, const cli_extra *extras, cli_row *row);

typedef struct cli_output cli_output;

/* Takes over context (a JSON object).  Opens the JSON file, so that an unwritable one is
 * found before work starts; on failure the error has been printed. */
cli_exit cli_output_open(const cli_job *job, const cli_settings *settings, json_t *context,
                         cli_output **output_out);

/* All entries of one problem, written and flushed at once where the format allows. */
void cli_output_problem(cli_output *output, const cli_problem *problem,
                        const ew_bench_result *results, const cli_extra *extras);

/* Ends the document and frees the output.  Returns what a complete run comes to, or the
 * failure to write it. */
cli_exit cli_output_close(cli_output *output, bool complete);

/* ---- The formats; output.c calls them ------------------------------------------------ */

void cli_table_begin(const cli_job *job);
void cli_table_row(const cli_row *row);
void cli_table_end(const cli_job *job, const cli_summary *summary, bool complete);
void cli_csv_begin(void);
void cli_csv_row(const cli_row *row);
/* A problem's name and shape, and how its ranks run. */
json_t *cli_params_json(const cli_problem *problem, const cli_ranks *ranks);
json_t *cli_row_json(const cli_row *row);

/* "EMULATED 46 GB/s per rank and direction, 1 us"; of a job without one "none", or "the
 * profile's". */
void cli_emulated_link_text(double gbs, double latency_us, double header_bytes, char *text,
                            size_t bytes);
void cli_link_text(const cli_job *job, char *text, size_t bytes);

/* What makes the results others than this machine's own: `# VIRTUAL NODE: ...` when ranks
 * share a GPU, `# link : EMULATED ...` when a link is emulated. */
void cli_caveats_print(const cli_job *job, FILE *stream);

#endif
