/* Running a test's body on W ranks.  Only the parent can fail a test (cmocka's assertions
 * longjmp, a plain program exits): ranks use the RANK_ macros instead, whose first failure
 * travels to the parent through shared memory and fails the test there.
 *
 *     static int body(ew_world *world, void *argument)
 *     {
 *         RANK_OK(ew_world_barrier(world));
 *         RANK_CHECK(ew_world_size(world) == 2, "W is %d", ew_world_size(world));
 *         RANK_TRY(another_body(world, argument));
 *         return 0;
 *     }
 *     static void test(void **state)
 *     {
 *         harness_run(EW_RANKS_AS_PROCESSES, 2, body, NULL);
 *     }
 */
#ifndef TESTS_HARNESS_H
#define TESTS_HARNESS_H

#include <stddef.h>
#include <stdint.h>

#include "entwine/entwine.h"

/* In the parent: the test has failed.  harness_cmocka.c tells cmocka, gpu/harness_plain.c
 * serves a program that must do without it. */
_Noreturn __attribute__((format(printf, 1, 2))) void harness_fail(const char *format, ...);

/* In a rank (any thread of it): notes the failure unless one was noted before. */
__attribute__((format(printf, 4, 5))) void harness_note(ew_world *world, const char *file,
                                                        int line, const char *format, ...);

/* All three return 1 from the enclosing function, which must know `world` (NULL is fine).
 */
#define RANK_CHECK(condition, ...)                                                \
    do {                                                                          \
        if (!(condition)) {                                                       \
            harness_note(world, __FILE__, __LINE__, #condition ": " __VA_ARGS__); \
            return 1;                                                             \
        }                                                                         \
    } while (0)

#define RANK_OK(expression)                                                    \
    do {                                                                       \
        const ew_status rank_ok_status = (expression);                         \
        if (rank_ok_status != EW_OK) {                                         \
            harness_note(world, __FILE__, __LINE__, "%s: %s: %s", #expression, \
                         ew_status_name(rank_ok_status), ew_last_error());     \
            return 1;                                                          \
        }                                                                      \
    } while (0)

#define RANK_TRY(expression) \
    do {                     \
        if (expression)      \
            return 1;        \
    } while (0)

/* Runs `body` on num_ranks ranks and fails the test unless every rank returned 0
 * and noted nothing; the failure shows `harness_context` and the first note. */
void harness_run(ew_ranks_as kind, int num_ranks, ew_rank_main body, void *argument);
/* The call of a plan of that operation. */
ew_status harness_call(ew_op op, ew_plan *plan, int64_t m, const void *A, const void *B,
                       void *C);

void harness_run_with(ew_ranks_as kind, int num_ranks, const ew_world_options *options,
                      ew_rank_main body, void *argument);

/* The same for ranks that are expected to fail: asserts nothing but that nothing was
 * noted, and returns what ew_run_ranks did.  exits_out may be NULL. */
ew_status harness_run_failing(ew_ranks_as kind, int num_ranks,
                              const ew_world_options *options, ew_rank_main body,
                              void *argument, int *exits_out);

/* The same without failing anything: `text` receives the first note and its case, or "".
 * HARNESS_TEXT_BYTES hold any. */
enum { HARNESS_TEXT_BYTES = 1600 };
ew_status harness_try(ew_ranks_as kind, int num_ranks, const ew_world_options *options,
                      ew_rank_main body, void *argument, int *exits_out, char *text,
                      size_t bytes);

/* Asserts that a call failed as it should: with this status, a text that shows `value`
 * (NULL: any) and a line that says how to fix it.  `what` names the case. */
void harness_expect_error(ew_status status, ew_status want, const char *value,
                          const char *what);

/* What is being tried, shown when it fails: for tests that loop over cases.  A rank that
 * tries several sets its own. */
__attribute__((format(printf, 1, 2))) void harness_context(const char *format, ...);

/* Zeroed memory that ranks and parent share, whatever ranks are. */
void *harness_share(size_t bytes);
void harness_unshare(void *memory, size_t bytes);

/* A small reproducible generator (xorshift64*): any seed, also 0. */
typedef struct harness_random {
    uint64_t state;
} harness_random;
harness_random harness_seed(uint64_t seed);
uint64_t harness_next(harness_random *random);
int64_t harness_between(harness_random *random, int64_t low, int64_t high); /* inclusive */

#endif
