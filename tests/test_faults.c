/* Ranks that die, stop, never come, disagree or leave: every other rank gets out in
 * bounded time with an error that names the one to blame, the same on all of them, and
 * nothing is left behind.  Bounds are generous: they tell an answer from a hang. */
#include "faultkit.h"
#include "harness.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "backend/cpu/engine.h"
#include "base/clock.h"
#include "base/probe.h"
#include "testing.h"

enum { MAX_W = 8 };
#ifdef __SANITIZE_ADDRESS__ /* processes are costly to fork there */
enum { KILL_ROUNDS = 1, ABORT_ROUNDS = 5 };
#else
enum { KILL_ROUNDS = 4, ABORT_ROUNDS = 20 };
#endif
#define LONG_TIMEOUT_MS 30000
#define SOON_NS 10000000000 /* well below the long timeout */

/* ---- The stage: shared by the parent, the ranks and their probes ---- */

typedef enum act { ACT_NOTHING, ACT_KILL, ACT_STOP, ACT_SLEEP, ACT_DROP, ACT_JITTER } act;

typedef struct stage {
    act act;
    ewx_probe_point point;
    int rank;      /* that acts; -1: all */
    int64_t where; /* -1: anywhere */
    int nth;       /* which time; -1: every time */
    int sleep_ms;
    atomic_int hits;
    _Atomic int64_t acted_ns;
    atomic_int finished;
    pid_t pids[MAX_W];
    /* What the ranks saw. */
    ew_status statuses[MAX_W];
    char texts[MAX_W][512];
    int64_t out_ns[MAX_W];
    /* What they are to do. */
    int64_t rows[MAX_W];
    const char *configs[MAX_W];
    ew_problem problems[MAX_W];
    uint32_t seed;
} stage;

static int act_on(void *context, ewx_probe_point point, int rank, int64_t where)
{
    stage *s = context;
    if (point != s->point || (s->rank >= 0 && rank != s->rank) ||
        (s->where >= 0 && where != s->where))
        return 0;
    const int hit = atomic_fetch_add(&s->hits, 1);
    if (s->nth >= 0 && hit != s->nth)
        return 0;
    atomic_store(&s->acted_ns, ewx_now_ns());
    if (s->act == ACT_KILL)
        raise(SIGKILL);
    if (s->act == ACT_STOP)
        kill(getpid(), SIGSTOP); /* the whole process, and now */
    if (s->act == ACT_SLEEP)
        sleep_ms(s->sleep_ms);
    if (s->act == ACT_JITTER) {
        harness_random random =
            harness_seed(s->seed + (uint64_t)hit * 1000003 + (uint64_t)rank * 101);
        sleep_ms(harness_between(&random, 0, s->sleep_ms));
    }
    return s->act == ACT_DROP;
}

static stage *stage_open(void)
{
    stage *s = harness_share(sizeof *s);
    s->rank = s->nth = -1;
    s->where = -1;
    return s;
}

static void stage_close(stage *s)
{
    harness_unshare(s, sizeof *s);
}

static ew_status stage_run(stage *s, ew_ranks_as kind, int num_ranks, uint32_t timeout_ms,
                           ew_rank_main body, int *exits)
{
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = timeout_ms;
    ewx_probe_install(act_on, s);
    const ew_status status = harness_run_failing(kind, num_ranks, &options, body, s, exits);
    ewx_probe_install(NULL, NULL);
    return status;
}

/* A rank's last words. */
static int tell(stage *s, ew_world *world, ew_status status)
{
    const int rank = ew_world_rank(world);
    s->statuses[rank] = status;
    s->out_ns[rank] = ewx_now_ns();
    snprintf(s->texts[rank], sizeof s->texts[rank], "%s", ew_last_error());
    atomic_fetch_add(&s->finished, 1);
    return status == EW_OK ? 0 : 3;
}

static void wait_until_finished(stage *s, int count)
{
    for (int tries = 0; tries < 5000 && atomic_load(&s->finished) < count; tries++)
        sleep_ms(2);
}

static void expect_story(const stage *s, int rank, ew_status status, const char *text)
{
    if (s->statuses[rank] != status || !strstr(s->texts[rank], text))
        fail_msg("rank %d got %s, \"%s\"; wanted %s with \"%s\"", rank,
                 ew_status_name(s->statuses[rank]), s->texts[rank], ew_status_name(status),
                 text);
}

/* All ranks but `except` tell the same story. */
static void expect_same_story(const stage *s, int num_ranks, int except, ew_status status,
                              const char *text)
{
    const int first = except == 0 ? 1 : 0;
    for (int rank = 0; rank < num_ranks; rank++) {
        if (rank == except)
            continue;
        expect_story(s, rank, status, text);
        assert_string_equal(s->texts[rank], s->texts[first]);
    }
}

static void expect_world_still_works(void);

/* ---- Work until something happens ---- */

