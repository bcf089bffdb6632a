/* Calls without end: shapes change, plans come and go, epochs wrap in every plan, every
 * result is exact, and the ranks' memory stays what it was.
 *
 *     SOAK_CALLS=1000000 test_soak     more calls than the usual few thousand */
#include "faultkit.h"
#include "harness.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "backend/cpu/engine.h"
#include "stress.h"
#include "testing.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { USUAL_CALLS = 1000, IS_SANITIZED = 1 };
#else
enum { USUAL_CALLS = 20000, IS_SANITIZED = 0 };
#endif
enum {
    CALLS_PER_PLAN = 50,
    CALLS_BEFORE_WRAP = 20,
    W = 3,
    MOST_SAMPLES = 1000,
    MOST_GROWTH_KIB = 1 /* per 1000 calls */
};

/* One rank's memory, sampled over the run. */
typedef struct diary {
    int64_t calls; /* to make */
    int num_samples;
    double call[MOST_SAMPLES], kib[MOST_SAMPLES];
} diary;

typedef struct session {
    uint64_t seed;
    diary ranks[W];
} session;

static double resident_kib(void)
{
    long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file && fscanf(file, "%*d %ld", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return (double)pages * (double)sysconf(_SC_PAGESIZE) / 1024;
}

static void write_down(diary *d, int64_t call)
{
    if (call < d->num_samples * d->calls / MOST_SAMPLES || d->num_samples == MOST_SAMPLES)
        return;
    d->call[d->num_samples] = (double)call;
    d->kib[d->num_samples++] = resident_kib();
}

/* KiB per 1000 calls: the line of least squares through the second half, when all buffers
 * have had their largest size. */
static double slope(const diary *d)
{
    const int from = d->num_samples / 2, count = d->num_samples - from;
    double mean_call = 0, mean_kib = 0, product = 0, square = 0;
    for (int i = from; i < d->num_samples; i++) {
        mean_call += d->call[i] / count;
        mean_kib += d->kib[i] / count;
    }
    for (int i = from; i < d->num_samples; i++) {
        product += (d->call[i] - mean_call) * (d->kib[i] - mean_kib);
        square += (d->call[i] - mean_call) * (d->call[i] - mean_call);
    }
    return square > 0 ? 1000 * product / square : 0;
}

/* A plan of some shape and config, used from shortly before its epochs wrap. */
static int use_a_plan(ew_world *world, harness_random *random)
{
    static const char *const configs[] = {"", "order=contiguous", "release=partition",
                                          "block=128x128,workers=2", "release=output,x=2"};
    const ew_problem problem = EW_PROBLEM(
        harness_between(random, 1, 96), harness_between(random, 1, 300),
        harness_between(random, 1, 48), harness_between(random, 0, 1) ? EW_FP32 : EW_BF16);
    const char *config = configs[harness_between(random, 0, 4)];
    duty d;
    RANK_OK(duty_open(&d, world, problem, config));
    ewx_cpu_engine *engine = ewx_plan_state(d.plan);
    ewx_engine_set_epoch(engine, UINT32_MAX - CALLS_BEFORE_WRAP);
    RANK_OK(ew_world_barrier(world));
    for (uint32_t call = 0; call < CALLS_PER_PLAN; call++) {
        const int64_t m = harness_between(random, 0, problem.max_m);
        RANK_OK(duty_call(&d, m, call));
        RANK_CHECK(duty_wrong(&d, m, call) == 0, "m=%lld of %lldx%lldx%lld, %s, call %u",
                   (long long)m, (long long)problem.max_m, (long long)problem.n,
                   (long long)problem.k, config, call);
    }
    RANK_CHECK(engine->epoch < CALLS_PER_PLAN, "epoch %u did not wrap", engine->epoch);
    duty_close(&d);
    return 0;
}

static int call_without_end(ew_world *world, void *argument)
{
    session *s = argument;
    diary *d = &s->ranks[ew_world_rank(world)];
    harness_random random = harness_seed(s->seed); /* the same on all ranks */
    for (int64_t call = 0; call < d->calls; call += CALLS_PER_PLAN) {
        RANK_TRY(use_a_plan(world, &random));
        write_down(d, call);
    }
    return 0;
}

static void calls_without_end_are_exact_and_leave_nothing(void **state)
{
    (void)state;
    session *s = harness_share(sizeof *s);
    const int64_t calls = stress_count("SOAK_CALLS", USUAL_CALLS);
    double steepest = 0;
    s->seed = (uint64_t)stress_count("SEED", 1);
    for (int rank = 0; rank < W; rank++)
        s->ranks[rank].calls = calls;
    harness_run(EW_RANKS_AS_PROCESSES, W, call_without_end, s);
    for (int rank = 0; rank < W; rank++)
        if (slope(&s->ranks[rank]) > steepest)
            steepest = slope(&s->ranks[rank]);
    stress_tell("calls", "%lld", (long long)calls);
    stress_tell("wraps", "%lld", (long long)(calls / CALLS_PER_PLAN));
    stress_tell("kib_per_1000_calls", "%.4f", steepest);
    stress_tell("resident_kib", "[%.0f, %.0f]", s->ranks[0].kib[0],
                s->ranks[0].kib[s->ranks[0].num_samples - 1]);
    stress_figure("soak");
    if (!IS_SANITIZED) /* which keep what was freed */
        assert_true(steepest < MOST_GROWTH_KIB);
    harness_unshare(s, sizeof *s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {TIDY(calls_without_end_are_exact_and_leave_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
