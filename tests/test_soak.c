/* Calls without end: shapes change, plans come and go, epochs wrap in every plan, every
 * result is exact, and the ranks hold at the end what they held halfway: no byte of the
 * heap, shared mapping, descriptor, thread or stack more.
 *
 *     SOAK_CALLS=1000000 test_soak     more calls than the usual few thousand
 *
 * What is resident would not do: it moves in steps of malloc's and of the kernel's that are
 * larger than a small leak.  What is in use is known to the byte. */
#include "faultkit.h"
#include "harness.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "backend/cpu/cpu_engine.h"
#include "stress.h"
#include "api/testing.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { USUAL_CALLS = 1000, IS_SANITIZED = 1 };
#else
enum { USUAL_CALLS = 10000, IS_SANITIZED = 0 };
#endif
enum {
    CALLS_PER_PLAN = 50,
    CALLS_BEFORE_WRAP = 20,
    W = 3,
    /* Over half of the run, however long: libc may still set up something of its own. */
    MOST_HEAP_BYTES = 1024,
    MOST_MAPS = 16 /* glibc keeps the stacks of a few threads that have ended */
};

/* ---- What a process holds ---- */

typedef struct holdings {
    int64_t heap_bytes, shared_bytes;
    int fds, threads, maps;
} holdings;

static int64_t shared_bytes(void)
{
    char line[512], kind;
    uint64_t first, end, sum = 0;
    FILE *file = fopen("/proc/self/maps", "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %*3c%c", &first, &end, &kind) == 3 &&
            kind == 's')
            sum += end - first;
    if (file)
        fclose(file);
    return (int64_t)sum;
}

static holdings holdings_take(void)
{
    const struct mallinfo2 heap = mallinfo2();
    const census counted = census_take();
    return (holdings){.heap_bytes = (int64_t)(heap.uordblks + heap.hblkhd),
                      .shared_bytes = shared_bytes(),
                      .fds = counted.fds,
                      .threads = counted.threads,
                      .maps = counted.maps};
}

static bool holds_more(const holdings *before, const holdings *now)
{
    return now->heap_bytes > before->heap_bytes + MOST_HEAP_BYTES ||
           now->shared_bytes > before->shared_bytes || now->fds > before->fds ||
           now->threads > before->threads || now->maps > before->maps + MOST_MAPS;
}

/* Threads that have been joined leave /proc a moment later. */
static holdings holdings_settled(const holdings *before)
{
    holdings now = holdings_take();
    for (int tries = 0; tries < 100 && holds_more(before, &now); tries++) {
        sleep_ms(10);
        now = holdings_take();
    }
    return now;
}

/* malloc's caches count as in use although they are free.  Without them the count is
 * exact, and glibc reads its settings at the start of a program only. */
static void demand_exact_counts(char **arguments)
{
    static const char name[] = "GLIBC_TUNABLES",
                      exact[] = "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1";
    const char *given = getenv(name);
    if (given && !strcmp(given, exact))
        return;
    setenv(name, exact, 1);
    execv("/proc/self/exe", arguments);
    harness_fail("cannot start again with %s=%s", name, exact);
}

/* ---- The calls ---- */

typedef struct session {
    uint64_t seed;
    int64_t calls;
    holdings halfway[W], end[W];
} session;

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
    const int rank = ew_world_rank(world);
    const int64_t half = s->calls / CALLS_PER_PLAN / 2 * CALLS_PER_PLAN;
    harness_random random = harness_seed(s->seed); /* the same on all ranks */
    for (int64_t call = 0; call < s->calls; call += CALLS_PER_PLAN) {
        RANK_TRY(use_a_plan(world, &random));
        if (call == half)
            s->halfway[rank] = holdings_take();
    }
    s->end[rank] = holdings_settled(&s->halfway[rank]);
    RANK_OK(ew_world_barrier(world)); /* those that have left hold no descriptors here */
    return 0;
}

static int64_t bytes_grown(const session *s, int rank)
{
    const holdings *before = &s->halfway[rank], *now = &s->end[rank];
    return now->heap_bytes + now->shared_bytes - before->heap_bytes - before->shared_bytes;
}

static void tell_growth(const session *s)
{
    int64_t most = 0;
    for (int rank = 0; rank < W; rank++)
        if (bytes_grown(s, rank) > most)
            most = bytes_grown(s, rank);
    stress_tell("calls", "%lld", (long long)s->calls);
    stress_tell("wraps", "%lld", (long long)(s->calls / CALLS_PER_PLAN));
    stress_tell("bytes_grown", "%lld", (long long)most);
    stress_tell("kib_per_1000_calls", "%.4f",
                (double)most / 1024 / ((double)s->calls / 2 / 1000));
    stress_figure("soak");
}

static void expect_nothing_more(const holdings *before, const holdings *now, int rank)
{
    if (holds_more(before, now))
        fail_msg("rank %d holds more than halfway: heap %lld -> %lld, shared %lld -> %lld "
                 "bytes, fds %d -> %d, threads %d -> %d, maps %d -> %d",
                 rank, (long long)before->heap_bytes, (long long)now->heap_bytes,
                 (long long)before->shared_bytes, (long long)now->shared_bytes, before->fds,
                 now->fds, before->threads, now->threads, before->maps, now->maps);
}

static void calls_without_end_are_exact_and_leave_nothing(void **state)
{
    (void)state;
    session *s = harness_share(sizeof *s);
    s->seed = (uint64_t)stress_count("SEED", 1);
    s->calls = stress_count("SOAK_CALLS", USUAL_CALLS);
    harness_run(EW_RANKS_AS_PROCESSES, W, call_without_end, s);
    tell_growth(s);
    for (int rank = 0; rank < W && !IS_SANITIZED; rank++) /* which keep what was freed */
        expect_nothing_more(&s->halfway[rank], &s->end[rank], rank);
    harness_unshare(s, sizeof *s);
}

int main(int count, char **arguments)
{
    (void)count;
    demand_exact_counts(arguments);
    const struct CMUnitTest tests[] = {TIDY(calls_without_end_are_exact_and_leave_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