static int work_on(ew_world *world, stage *s, int64_t m, const char *config, int calls)
{
    duty d;
    const ew_problem problem = EW_PROBLEM(128, 512, 64, EW_FP32);
    ew_status status = duty_open(&d, world, problem, config);
    for (int call = 0; status == EW_OK && call < calls; call++) {
        status = duty_call(&d, m, (uint32_t)call);
        RANK_CHECK(status != EW_OK || duty_wrong(&d, m, (uint32_t)call) == 0, "call %d",
                   call);
    }
    const int code = tell(s, world, status);
    if (status != EW_OK && d.plan) {
        /* The plan is of no more use, and says so at once and with the same words. */
        RANK_CHECK(duty_call(&d, m, 0) == status, "%s", ew_last_error());
        RANK_CHECK(strcmp(s->texts[ew_world_rank(world)], ew_last_error()) == 0, "%s",
                   ew_last_error());
        RANK_CHECK(ew_plan_wait(d.plan) == status, "%s", ew_last_error());
        RANK_CHECK(ew_world_barrier(world) == status, "%s", ew_last_error());
    }
    duty_close(&d);
    return code;
}

static int work_for_ever(ew_world *world, void *argument)
{
    stage *s = argument;
    s->pids[ew_world_rank(world)] = getpid();
    return work_on(world, s, 100, s->configs[0] ? s->configs[0] : "", 1000000);
}

/* Two calls, then everyone tears down and meets once more. */
static int work_and_part(ew_world *world, void *argument)
{
    stage *s = argument;
    duty d;
    const ew_problem problem = EW_PROBLEM(128, 512, 64, EW_FP32);
    ew_status status = duty_open(&d, world, problem, "");
    for (uint32_t call = 0; status == EW_OK && call < 2; call++)
        status = duty_call(&d, 100, call);
    duty_close(&d);
    if (status == EW_OK)
        status = ew_world_barrier(world);
    return tell(s, world, status);
}

/* ---- Killed ---- */

static void expect_killed(int num_ranks, ewx_probe_point point, int victim, int nth)
{
    stage *s = stage_open();
    int exits[MAX_W];
    char text[32];
    s->act = ACT_KILL;
    s->point = point;
    s->rank = victim;
    s->nth = nth;
    harness_context("W=%d, point %d, victim %d, time %d", num_ranks, (int)point, victim,
                    nth);
    const ew_status status =
        stage_run(s, EW_RANKS_AS_PROCESSES, num_ranks, LONG_TIMEOUT_MS,
                  point == EWX_PROBE_TEARDOWN ? work_and_part : work_for_ever, exits);
    assert_int_equal(status, EW_ERR_PEER_DIED);
    snprintf(text, sizeof text, "rank %d ", victim);
    assert_true(error_has(text, NULL));
    assert_true(ewx_now_ns() - s->acted_ns < SOON_NS);
    assert_int_equal(exits[victim], 128 + SIGKILL);
    for (int rank = 0; rank < num_ranks && point != EWX_PROBE_BOOTSTRAP; rank++)
        if (rank != victim) {
            assert_int_equal(exits[rank], 3); /* it went by itself */
            assert_true(s->out_ns[rank] - s->acted_ns < SOON_NS);
        }
    snprintf(text, sizeof text, "rank %d died", victim);
    if (point != EWX_PROBE_BOOTSTRAP)
        expect_same_story(s, num_ranks, victim, EW_ERR_PEER_DIED, "");
    for (int rank = 0; rank < num_ranks && point != EWX_PROBE_BOOTSTRAP; rank++)
        if (rank != victim)
            expect_story(s, rank, EW_ERR_PEER_DIED, text);
    stage_close(s);
}

static void killed_in_every_phase(void **state)
{
    static const ewx_probe_point points[] = {EWX_PROBE_BOOTSTRAP, EWX_PROBE_BLOCK,
                                             EWX_PROBE_PUBLISH, EWX_PROBE_REDUCE,
                                             EWX_PROBE_TEARDOWN};
    harness_random random = harness_seed(1);
    (void)state;
    for (int num_ranks = 2; num_ranks <= 8; num_ranks *= 2)
        for (size_t i = 0; i < sizeof points / sizeof *points; i++)
            for (int round = 0; round < KILL_ROUNDS; round++) {
                const bool once =
                    points[i] == EWX_PROBE_BOOTSTRAP || points[i] == EWX_PROBE_TEARDOWN;
                expect_killed(num_ranks, points[i],
                              (int)harness_between(&random, 0, num_ranks - 1),
                              once ? 0 : (int)harness_between(&random, 0, 30));
            }
    expect_world_still_works();
}

/* Others that are slow to arrive did not die. */
static int delay_all_but_one(void *context, ewx_probe_point point, int rank, int64_t where)
{
    (void)context;
    (void)where;
    if (point == EWX_PROBE_BOOTSTRAP && rank == 1)
        raise(SIGKILL);
    if (point == EWX_PROBE_BOOTSTRAP)
        sleep_ms(300);
    return 0;
}

