/* The picture in the demo: for one rank and one order, which destination each producer
 * block served and when the rank's own tiles were reduced, on one time axis. */
#ifndef ENTWINE_CLI_DEMO_STRIP_H
#define ENTWINE_CLI_DEMO_STRIP_H

#include "run/ranks.h"

enum { CLI_STRIP_EVENTS = 256, CLI_STRIP_MAX_RANKS = 4 };

typedef struct cli_strip {
    ew_order order;
    ew_timing timing;                        /* of the rank shown, the last one */
    ew_trace_event events[CLI_STRIP_EVENTS]; /* of that rank's call */
    size_t num_events;
    int64_t wrong; /* over all ranks */
} cli_strip;

/* A shape with few enough blocks for a line of text. */
ew_problem cli_strip_problem(void);

/* Traces the quickest of a few calls.  On failure `error` (CLI_ERROR_BYTES) says why. */
ew_status cli_strip_record(const cli_ranks *ranks, int num_ranks, ew_order order,
                           cli_strip *strip_out, char *error);

double cli_strip_seconds(const cli_strip *strip);
double cli_strip_gemm_seconds(const cli_strip *strip);

/* Two lines; `axis_seconds` is what the full width stands for. */
void cli_strip_print(const cli_strip *strip, int rank, double axis_seconds);

#endif
