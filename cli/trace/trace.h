/* One call recorded on every rank, the numbers that follow from it, and the trace-event
 * file that Perfetto and Chrome read. */
#ifndef ENTWINE_CLI_TRACE_H
#define ENTWINE_CLI_TRACE_H

#include <jansson.h>

#include "run/job.h"

enum { CLI_TILE = 128 }; /* rows and columns of a tile */

typedef struct cli_rank_trace {
    ew_timing timing;
    int64_t wrong;
    size_t num_events;
} cli_rank_trace;

/* Shared with the ranks: each fills its own place, rank 0 what they all agree on. */
typedef struct cli_trace {
    size_t bytes; /* of the whole */
    ew_problem problem;
    int num_ranks;
    ew_config config;       /* of the traced plan, every field chosen */
    int64_t gemm_alone_ns;  /* least GEMM window of a sequential call */
    int num_parts;          /* that the blocks are of: W, or one for all ranks */
    int64_t tile_rows;      /* of the largest part */
    int64_t tile_cols;      /* across N */
    size_t events_per_rank; /* room for them */
    cli_rank_trace ranks[CLI_MAX_RANKS];
    ew_trace_event events[]; /* events_per_rank of rank 0, then of rank 1, ... */
} cli_trace;

/* Times in us, of the slowest rank unless said otherwise; bandwidths in GB/s per rank. */
typedef struct cli_trace_numbers {
    double time_us, gemm_us, tail_us; /* gemm_us: the largest of any rank */
    double gemm_alone_us;             /* of a sequential call */
    double overlap;                   /* gemm_alone_us / time_us */
    double tail_share;
    double breq, achieved; /* Eq. 4 at the rate of that GEMM; Eq. 2 / time_us */
    double slowdown;       /* gemm_us / gemm_alone_us */
    int64_t wrong;
    char config[EW_CONFIG_TEXT_BYTES];
} cli_trace_numbers;

/* Runs the job's problem and keeps the quickest of its calls.  The job is checked and its
 * first entry is traced.  On failure the error has been printed. */
cli_exit cli_trace_record(const cli_job *job, cli_trace **trace_out);
void cli_trace_free(cli_trace *trace); /* NULL is fine */

const ew_trace_event *cli_trace_events(const cli_trace *trace, int rank);
void cli_trace_derive(const cli_trace *trace, cli_trace_numbers *numbers_out);

/* The document's otherData; takes over `context`.  NULL: no memory. */
json_t *cli_trace_metadata(const cli_job *job, const cli_trace *trace,
                           const cli_trace_numbers *numbers, json_t *context);

/* The recordings that the settings name, put together and judged. */
cli_exit cli_trace_merge(const cli_settings *settings);

/* Writes the document; false: the stream has failed. */
bool cli_trace_write(const cli_trace *trace, const json_t *metadata, FILE *stream);

#endif
