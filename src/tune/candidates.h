/* What the tuner varies.  A knob is one decision of a config; its values are tried one
 * knob after the other, each around the best so far.
 *
 *   knob       fields                  searched where
 *   transport  transport               a GPU's tiles are reduced beside the GEMM as they
 *                                      come: pull or push (entwine)
 *   block      block, cluster, ctas    the GEMM is ours
 *   group      group                   the GEMM is ours and walks partitions
 *   release    release                 tiles are released in groups (wavegroup)
 *   ends       first, last             as release, in launches of their own: the first and
 *                                      the last group of other sizes
 *   budget     x, b                    there is a reduction of ours: W > 1, and not NCCL's
 *   pool       pool, release, x, b     as transport, with few waves: SMs for reducers
 *                                      alone, or everything after the GEMM
 *   shots      shots                   AllReduce of more than two ranks: the form that
 *                                      would not be chosen; where it wins, calls of all m
 *                                      have it
 *
 * So of the methods, sequential, static, chunked and fused-push have block, group and
 * budget, wavegroup has release and ends besides, blas has budget alone.  What the caller
 * has set stays, and whatever cannot differ is not tried: a group or a block larger than
 * what it divides, more reducers than tiles, narrow blocks on a GPU where wide ones make so
 * many waves that a part of the last one is nothing (16). */
#ifndef EWX_TUNE_CANDIDATES_H
#define EWX_TUNE_CANDIDATES_H

#include "plan/spec.h"
#include "plan/tuning.h"

#define EWX_KNOBS 8
#define EWX_KNOB_VALUES 33 /* at most: the budgets of 1024 workers, with three batches */

typedef struct ewx_candidate_space {
    const ew_problem *problem;
    int num_ranks;
    ewx_machine machine;
    ew_config fixed;    /* fields that are set stay */
    ew_config built_in; /* every field chosen; says which knobs make sense */
} ewx_candidate_space;

bool ewx_candidate_applies(const ewx_candidate_space *space, int knob);

/* Requests like `request`, whose chosen form is `best`, with other values of the knob;
 * some may be alike, or refused.  Returns how many. */
int ewx_candidate_vary(const ewx_candidate_space *space, int knob, const ew_config *request,
                       const ew_config *best, ew_config requests[EWX_KNOB_VALUES]);

#endif