static void death_at_bootstrap_names_the_dead(void **state)
{
    (void)state;
    stage *s = stage_open();
    ewx_probe_install(delay_all_but_one, NULL);
    const ew_status status =
        ew_run_ranks(EW_RANKS_AS_PROCESSES, 4, NULL, work_for_ever, s, NULL);
    ewx_probe_install(NULL, NULL);
    assert_int_equal(status, EW_ERR_PEER_DIED);
    if (!error_has("rank 1 died before joining", NULL))
        fail_msg("%s", ew_last_error());
    stage_close(s);
}

/* ---- Never arrives ---- */

static int two_do_not_come(void *context, ewx_probe_point point, int rank, int64_t where)
{
    (void)context;
    (void)where;
    if (point == EWX_PROBE_BOOTSTRAP && (rank == 1 || rank == 3))
        sleep_ms(120000);
    return 0;
}

static void missing_ranks_are_listed(void **state)
{
    (void)state;
    stage *s = stage_open();
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = 400;
    const int64_t start_ns = ewx_now_ns();
    ewx_probe_install(two_do_not_come, NULL);
    const ew_status status =
        ew_run_ranks(EW_RANKS_AS_PROCESSES, 4, &options, work_for_ever, s, NULL);
    ewx_probe_install(NULL, NULL);
    assert_int_equal(status, EW_ERR_TIMEOUT);
    assert_true(error_has("rank 1 3 did not arrive in 0.4 s", "fix:", NULL));
    assert_true(ewx_now_ns() - start_ns < SOON_NS);
    stage_close(s);
}

/* ---- Stopped ---- */

static int work_until_a_rank_stops(ew_world *world, void *argument)
{
    stage *s = argument;
    const int code = work_for_ever(world, argument);
    if (ew_world_rank(world) == s->rank)
        return code;
    /* When all others are out the stopped one is woken, and has to hear it too. */
    wait_until_finished(s, ew_world_size(world) - 1);
    kill(s->pids[s->rank], SIGCONT);
    return code;
}

static void expect_stopped(int num_ranks, ewx_probe_point point, int victim, int nth)
{
    stage *s = stage_open();
    int exits[MAX_W];
    char text[32];
    s->act = ACT_STOP;
    s->point = point;
    s->rank = victim;
    s->nth = nth;
    harness_context("W=%d, point %d, victim %d, time %d", num_ranks, (int)point, victim,
                    nth);
    const ew_status status =
        stage_run(s, EW_RANKS_AS_PROCESSES, num_ranks, 500, work_until_a_rank_stops, exits);
    assert_int_not_equal(status, EW_OK);
    snprintf(text, sizeof text, "of rank %d (", victim);
    expect_same_story(s, num_ranks, -1, EW_ERR_TIMEOUT, text);
    for (int rank = 0; rank < num_ranks; rank++) {
        const int64_t took_ns = s->out_ns[rank] - s->acted_ns;
        assert_int_equal(exits[rank], 3);
        assert_true(strstr(s->texts[rank], "tile (") && strstr(s->texts[rank], "epoch"));
        assert_true(took_ns >= 450000000 && took_ns < SOON_NS);
    }
    stage_close(s);
}

static void stopped_ranks_time_out(void **state)
{
    (void)state;
    static const ewx_probe_point points[] = {EWX_PROBE_BLOCK, EWX_PROBE_PUBLISH,
                                             EWX_PROBE_REDUCE};
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        expect_stopped(2, points[i], 1, 5);
        expect_stopped(4, points[i], 2, 3);
        expect_stopped(8, points[i], 0, 0);
    }
    expect_world_still_works();
}

/* Rank 2 stops while it still owes rank 1 a tile.  Rank 0 has all of its own, goes on to
 * the next call and waits there for rank 1, which is innocent: it has only been slow
 * with its first reduction, so that its wait for rank 2 began after rank 0's for it. */
static int stop_two_delay_one(void *context, ewx_probe_point point, int rank, int64_t where)
{
    stage *s = context;
    if (point == EWX_PROBE_PUBLISH && rank == 2 && where == 5) { /* rank 1's second tile */
        atomic_store(&s->acted_ns, ewx_now_ns());
        kill(getpid(), SIGSTOP);
    }
    if (point == EWX_PROBE_REDUCE && rank == 1 && where == 0)
        sleep_ms(300);
    return 0;
}

static void an_innocent_waiter_is_not_blamed(void **state)
{
    (void)state;
    stage *s = stage_open();
    s->rank = 2;
    s->configs[0] = "order=contiguous";
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = 500;
    ewx_probe_install(stop_two_delay_one, s);
    const ew_status status = harness_run_failing(EW_RANKS_AS_PROCESSES, 3, &options,
                                                 work_until_a_rank_stops, s, NULL);
    ewx_probe_install(NULL, NULL);
    assert_int_not_equal(status, EW_OK);
    expect_same_story(s, 3, -1, EW_ERR_TIMEOUT, "of rank 2 (");
    stage_close(s);
}

