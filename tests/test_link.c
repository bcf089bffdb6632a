/* The emulated link: what a booking means, and that a call under it is exact and takes at
 * least the time its bytes need.  A lower bound is physics; nothing here bounds speed. */
#include "faultkit.h"
#include "harness.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "backend/cpu/cpu_link.h"
#include "base/clock.h"
#include "world/world.h"

enum { MAX_W = 4 };
#define MS 1000000
#define GBPS 1.0                              /* one bit per nanosecond */
#define BYTES_OF_MS(ms) ((size_t)(ms)*MS / 8) /* that take so long at 1 Gb/s */

typedef struct net {
    ewx_control *control;
    ew_world ranks[MAX_W];
} net;

static net *net_open(double gbps, int64_t latency_ns)
{
    net *n = calloc(1, sizeof *n);
    const size_t bytes = (ewx_control_bytes(MAX_W) + 63) & ~(size_t)63;
    n->control = aligned_alloc(64, bytes);
    assert_non_null(n->control);
    memset(n->control, 0, bytes);
    for (int rank = 0; rank < MAX_W; rank++)
        n->ranks[rank] = (ew_world){.rank = rank,
                                    .num_ranks = MAX_W,
                                    .link_gbps = gbps,
                                    .link_latency_ns = latency_ns,
                                    .control = n->control};
    return n;
}

static void net_close(net *n)
{
    free(n->control);
    free(n);
}

static int64_t book(net *n, int src, int dst, int ms)
{
    return ewx_link_book(&n->ranks[src], dst, BYTES_OF_MS(ms));
}

/* Times are a second and more, so that what the test itself takes does not matter. */
static void expect_ms(int64_t from_ns, int64_t to_ns, int64_t ms)
{
    const int64_t took_ms = (to_ns - from_ns + MS / 2) / MS;
    if (took_ms < ms || took_ms > ms + 500)
        fail_msg("%lld ms instead of %lld", (long long)took_ms, (long long)ms);
}

static void a_transfer_takes_its_bytes(void **state)
{
    (void)state;
    net *n = net_open(GBPS, 0);
    const int64_t now = ewx_now_ns();
    expect_ms(now, book(n, 0, 1, 1000), 1000);
    net_close(n);
    n = net_open(GBPS * 10, 0);
    expect_ms(ewx_now_ns(), book(n, 0, 1, 20000), 2000);
    net_close(n);
}

/* 32 bytes for each 128: a quarter more. */
static void headers_take_their_share(void **state)
{
    (void)state;
    net *n = net_open(GBPS, 0);
    for (int rank = 0; rank < MAX_W; rank++)
        n->ranks[rank].link_header_bytes = 32;
    const int64_t first = book(n, 0, 1, 1000), second = book(n, 0, 1, 2000);
    assert_int_equal(second - first, (int64_t)2500 * MS);
    net_close(n);
}

static void latency_adds_once_and_occupies_nothing(void **state)
{
    (void)state;
    net *n = net_open(GBPS, (int64_t)5000 * MS);
    const int64_t now = ewx_now_ns();
    const int64_t first = book(n, 0, 1, 1000);
    const int64_t second = book(n, 0, 1, 1000);
    expect_ms(now, first, 6000);
    assert_int_equal(second - first, (int64_t)1000 * MS);
    net_close(n);
}

static void a_sender_serialises(void **state)
{
    (void)state;
    net *n = net_open(GBPS, 0);
    const int64_t first = book(n, 0, 1, 1000);
    const int64_t second = book(n, 0, 2, 1000), third = book(n, 0, 3, 2000);
    assert_int_equal(second - first, (int64_t)1000 * MS);
    assert_int_equal(third - second, (int64_t)2000 * MS);
    net_close(n);
}

static void a_receiver_serialises(void **state)
{
    (void)state;
    net *n = net_open(GBPS, 0);
    const int64_t first = book(n, 1, 0, 1000);
    const int64_t second = book(n, 2, 0, 1000), third = book(n, 3, 0, 2000);
    assert_int_equal(second - first, (int64_t)1000 * MS);
    assert_int_equal(third - second, (int64_t)2000 * MS);
    net_close(n);
}

static void directions_and_pairs_are_independent(void **state)
{
    (void)state;
    net *n = net_open(GBPS, 0);
    const int64_t now = ewx_now_ns();
    expect_ms(now, book(n, 0, 1, 2000), 2000);
    expect_ms(now, book(n, 1, 0, 2000), 2000); /* full duplex */
    expect_ms(now, book(n, 2, 3, 2000), 2000); /* other ends */
    net_close(n);
}

static void an_idle_link_saves_nothing_up(void **state)
{
    (void)state;
    net *n = net_open(GBPS, 0);
    book(n, 0, 1, 1);
    sleep_ms(20);
    expect_ms(ewx_now_ns(), book(n, 0, 1, 1000), 1000);
    net_close(n);
}

/* ---- Concurrent bookings ---- */

enum { THREADS = 4, BOOKINGS = 20000 };

typedef struct booker {
    net *net;
    int src, dst;
    int64_t ends[BOOKINGS];
} booker;

static void *book_many(void *argument)
{
    booker *b = argument;
    for (int i = 0; i < BOOKINGS; i++)
        b->ends[i] = ewx_link_book(&b->net->ranks[b->src], b->dst, BYTES_OF_MS(1));
    return NULL;
}

