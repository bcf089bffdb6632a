/* Between spec.c and the two halves of its policy: what is chosen, what is refused. */
#ifndef EWX_PLAN_POLICY_H
#define EWX_PLAN_POLICY_H

#include "plan/backend_traits.h"
#include "plan/ownership.h"
#include "plan/spec.h"

#define EWX_MAX_LAUNCHES 256                  /* of reducers in one call */
#define EWX_MAX_COPIES (EWX_MAX_LAUNCHES / 2) /* of rows: a launch goes with each */

/* Tiles of the largest part; for problems that are refused later, any value. */
static inline int64_t ewx_most_part_tiles(const ew_problem *problem, int num_ranks)
{
    const int num_parts = ewx_op_of(problem)->num_parts(num_ranks);
    const int64_t rows = ewx_div_up(ewx_min64(problem->max_m, INT32_MAX), num_parts);
    return ewx_div_up(rows, EWX_TILE_M) *
           ewx_div_up(ewx_min64(problem->n, INT32_MAX), EWX_TILE_N);
}

/* Tiles of a release unit, at least, where each of a part's units is a launch and the first
 * and the last may have sizes of their own. */
static inline int64_t ewx_least_unit(const ew_config *config, int64_t part_tiles)
{
    const int ends = (config->release_first > 0) + (config->release_last > 0);
    const int64_t between = part_tiles - config->release_first - config->release_last;
    return between > 0 ? ewx_div_up(between, EWX_MAX_LAUNCHES - ends) : 1;
}

/* Panels of 128 rows that a rank has, at most; likewise. */
static inline int64_t ewx_most_panels(const ew_problem *problem, int num_ranks)
{
    return ewx_div_up(ewx_div_up(ewx_min64(problem->max_m, INT32_MAX), num_ranks),
                      EWX_TILE_M);
}

/* Chunks in which copy engines may take a rank's rows to each of the others. */
static inline int64_t ewx_most_chunks(int num_ranks)
{
    const int others = num_ranks > 1 ? num_ranks - 1 : 1;
    return others < EWX_MAX_COPIES ? EWX_MAX_COPIES / others : 1;
}

/* Reducers are launched for each release unit, so that a later one begins when one before
 * has ended. */
static inline bool ewx_reduces_by_unit(const ew_config *config)
{
    return config->launches == EW_LAUNCHES_UNIT && config->release > 0;
}

/* A GPU, or a rank that its profile says is one: the survey has filled the machine in. */
static inline bool ewx_is_gpu(const ew_config *config, const ewx_machine *machine)
{
    const ewx_traits *traits = ewx_traits_of(config->backend);
    return traits->is_gpu || (traits->simulated && machine->gpu_sms > 0);
}

/* Fills in every open field, but for the epilogue's form: that is chosen call by call. */
void ewx_config_fill(const ew_problem *problem, int num_ranks, const ewx_machine *machine,
                     ew_config *config);

/* The shots of an AllReduce of m rows: 1, every rank sums everything; 2, tiles are divided
 * among the ranks and their sums collected.  The bits are the same. */
int ewx_allreduce_shots(const ewx_spec *spec, int64_t m);
/* Whether a rank gets no more bytes in one shot: W * p contributions, less its own, against
 * a W-th of them and of the sums. */
bool ewx_one_shot_is_smaller(const ewx_spec *spec);
/* Who sums what in a call of m rows without an epilogue. */
ewx_ownership ewx_spec_ownership(const ewx_spec *spec, int64_t m);
/* sm90: whether calls of at most EWX_DECODE_ROWS rows have a GEMM of their own, where their
 * grid has one part.  Its blocks are tiles, and the bits are the same.  Rows are padded to
 * one of EWX_DECODE_SIZES. */
#define EWX_DECODE_ROWS 208
#define EWX_DECODE_SIZES                         \
    {                                            \
        8, 16, 32, 64, 128, 160, EWX_DECODE_ROWS \
    }
bool ewx_has_decode_kernel(const ewx_spec *spec);
/* Eq. 2 of a call of m rows: in one shot every rank gets every contribution, and of a tile
 * there may be several from each. */
double ewx_spec_remote_bytes(const ewx_spec *spec, int64_t m);
/* The first rank's share is the largest. */
ewx_share ewx_spec_share(const ewx_spec *spec, int64_t m, int rank);

/* Refuses what no machine of the backend can run; what this one can, its backend knows. */
ew_status ewx_config_check(const ew_problem *problem, int num_ranks,
                           const ewx_machine *machine, const ew_config *config);

#endif