/* ---- Aborted ---- */

static ew_world *to_abort; /* by the signal handler of this process */

static void abort_on_signal(int signal_number)
{
    (void)signal_number;
    ew_world_abort(to_abort);
}

typedef struct aborter {
    stage *stage;
    ew_world *world;
    int after_ms;
} aborter;

static void *abort_later(void *argument)
{
    const aborter *a = argument;
    sleep_ms(a->after_ms);
    atomic_store(&a->stage->acted_ns, ewx_now_ns());
    ew_world_abort(a->world);
    return NULL;
}

static int work_until_aborted(ew_world *world, void *argument)
{
    stage *s = argument;
    aborter a = {s, world, s->sleep_ms};
    pthread_t thread;
    if (ew_world_rank(world) != s->rank)
        return work_for_ever(world, argument);
    RANK_CHECK(pthread_create(&thread, NULL, abort_later, &a) == 0, "no thread");
    const int code = work_for_ever(world, argument);
    pthread_join(thread, NULL);
    return code;
}

static int work_until_signalled(ew_world *world, void *argument)
{
    stage *s = argument;
    if (ew_world_rank(world) == s->rank) {
        to_abort = world;
        signal(SIGALRM, abort_on_signal);
        atomic_store(&s->acted_ns, ewx_now_ns());
        setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {0, 1 + s->sleep_ms * 1000}},
                  NULL);
    }
    return work_for_ever(world, argument);
}

/* The aborting rank makes no calls, so the others sit in a wait. */
static int abort_without_working(ew_world *world, void *argument)
{
    stage *s = argument;
    if (ew_world_rank(world) != s->rank)
        return work_for_ever(world, argument);
    duty d;
    const ew_problem problem = EW_PROBLEM(128, 512, 64, EW_FP32);
    RANK_OK(duty_open(&d, world, problem, ""));
    sleep_ms(s->sleep_ms);
    atomic_store(&s->acted_ns, ewx_now_ns());
    ew_world_abort(world);
    wait_until_finished(s, ew_world_size(world) - 1);
    const int code = tell(s, world, ew_plan_wait(d.plan));
    duty_close(&d);
    return code;
}

static void expect_aborted(ew_ranks_as kind, int num_ranks, ew_rank_main body,
                           harness_random *random)
{
    stage *s = stage_open();
    char text[64];
    s->rank = (int)harness_between(random, 0, num_ranks - 1);
    s->sleep_ms = (int)harness_between(random, 0, 30);
    harness_context("kind %d, W=%d, rank %d after %d ms", (int)kind, num_ranks, s->rank,
                    s->sleep_ms);
    const ew_status status = stage_run(s, kind, num_ranks, LONG_TIMEOUT_MS, body, NULL);
    assert_int_equal(status, EW_ERR_ABORTED);
    snprintf(text, sizeof text, "rank %d aborted the world", s->rank);
    expect_same_story(s, num_ranks, -1, EW_ERR_ABORTED, text);
    for (int rank = 0; rank < num_ranks; rank++)
        assert_true(s->out_ns[rank] - s->acted_ns < SOON_NS);
    stage_close(s);
}

static void aborts_reach_waiting_ranks(void **state)
{
    (void)state;
    harness_random random = harness_seed(2);
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++)
        for (int round = 0; round < 5; round++)
            expect_aborted(both_kinds[kind], 4, abort_without_working, &random);
}

static void aborts_reach_working_ranks(void **state)
{
    (void)state;
    harness_random random = harness_seed(3);
    for (int round = 0; round < ABORT_ROUNDS; round++) {
        expect_aborted(EW_RANKS_AS_PROCESSES, 3, work_until_aborted, &random);
        expect_aborted(EW_RANKS_AS_THREADS, 3, work_until_aborted, &random);
        expect_aborted(EW_RANKS_AS_PROCESSES, 3, work_until_signalled, &random);
    }
    expect_world_still_works();
}

/* ---- Lost, late and reordered publications ---- */

enum { DROP_W = 3, DROP_TILES = 4 };

static int one_call(ew_world *world, void *argument)
{
    stage *s = argument;
    duty d;
    const ew_problem problem = EW_PROBLEM(48, 128 * DROP_TILES, 32, EW_FP32);
    RANK_OK(duty_open(&d, world, problem, ""));
    ew_status status = duty_call(&d, 48, 1);
    /* Those that miss nothing only listen, so that they start no wait of their own. */
    for (int tries = 0; status == EW_OK && tries < 5000; tries++) {
        sleep_ms(1);
        status = ew_plan_wait(d.plan);
    }
    const int code = tell(s, world, status);
    duty_close(&d);
    return code;
}

