/* A trial of ew_gemm_rs_layer on any backend: random inputs, every bit of c, h and normed
 * compared with the documented sequence, computed plainly here from the sum that ew_gemm_rs
 * gives; for every form of the epilogue. */
#ifndef TESTS_LAYER_TRIAL_H
#define TESTS_LAYER_TRIAL_H

#include "harness.h"

enum { LAYER_BIAS = 1, LAYER_RESIDUAL = 2, LAYER_NORM = 4, LAYER_C = 8 };
enum { LAYER_MAX_CALLS = 4, LAYER_ALL = LAYER_BIAS | LAYER_RESIDUAL | LAYER_NORM };

typedef struct layer_trial {
    ew_problem problem;
    const char *config;
    unsigned parts; /* LAYER_..., of the first call; each further one has another mixture */
    int num_calls;
    int64_t rows[LAYER_MAX_CALLS];
    uint64_t seed;
} layer_trial;

/* A rank's part; argument is a layer_trial.  A world may serve several. */
int layer_trial_body(ew_world *world, void *argument);

/* Whether an epilogue of these parts has a place for its result. */
static inline int layer_parts_valid(unsigned parts)
{
    return (parts & (LAYER_RESIDUAL | LAYER_NORM | LAYER_C)) != 0;
}

#endif