static int ascending(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Threads book millisecond-long transfers that share an end.  No two overlap at their
 * receiver, and together they take the time that the shared end needs for all. */
static void expect_no_overlap(bool shared_sender)
{
    net *n = net_open(GBPS, 0);
    booker *bookers = calloc(THREADS, sizeof *bookers);
    int64_t *ends = calloc(THREADS * BOOKINGS, sizeof *ends), last_ns = 0;
    pthread_t threads[THREADS];
    assert_true(bookers && ends);
    const int64_t start_ns = ewx_now_ns();
    for (int i = 0; i < THREADS; i++) {
        bookers[i].net = n;
        bookers[i].src = shared_sender ? 0 : 1 + i % 3;
        bookers[i].dst = shared_sender ? 1 + i % 3 : 0;
        assert_int_equal(pthread_create(&threads[i], NULL, book_many, &bookers[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int dst = 0; dst < MAX_W; dst++) {
        int count = 0;
        for (int i = 0; i < THREADS; i++)
            if (bookers[i].dst == dst) {
                memcpy(ends + count, bookers[i].ends, sizeof bookers[i].ends);
                count += BOOKINGS;
            }
        qsort(ends, (size_t)count, sizeof *ends, ascending);
        for (int i = 1; i < count; i++)
            if (ends[i] - ends[i - 1] < MS)
                fail_msg("transfers %d and %d to rank %d end %lld ns apart", i - 1, i, dst,
                         (long long)(ends[i] - ends[i - 1]));
        if (count > 0 && ends[count - 1] > last_ns)
            last_ns = ends[count - 1];
    }
    assert_true(last_ns - start_ns >= (int64_t)THREADS * BOOKINGS * MS);
    free(ends);
    free(bookers);
    net_close(n);
}

static void concurrent_bookings_never_overlap(void **state)
{
    (void)state;
    expect_no_overlap(true);
    expect_no_overlap(false);
}

/* ---- Calls under the link ---- */

typedef struct load {
    const char *config;
    double gbps, latency_us;
} load;

static int call_under_the_link(ew_world *world, void *argument)
{
    const load *l = argument;
    const int rank = ew_world_rank(world), num_ranks = ew_world_size(world);
    const int64_t m = 300, n = 256;
    int64_t first, mine;
    duty d;
    const ew_problem problem = EW_PROBLEM(m, n, 32, EW_FP32);
    RANK_OK(duty_open(&d, world, problem, l->config));
    RANK_OK(ew_owned_rows(m, num_ranks, rank, &first, &mine));
    for (uint32_t seed = 1; seed <= 4; seed++) {
        RANK_OK(ew_world_barrier(world)); /* nobody's bytes leave before this */
        const int64_t start_ns = ewx_now_ns();
        RANK_OK(ew_world_barrier(world));
        RANK_OK(duty_call(&d, m, seed));
        const int64_t took_ns = ewx_now_ns() - start_ns;
        const double bytes = (double)(mine * n * 4 * (num_ranks - 1));
        RANK_CHECK((double)took_ns >= bytes * 8.0 / l->gbps + l->latency_us * 1e3,
                   "%g bytes took %lld ns", bytes, (long long)took_ns);
        RANK_CHECK(duty_wrong(&d, m, seed) == 0, "seed %u", seed);
    }
    duty_close(&d);
    return 0;
}

static void calls_are_exact_and_take_their_time(void **state)
{
    static const load loads[] = {{"", 0.1, 0.0},
                                 {"order=contiguous,release=partition", 0.2, 2000.0},
                                 {"release=output,workers=2,x=2", 1.0, 500.0}};
    (void)state;
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++)
        for (size_t i = 0; i < sizeof loads / sizeof *loads; i++)
            for (int num_ranks = 2; num_ranks <= 3; num_ranks++) {
                load l = loads[i];
                ew_world_options options = EW_WORLD_OPTIONS_INIT;
                options.link_gbps = l.gbps;
                options.link_latency_us = l.latency_us;
                harness_context("kind %d, load %zu, W=%d", (int)both_kinds[kind], i,
                                num_ranks);
                harness_run_with(both_kinds[kind], num_ranks, &options, call_under_the_link,
                                 &l);
            }
}

/* The time a transfer takes is no lack of progress, even beyond the timeout. */
static int wait_for_the_link(ew_world *world, void *argument)
{
    (void)argument;
    duty d;
    const ew_problem problem = EW_PROBLEM(256, 256, 32, EW_FP32);
    RANK_OK(duty_open(&d, world, problem, ""));
    for (uint32_t seed = 1; seed <= 2; seed++) {
        RANK_OK(duty_call(&d, 256, seed));
        RANK_CHECK(duty_wrong(&d, 256, seed) == 0, "seed %u", seed);
    }
    duty_close(&d);
    return 0;
}

static void a_slow_link_is_no_timeout(void **state)
{
    (void)state;
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = 150;
    options.link_gbps = 0.002; /* 128 KiB take half a second */
    harness_run_with(EW_RANKS_AS_THREADS, 2, &options, wait_for_the_link, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_transfer_takes_its_bytes),
        cmocka_unit_test(headers_take_their_share),
        cmocka_unit_test(latency_adds_once_and_occupies_nothing),
        cmocka_unit_test(a_sender_serialises),
        cmocka_unit_test(a_receiver_serialises),
        cmocka_unit_test(directions_and_pairs_are_independent),
        cmocka_unit_test(an_idle_link_saves_nothing_up),
        cmocka_unit_test(concurrent_bookings_never_overlap),
        cmocka_unit_test(calls_are_exact_and_take_their_time),
        cmocka_unit_test(a_slow_link_is_no_timeout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