static void every_lost_publication_is_named(void **state)
{
    (void)state;
    for (int src = 0; src < DROP_W; src++)
        for (int slot = 0; slot < DROP_W * DROP_TILES; slot++) {
            stage *s = stage_open();
            char text[128];
            const int owner = slot / DROP_TILES;
            s->act = ACT_DROP;
            s->point = EWX_PROBE_PUBLISH;
            s->rank = src;
            s->where = slot;
            s->nth = 0;
            harness_context("slot %d of rank %d", slot, src);
            assert_int_not_equal(
                stage_run(s, both_kinds[slot % 2], DROP_W, 120, one_call, NULL), EW_OK);
            snprintf(text, sizeof text,
                     "rank %d waited 0.12 s for tile (0,%d) of rank %d (saw epoch 0, "
                     "wanted 1)",
                     owner, slot % DROP_TILES, src);
            expect_same_story(s, DROP_W, -1, EW_ERR_TIMEOUT, text);
            stage_close(s);
        }
}

static int ten_calls(ew_world *world, void *argument)
{
    static const char *const configs[] = {
        "workers=2,x=2,block=128x128", "workers=2,x=1,order=contiguous",
        "workers=2,x=1,pool=static", "release=partition", "release=output,x=3"};
    stage *s = argument;
    return work_on(world, s, 100, configs[s->seed % 5], 10);
}

static void late_and_reordered_publications_are_exact(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 15; seed++)
        for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++) {
            stage *s = stage_open();
            s->act = ACT_JITTER;
            s->point = seed % 3 == 0   ? EWX_PROBE_BLOCK
                       : seed % 3 == 1 ? EWX_PROBE_PUBLISH
                                       : EWX_PROBE_REDUCE;
            s->sleep_ms = 4;
            s->seed = seed;
            harness_context("seed %u, kind %d", seed, (int)both_kinds[kind]);
            assert_int_equal(
                stage_run(s, both_kinds[kind], 3, LONG_TIMEOUT_MS, ten_calls, NULL), EW_OK);
            stage_close(s);
        }
}

/* ---- Slow is not dead: the timeout counts from a rank's last progress ---- */

static int three_slow_calls(ew_world *world, void *argument)
{
    stage *s = argument;
    return work_on(world, s, s->rows[0], s->configs[0], 3);
}

static void expect_patience(ewx_probe_point point, int rank, int64_t rows,
                            const char *config)
{
    stage *s = stage_open();
    s->act = ACT_SLEEP;
    s->point = point;
    s->rank = rank;
    s->sleep_ms = 150;
    s->rows[0] = rows;
    s->configs[0] = config;
    harness_context("point %d, m=%d, %s", (int)point, (int)rows, config);
    const ew_status status =
        stage_run(s, EW_RANKS_AS_PROCESSES, 2, 400, three_slow_calls, NULL);
    if (status != EW_OK)
        fail_msg("%s m=%d: \"%s\" / \"%s\"", config, (int)rows, s->texts[0], s->texts[1]);
    stage_close(s);
}

static void a_slow_producer_is_waited_for(void **state)
{
    (void)state;
    expect_patience(EWX_PROBE_BLOCK, 1, 128, "block=128x128");
}

static void a_slow_reducer_is_waited_for(void **state)
{
    (void)state;
    expect_patience(EWX_PROBE_REDUCE, 1, 128, "release=output");
}

/* Rank 1 owns nothing and waits only for its slices to be free again. */
static void a_slow_reader_is_waited_for(void **state)
{
    (void)state;
    expect_patience(EWX_PROBE_BLOCK, 0, 1, "block=128x128");
}

/* Rank 0's reducer is done when its own partition is, long before the GEMM. */
static void an_idle_reducer_is_patient(void **state)
{
    (void)state;
    expect_patience(EWX_PROBE_BLOCK, -1, 128,
                    "block=128x128,order=contiguous,pool=static,workers=2,x=1");
}

/* ---- Peers that write nonsense ---- */

static ewx_cpu_engine *own_engine; /* of this process's rank */

static void scribble(harness_random *random, ewx_cpu_engine *engine)
{
    const int rank = engine->world->rank;
    ewx_segment_header *header = ewx_heap_header(&engine->heap, rank);
    const uint32_t epoch = (uint32_t)harness_next(random);
    const int64_t slot = harness_between(random, 0, engine->spec->layout.num_slots - 1);
    switch (harness_between(random, 0, 4)) {
    case 0:
        atomic_store(&header->done, epoch);
        break;
    case 1:
        atomic_store(&header->progress, epoch);
        break;
    case 2:
        atomic_store(&header->calls[epoch & 1].epoch, epoch);
        break;
    case 3:
        header->calls[epoch & 1].rows = (int64_t)harness_next(random);
        break;
    default:
        atomic_store(&ewx_heap_flag(&engine->heap, rank, slot)->epoch, epoch);
    }
}

static void *scribble_on(void *argument)
{
    stage *s = argument;
    harness_random random = harness_seed(s->seed);
    for (int i = 0; i < 100000 && !atomic_load(&s->finished); i++) {
        scribble(&random, own_engine);
        if (i % 16 == 0)
            usleep(20);
    }
    return NULL;
}

