/* Numbers that follow from measured ones.  Each is defined here and nowhere else: tables,
 * JSON and the report call these.  docs/EVALUATION.md says what they mean. */
#ifndef ENTWINE_CLI_DERIVED_H
#define ENTWINE_CLI_DERIVED_H

#include <stdbool.h>

#include "base/stats.h"
#include "entwine/measure.h"

/* Whether a label such as "sequential+separate" or "entwine[x=2]" is of this method. */
bool cli_method_is(const char *label, const char *method);

/* Time of the method's GEMM with nothing beside it over the time of its call.  That GEMM is
 * what `blas` runs first for `blas`, and what `sequential` runs first for all others, which
 * have its kernels.  NAN: `sequential` was not measured. */
double cli_overlap_efficiency(const char *label, double time_us, double gemm_us,
                              double sequential_gemm_us);

/* The ratio of the medians of two results of one run, with its 95 % interval: a percentile
 * bootstrap that draws whole rounds, so that a slow moment counts for both.  The draws are
 * the same in every run.  The ends are NAN where there are fewer than CLI_LEAST_SAMPLES
 * rounds. */
typedef struct cli_ratio {
    double value, low, high;
} cli_ratio;
cli_ratio cli_paired_ratio(const double *over_us, const double *under_us, int count);

/* What may be said of `ratio`, a rival's time over ours: "ahead" where the whole interval
 * is above 1, "behind" where it is below, "level" where 1 lies in it; NULL: no interval. */
const char *cli_lead_name(const cli_ratio *ratio);

/* How we stand in a field of rivals: behind if behind any of them, ahead if ahead of all.
 */
typedef struct cli_field {
    int ahead, level, behind; /* rivals of whom we are */
} cli_field;
void cli_field_add(cli_field *field, const cli_ratio *ratio);
const char *cli_field_name(const cli_field *field); /* NULL: there is no rival */

/* Parts into which an operation's output is cut, each into blocks of its own. */
int cli_num_parts(ew_op op, int num_ranks);
/* Rows of C on the rank that has most. */
int64_t cli_most_output_rows(const ew_problem *problem, int num_ranks);

/* Blocks of one rank's GEMM over the blocks that run at once; NAN: either is unknown. */
double cli_waves(int64_t m, int64_t n, int num_parts, int64_t block_m, int64_t block_n,
                 int slots);

/* GB/s of what one rank reads from its peers in `us` microseconds (Eq. 2): what a call of
 * that time achieved, or what hides all behind a GEMM of that time (Eq. 4). */
double cli_remote_gbs(const ew_problem *problem, int num_ranks, double us);

#endif
