/* A trial: one plan, a few calls on exact inputs, every bit of every result checked, and
 * nothing written outside it.  Describes itself, so that a failure can be tried again. */
#ifndef TESTS_TRIAL_H
#define TESTS_TRIAL_H

#include <stdbool.h>

#include "entwine/measure.h"
#include "harness.h"

enum { TRIAL_MAX_CALLS = 6 };

typedef struct trial {
    ew_ranks_as kind;
    int num_ranks;
    ew_problem problem;
    ew_config config;
    bool weight_per_call; /* else bound once; then B is overwritten, as a caller may */
    uint32_t seed;
    int num_calls;
    int64_t rows[TRIAL_MAX_CALLS]; /* m of each */
    const ew_world_options *options;
} trial;

/* Fails the cmocka test when any rank sees a wrong bit. */
void trial_run(const trial *trial);

/* A rank's part, for tests that start ranks themselves: argument is a trial. */
int trial_body(ew_world *world, void *argument);

/* ---- Buffers with guards, for ranks ---- */

enum { GUARD_BYTES = 128 };

typedef struct guarded {
    unsigned char *base;
    void *data; /* aligned to the element only */
    size_t bytes;
} guarded;

guarded guarded_create(size_t bytes, size_t elem_bytes);
void guarded_poison(const guarded *buffer); /* data becomes NaN in every element type */
bool guarded_intact(const guarded *buffer);
void guarded_destroy(guarded *buffer);

#endif
