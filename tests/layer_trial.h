/* A trial of ew_gemm_rs_layer or ew_gemm_ar_layer on any backend: random inputs, every bit
 * of c, h and normed compared with the documented sequence, computed plainly here from the
 * sum that the bare call gives; for every form of the epilogue. */
#ifndef TESTS_LAYER_TRIAL_H
#define TESTS_LAYER_TRIAL_H

#include <stdbool.h>

#include "harness.h"

enum { LAYER_BIAS = 1, LAYER_RESIDUAL = 2, LAYER_NORM = 4, LAYER_C = 8 };
enum { LAYER_MAX_CALLS = 4, LAYER_ALL = LAYER_BIAS | LAYER_RESIDUAL | LAYER_NORM };

typedef struct layer_trial {
    ew_problem problem;
    bool all_rows; /* of the residual lie on every rank; only with EW_OP_GEMM_AR */
    const char *config;
    unsigned parts; /* LAYER_..., of the first call; each further one has another mixture */
    int num_calls;
    int64_t rows[LAYER_MAX_CALLS];
    uint64_t seed;
} layer_trial;

/* A rank's part; argument is a layer_trial.  A world may serve several. */
int layer_trial_body(ew_world *world, void *argument);

/* Whether an epilogue of these parts has a place for its result, and is one that the
 * operation takes. */
static inline bool layer_parts_valid(const layer_trial *t, unsigned parts)
{
    if (t->problem.op == EW_OP_GEMM_AR && !t->all_rows)
        return parts & LAYER_NORM ? !(parts & LAYER_C)
                                  : (parts & LAYER_C) && !(parts & LAYER_RESIDUAL);
    return (parts & (LAYER_RESIDUAL | LAYER_NORM | LAYER_C)) != 0;
}

#endif