/* Any result will do, but there has to be one: the alarm ends a rank that hangs. */
static int work_beside_a_scribbler(ew_world *world, void *argument)
{
    stage *s = argument;
    duty d;
    pthread_t thread;
    const ew_problem problem = EW_PROBLEM(128, 512, 64, EW_FP32);
    RANK_OK(duty_open(&d, world, problem, ""));
    RANK_OK(ew_world_barrier(world));
    alarm(15);
    own_engine = ewx_plan_state(d.plan);
    if (ew_world_rank(world) == 1)
        RANK_CHECK(pthread_create(&thread, NULL, scribble_on, s) == 0, "no thread");
    ew_status status = EW_OK;
    for (uint32_t call = 0; status == EW_OK && call < 300; call++)
        status = duty_call(&d, 100, call);
    atomic_store(&s->finished, 1);
    if (ew_world_rank(world) == 1)
        pthread_join(thread, NULL);
    duty_close(&d);
    return 0;
}

static void nonsense_from_a_peer_crashes_nobody(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 10; seed++) {
        stage *s = stage_open();
        int exits[2];
        s->seed = seed;
        harness_context("seed %u", seed);
        stage_run(s, EW_RANKS_AS_PROCESSES, 2, 200, work_beside_a_scribbler, exits);
        for (int rank = 0; rank < 2; rank++)
            if (exits[rank] != 0)
                fail_msg("seed %u: rank %d ended with %d", seed, rank, exits[rank]);
        stage_close(s);
    }
}

/* Rank 1 publishes everything but says that it is in another call: rank 0 must not wait
 * for ever for what it already has. */
static int lie_about_the_call(void *context, ewx_probe_point point, int rank, int64_t where)
{
    (void)context;
    (void)where;
    if (point == EWX_PROBE_BLOCK && rank == 0)
        sleep_ms(50);
    if (point == EWX_PROBE_BLOCK && rank == 1)
        for (int parity = 0; parity < 2; parity++)
            atomic_store(&ewx_heap_header(&own_engine->heap, 1)->calls[parity].epoch,
                         12345);
    return 0;
}

static int call_a_liar(ew_world *world, void *argument)
{
    stage *s = argument;
    duty d;
    const ew_problem problem = EW_PROBLEM(128, 512, 64, EW_FP32);
    RANK_OK(duty_open(&d, world, problem, ""));
    RANK_OK(ew_world_barrier(world));
    alarm(15);
    own_engine = ewx_plan_state(d.plan);
    ewx_probe_install(lie_about_the_call, s);
    ew_status status = duty_call(&d, 100, 1);
    for (int tries = 0; status == EW_OK && tries < 5000; tries++) {
        sleep_ms(1);
        status = ew_plan_wait(d.plan);
    }
    const int code = tell(s, world, status);
    duty_close(&d);
    return code;
}

static void a_lying_peer_hangs_nobody(void **state)
{
    (void)state;
    stage *s = stage_open();
    int exits[2];
    stage_run(s, EW_RANKS_AS_PROCESSES, 2, 300, call_a_liar, exits);
    for (int rank = 0; rank < 2; rank++)
        if (exits[rank] != 3)
            fail_msg("rank %d ended with %d (142: by its alarm)", rank, exits[rank]);
    expect_same_story(s, 2, -1, EW_ERR_TIMEOUT, "of rank 1 (");
    stage_close(s);
}

/* ---- Left early ---- */

static int leave_early(ew_world *world, void *argument)
{
    stage *s = argument;
    const bool leaves = ew_world_rank(world) == 1;
    const int code = work_on(world, s, 100, "", leaves ? 2 : 1000000);
    return leaves ? 0 : code;
}

static int meet_without_one(ew_world *world, void *argument)
{
    stage *s = argument;
    if (ew_world_rank(world) == 1)
        return 0;
    return tell(s, world, ew_world_barrier(world));
}

static void leaving_early_is_named(void **state)
{
    (void)state;
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++)
        for (int meeting = 0; meeting < 2; meeting++) {
            stage *s = stage_open();
            harness_context("kind %d, meeting %d", (int)both_kinds[kind], meeting);
            stage_run(s, both_kinds[kind], 3, LONG_TIMEOUT_MS,
                      meeting ? meet_without_one : leave_early, NULL);
            expect_same_story(s, 3, 1, EW_ERR_PEER_DIED, "rank 1 left the world");
            stage_close(s);
        }
}

/* ---- Ranks that disagree ---- */

static int call_with_own_rows(ew_world *world, void *argument)
{
    stage *s = argument;
    duty d;
    const ew_problem problem = EW_PROBLEM(64, 200, 16, EW_FP32);
    ew_status status = duty_open(&d, world, problem, "");
    for (int call = 0; status == EW_OK && call < 5; call++)
        status = duty_call(&d, s->rows[ew_world_rank(world)], 1);
    const int code = tell(s, world, status);
    duty_close(&d);
    return code;
}

