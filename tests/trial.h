/* A trial: one plan, a few calls on exact inputs, every bit of every result checked, and
 * nothing written outside it.  Describes itself, so that a failure can be tried again.
 * Matrices lie in the memory of the config's backend. */
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
    /* How the plan gets its weight: with every call; as an ew_weight, which gets new values
     * now and then; or else set once.  But for the first, B is overwritten afterwards, as a
     * caller may. */
    bool weight_per_call, weight_bound;
    bool start_together; /* the calls of all ranks meet at the gate of benchmarks */
    uint32_t seed;
    int num_calls;
    int64_t rows[TRIAL_MAX_CALLS]; /* m of each */
    const ew_world_options *options;
} trial;

/* Fails the test when any rank sees a wrong bit. */
void trial_run(const trial *trial);

/* A rank's part, for tests that start ranks themselves: argument is a trial.  A world may
 * serve several, one after the other; a rank that fails aborts it. */
int trial_body(ew_world *world, void *argument);

/* Makes the trial the harness's context. */
void trial_describe(const trial *trial);

/* ---- Buffers with guards, for ranks ---- */

enum { GUARD_BYTES = 128 };

/* `data` is aligned as badly as the backend allows: to the element on the cpu, to 16 bytes
 * on a GPU. */
typedef struct guarded {
    ew_world *world;
    ew_backend backend;
    unsigned char *base;
    void *data;
    size_t bytes;
} guarded;

/* These return 0, or 1 after noting why not. */
int guarded_create(guarded *buffer, ew_world *world, ew_backend backend, size_t bytes,
                   size_t elem_bytes);
int guarded_write(const guarded *buffer, const void *from); /* all of it, from the host */
int guarded_read(const guarded *buffer, void *to);
int guarded_poison(const guarded *buffer); /* data becomes NaN in every element type */
int guarded_check(const guarded *buffer,
                  const char *name);   /* nothing outside was written */
void guarded_destroy(guarded *buffer); /* zeroed is fine */

#endif
