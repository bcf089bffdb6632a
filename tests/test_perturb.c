/* The schedule shaken: at every step of the protocol a rank may give its core away or
 * sleep for a moment, as a seed decides, and every bit of every result must be the same.
 * The operating system still has its say, so a seed repeats the decisions, not the run.
 *
 *     PERTURB_SEEDS=10000 test_perturb     more seeds than the usual handful
 *     PERTURB_SEED=17 test_perturb         only this one, a hundred times */
#include "faultkit.h"
#include "harness.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/probe.h"
#include "conformance.h"
#include "stress.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { USUAL_SEEDS = 8 };
#else
enum { USUAL_SEEDS = 40 };
#endif
enum { REPEATS = 100, CALLS = 30, LONGEST_SLEEP_NS = 1000000 };

static _Atomic uint64_t perturbations; /* of threads */

/* Nine times out of sixteen nothing happens: always disturbing all would only be a slower
 * run of the same schedule. */
static int shake(void *context, ewx_probe_point point, int rank, int64_t where)
{
    static _Thread_local uint64_t visits;
    const uint32_t *seed = context;
    harness_random random = harness_seed(*seed * 1000003u + (uint64_t)point * 10007u +
                                         (uint64_t)(rank + 2) * 77777777u +
                                         (uint64_t)where * 1299709u + ++visits * 15485863u);
    const int64_t choice = harness_between(&random, 0, 15);
    /* Facts of the agreement are bent by other tests. */
    if (point >= EWX_PROBE_TEARDOWN || choice < 9)
        return 0;
    atomic_fetch_add_explicit(&perturbations, 1, memory_order_relaxed);
    if (choice < 13)
        sched_yield();
    else
        nanosleep(
            &(struct timespec){.tv_nsec = harness_between(&random, 1, LONGEST_SLEEP_NS)},
            NULL);
    return 0;
}

typedef struct session {
    uint32_t only; /* 0: all seeds */
    uint32_t seed;
    ew_ranks_as kind;
} session;

/* Many calls in a row, each with other inputs, and mostly with fewer rows than ranks: then
 * a rank without rows may run ahead of one that is still reading. */
static int call_back_to_back(ew_world *world, void *argument)
{
    const session *s = argument;
    harness_random random = harness_seed(s->seed); /* the same m on all ranks */
    const ew_problem problem = EW_PROBLEM(64, 128, 32, EW_FP32);
    duty d;
    RANK_OK(duty_open(&d, world, problem, "block=128x512"));
    for (uint32_t call = 0; call < CALLS; call++) {
        const int64_t m = harness_between(&random, 0, 3) ? 1 : 64;
        RANK_OK(duty_call(&d, m, call));
        const int64_t wrong = duty_wrong(&d, m, call);
        if (wrong != 0)
            ew_world_abort(world); /* the others need not wait */
        RANK_CHECK(wrong == 0, "%lld wrong in call %u", (long long)wrong, call);
    }
    duty_close(&d);
    return 0;
}

static void run_shaken(void *context, const trial *given)
{
    session *s = context;
    trial t = *given;
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = 10000;
    if (s->only && t.seed != s->only)
        return;
    t.kind = s->kind;
    s->seed = t.seed;
    ewx_probe_install(shake, &s->seed);
    for (int repeat = 0; repeat < (s->only ? REPEATS : 1); repeat++) {
        trial_run(&t); /* what fails prints its seed */
        harness_context("calls in a row, seed=%u", s->seed);
        harness_run_with(s->kind, 2 + (int)(s->seed % 3), &options, call_back_to_back, s);
    }
    ewx_probe_install(NULL, NULL);
}

static void shaken_schedules(ew_ranks_as kind)
{
    session s = {.only = (uint32_t)stress_count("PERTURB_SEED", 0), .kind = kind};
    const uint32_t seeds =
        s.only ? s.only : (uint32_t)stress_count("PERTURB_SEEDS", USUAL_SEEDS);
    conformance_random(&conformance_cpu, seeds, run_shaken, &s);
    stress_tell("seeds", "%u", seeds);
    stress_figure(kind == EW_RANKS_AS_THREADS ? "schedules-of-threads"
                                              : "schedules-of-processes");
}

static void results_do_not_depend_on_the_schedule_of_threads(void **state)
{
    (void)state;
    shaken_schedules(EW_RANKS_AS_THREADS);
    assert_true(atomic_load(&perturbations) > 0);
}

#ifndef __SANITIZE_THREAD__
static void results_do_not_depend_on_the_schedule_of_processes(void **state)
{
    (void)state;
    shaken_schedules(EW_RANKS_AS_PROCESSES);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_do_not_depend_on_the_schedule_of_threads),
#ifndef __SANITIZE_THREAD__
        cmocka_unit_test(results_do_not_depend_on_the_schedule_of_processes),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