static void different_rows_are_refused(void **state)
{
    static const struct {
        int num_ranks;
        int64_t rows[3];
        const char *one, *other;
    } cases[] = {{2, {5, 7}, "m=5", "m=7"},     {3, {6, 6, 64}, "m=6", "m=64"},
                 {3, {8, 0, 8}, "m=8", "m=0"},  {2, {1, 0}, "m=1", "m=0"},
                 {2, {0, 64}, "m=0", "m=64"},   {3, {64, 63, 64}, "m=63", "m=64"},
                 {3, {0, 0, 64}, "m=0", "m=64"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++) {
            stage *s = stage_open();
            memcpy(s->rows, cases[i].rows, sizeof cases[i].rows);
            harness_context("case %zu, kind %d", i, (int)both_kinds[kind]);
            const int64_t start_ns = ewx_now_ns();
            stage_run(s, both_kinds[kind], cases[i].num_ranks, LONG_TIMEOUT_MS,
                      call_with_own_rows, NULL);
            expect_same_story(s, cases[i].num_ranks, -1, EW_ERR_MISMATCH, cases[i].one);
            expect_same_story(s, cases[i].num_ranks, -1, EW_ERR_MISMATCH, cases[i].other);
            assert_true(ewx_now_ns() - start_ns < SOON_NS);
            stage_close(s);
        }
}

/* Creates as told, which must fail; then all agree, which must work. */
static int create_then_agree(ew_world *world, void *argument)
{
    stage *s = argument;
    const int rank = ew_world_rank(world);
    duty d;
    tell(s, world, duty_open(&d, world, s->problems[rank], s->configs[rank]));
    RANK_CHECK(!d.plan, "a plan that ranks disagree on was made");
    duty_close(&d);
    const ew_problem problem = EW_PROBLEM(64, 200, 16, EW_FP32);
    RANK_OK(duty_open(&d, world, problem, ""));
    RANK_OK(duty_call(&d, 64, 1));
    RANK_CHECK(duty_wrong(&d, 64, 1) == 0, "after a refused plan");
    duty_close(&d);
    return 0;
}

static void expect_refused(const ew_problem *problems, const char *const *configs,
                           const char *one, const char *other)
{
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++) {
        stage *s = stage_open();
        for (int rank = 0; rank < 3; rank++) { /* rank 1 is the odd one */
            s->problems[rank] = problems[rank == 1];
            s->configs[rank] = configs[rank == 1];
        }
        char mine[96], theirs[96];
        snprintf(mine, sizeof mine, "rank 0 has %s", one);
        snprintf(theirs, sizeof theirs, "rank 1 has %s", other);
        harness_context("%s against %s", one, other);
        assert_int_equal(
            stage_run(s, both_kinds[kind], 3, LONG_TIMEOUT_MS, create_then_agree, NULL),
            EW_OK);
        for (int rank = 0; rank < 3; rank++) {
            expect_story(s, rank, EW_ERR_MISMATCH, theirs);
            if (rank < 2)
                expect_story(s, rank, EW_ERR_MISMATCH, mine);
        }
        stage_close(s);
    }
}

static void different_problems_are_refused(void **state)
{
    (void)state;
    const ew_problem base = EW_PROBLEM(64, 200, 16, EW_FP32);
    static const char *const same[2] = {"", ""};
    ew_problem problems[2] = {base, base};
    problems[1].n = 201;
    expect_refused(problems, same, "N=200", "N=201");
    problems[1] = base;
    problems[1].k = 15;
    expect_refused(problems, same, "K=16", "K=15");
    problems[1] = base;
    problems[1].max_m = 65;
    expect_refused(problems, same, "M=64", "M=65");
    problems[1] = base;
    problems[1].dtype = EW_BF16;
    expect_refused(problems, same, "type=fp32", "type=bf16");
    problems[1] = base;
    problems[1].weight_layout = EW_WEIGHT_KN;
    expect_refused(problems, same, "weight=nk", "weight=kn");
}

/* Every key of the config, said differently by rank 1. */
static const char *const config_pairs[][2] = {
    {"block=128x256", "block=256x256"},
    {"block=128x256", "block=128x128"},
    {"order=interleaved", "order=contiguous"},
    {"order=default", "order=interleaved"},
    {"group=1", "group=2"},
    {"release=tile", "release=partition"},
    {"release=2", "release=output"},
    {"x=1", "x=2"},
    {"b=1", "b=3"},
    {"workers=1", "workers=2"},
};

static void different_configs_are_refused(void **state)
{
    (void)state;
    const ew_problem base = EW_PROBLEM(64, 200, 16, EW_FP32);
    const ew_problem problems[2] = {base, base};
    for (size_t i = 0; i < sizeof config_pairs / sizeof *config_pairs; i++)
        expect_refused(problems, config_pairs[i], config_pairs[i][0], config_pairs[i][1]);
    static const char *const pools[] = {"x=1,workers=2,pool=shared",
                                        "x=1,workers=2,pool=static"};
    expect_refused(problems, pools, "pool=shared", "pool=static");
}

