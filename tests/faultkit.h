/* What the fault tests share: one rank's plan with exact inputs, and a census of what a
 * run could leave behind. */
#ifndef TESTS_FAULTKIT_H
#define TESTS_FAULTKIT_H

#include <stdbool.h>

#include "entwine/entwine.h"

/* ---- One rank's plan and its buffers ---- */

typedef struct duty {
    ew_world *world;
    ew_problem problem;
    ew_plan *plan;
    void *A, *B, *C;
} duty;

/* Collective.  Returns ew_plan_create's status; close it in any case. */
ew_status duty_open(duty *d, ew_world *world, ew_problem problem, const char *config);
/* One call on the exact inputs of `seed`, weight passed per call, C poisoned before. */
ew_status duty_call(duty *d, int64_t m, uint32_t seed);
/* Elements of the last call's C that are wrong. */
int64_t duty_wrong(const duty *d, int64_t m, uint32_t seed);
void duty_close(duty *d);

/* ---- Kinds of ranks ---- */

/* Loops over both kinds start here: ThreadSanitizer does not see other processes. */
#ifdef __SANITIZE_THREAD__
enum { FIRST_KIND = 1, NUM_KINDS = 2 };
#else
enum { FIRST_KIND = 0, NUM_KINDS = 2 };
#endif
static const ew_ranks_as both_kinds[NUM_KINDS] = {EW_RANKS_AS_PROCESSES,
                                                  EW_RANKS_AS_THREADS};

/* ---- Collectives ---- */

/* An all-gather of so many bytes a rank, compared one by one: 0, or a failure is noted. */
int gather_and_compare(ew_world *world, size_t bytes);

/* ---- Texts ---- */

/* Whether every one of the words, given up to a NULL, is in ew_last_error(). */
bool error_has(const char *word, ...);

/* ---- What is left behind ---- */

typedef struct census {
    int fds, threads, maps, children, shm_files;
} census;

census census_take(void);
/* Fails the cmocka test when anything but the mappings has grown.  Threads and
 * descriptors that are on their way out get a moment. */
void census_expect_same(const census *before);

/* A cmocka test that must leave the process as it found it. */
int census_before(void **state);
int census_after(void **state);
#ifdef __SANITIZE_THREAD__ /* whose runtime starts a thread of its own */
#define TIDY(test) cmocka_unit_test(test)
#else
#define TIDY(test) cmocka_unit_test_setup_teardown(test, census_before, census_after)
#endif

/* This process gets no pidfds from now on, as in containers that forbid them. */
void forbid_pidfds(void);

void sleep_ms(int64_t ms);

#endif