/* A key that only one rank set: the other's half of the message is about the same key. */
static void configs_with_more_keys_are_refused(void **state)
{
    (void)state;
    const ew_problem base = EW_PROBLEM(64, 200, 16, EW_FP32);
    const ew_problem problems[2] = {base, base};
    static const char *const first[] = {"b=3", "x=2,b=3"}, *const last[] = {"", "b=3"},
                             *const middle[] = {"order=default,b=3",
                                                "order=default,x=2,b=3"};
    expect_refused(problems, first, "x=", "x=2");
    expect_refused(problems, middle, "x=", "x=2");
    expect_refused(problems, last, "b=", "b=3");
}

/* One rank asks for what it cannot have: the others are told, and nobody waits. */
static int create_as_told(ew_world *world, void *argument)
{
    stage *s = argument;
    const int rank = ew_world_rank(world);
    duty d;
    tell(s, world, duty_open(&d, world, s->problems[rank], s->configs[rank]));
    RANK_CHECK(!d.plan, "a plan that one rank cannot have was made");
    duty_close(&d);
    RANK_OK(ew_world_barrier(world));
    return 0;
}

static void one_rank_that_cannot_stops_all(void **state)
{
    static const char *const odd[] = {"backend=cuda", "transport=push",
                                      "pool=static,x=2,workers=2"};
    (void)state;
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        stage *s = stage_open();
        for (int rank = 0; rank < 3; rank++) {
            s->problems[rank] = (ew_problem)EW_PROBLEM(64, 200, 16, EW_FP32);
            s->configs[rank] = rank == 1 ? odd[i] : "";
        }
        const int64_t start_ns = ewx_now_ns();
        harness_context("%s", odd[i]);
        assert_int_equal(
            stage_run(s, EW_RANKS_AS_PROCESSES, 3, LONG_TIMEOUT_MS, create_as_told, NULL),
            EW_OK);
        assert_true(ewx_now_ns() - start_ns < SOON_NS);
        assert_int_equal(s->statuses[0], EW_ERR_MISMATCH);
        assert_int_equal(s->statuses[2], EW_ERR_MISMATCH);
        expect_story(s, 1, i < 2 ? EW_ERR_UNSUPPORTED : EW_ERR_CONFIG, "fix:");
        stage_close(s);
    }
}

/* ---- Afterwards ---- */

static int good_body(ew_world *world, void *argument)
{
    return work_on(world, argument, 77, "", 5);
}

static void expect_world_still_works(void)
{
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++) {
        stage *s = stage_open();
        harness_run(both_kinds[kind], 3, good_body, s);
        stage_close(s);
    }
}

/* Plans that fail half-way give their memory back, also when ranks are threads. */
static int abort_first(ew_world *world, void *argument)
{
    (void)argument;
    duty d;
    const ew_problem problem = EW_PROBLEM(256, 4096, 16, EW_FP32);
    if (ew_world_rank(world) == 0)
        ew_world_abort(world);
    RANK_CHECK(duty_open(&d, world, problem, "") == EW_ERR_ABORTED, "%s", ew_last_error());
    duty_close(&d);
    return 3;
}

static void failed_plans_leave_no_mappings(void **state)
{
    (void)state;
    harness_run_failing(EW_RANKS_AS_THREADS, 3, NULL, abort_first, NULL, NULL);
    const census before = census_take();
    for (int round = 0; round < 100; round++)
        harness_run_failing(EW_RANKS_AS_THREADS, 3, NULL, abort_first, NULL, NULL);
    const census after = census_take();
    if (after.maps > before.maps + 30)
        fail_msg("%d mappings became %d", before.maps, after.maps);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TIDY(aborts_reach_waiting_ranks), /* first: a mutant is to meet it at once */
        TIDY(aborts_reach_working_ranks),
        TIDY(killed_in_every_phase),
        TIDY(death_at_bootstrap_names_the_dead),
        TIDY(missing_ranks_are_listed),
        TIDY(stopped_ranks_time_out),
        TIDY(an_innocent_waiter_is_not_blamed),
        TIDY(every_lost_publication_is_named),
        TIDY(late_and_reordered_publications_are_exact),
        TIDY(a_slow_producer_is_waited_for),
        TIDY(a_slow_reducer_is_waited_for),
        TIDY(a_slow_reader_is_waited_for),
        TIDY(an_idle_reducer_is_patient),
        TIDY(nonsense_from_a_peer_crashes_nobody),
        TIDY(a_lying_peer_hangs_nobody),
        TIDY(leaving_early_is_named),
        TIDY(different_rows_are_refused),
        TIDY(different_problems_are_refused),
        TIDY(different_configs_are_refused),
        TIDY(configs_with_more_keys_are_refused),
        TIDY(one_rank_that_cannot_stops_all),
        TIDY(failed_plans_leave_no_mappings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
