/* Peers that write nonsense into the memory they share: any result will do, but there has
 * to be one, in bounded time and without a crash. */
#include "stage.h"

#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "backend/cpu/cpu_engine.h"
#include "base/clock.h"
#include "api/testing.h"

static ewx_cpu_engine *own_engine; /* of this process's rank */

static void scribble(harness_random *random, ewx_cpu_engine *engine)
{
    const int rank = engine->world->rank;
    ewx_segment_header *header = ewx_heap_header(&engine->heap, rank);
    const uint32_t epoch = (uint32_t)harness_next(random);
    const int64_t slot = harness_between(random, 0, engine->spec->layout.num_slots - 1);
    switch (harness_between(random, 0, 5)) {
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
    case 4:
        atomic_store(&header->waiting, harness_next(random));
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

/* Rank 1 publishes everything but says that it is in another call, or has other rows: rank
 * 0 must neither wait for ever for what it already has nor believe it. */
static const struct lie {
    uint32_t epoch; /* 0: the right one */
    int64_t rows;
    ew_status status;
    const char *text;
} lies[] = {{12345, 0, EW_ERR_TIMEOUT, "of rank 1 ("},
            {0, INT64_MAX, EW_ERR_MISMATCH, "rank 1 has m=9223372036854775807"},
            {0, INT64_MIN, EW_ERR_MISMATCH, "rank 1 has m=-9223372036854775808"},
            {0, (int64_t)1 << 40, EW_ERR_MISMATCH, "rank 1 has m=1099511627776"},
            {0, 101, EW_ERR_MISMATCH, "rank 1 has m=101"}};

static int lie_about_the_call(void *context, ewx_probe_point point, int rank, int64_t where)
{
    const struct lie *lie = context;
    (void)where;
    if (point == EWX_PROBE_BLOCK && rank == 0)
        sleep_ms(50);
    for (int parity = 0; parity < 2 && point == EWX_PROBE_BLOCK && rank == 1; parity++) {
        ewx_call_record *record = &ewx_heap_header(&own_engine->heap, 1)->calls[parity];
        if (lie->epoch)
            atomic_store(&record->epoch, lie->epoch);
        else
            record->rows = lie->rows;
    }
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
    ewx_probe_install(lie_about_the_call, (void *)(uintptr_t)&lies[s->seed]);
    return stage_listen(s, world, &d, duty_call(&d, 100, 1));
}

static void a_lying_peer_hangs_and_fools_nobody(void **state)
{
    (void)state;
    for (uint32_t which = 0; which < sizeof lies / sizeof *lies; which++) {
        stage *s = stage_open();
        int exits[2];
        s->seed = which;
        harness_context("lie %u", which);
        stage_run(s, EW_RANKS_AS_PROCESSES, 2, 1000, call_a_liar, exits);
        for (int rank = 0; rank < 2; rank++)
            if (exits[rank] != 3)
                fail_msg("lie %u: rank %d ended with %d (142: by its alarm)", which, rank,
                         exits[rank]);
        expect_same_story(s, 2, -1, lies[which].status, lies[which].text);
        stage_close(s);
    }
}

/* What rank 1 says of its waiting, and whether it excuses that nothing comes from it: ranks
 * there are not do not hold it up. */
static const struct excuse {
    uint32_t whom; /* 1 + a rank */
    uint32_t calls_ago;
    bool counts;
} excuses[] = {{3, 0, true},           {1, 1, true},  {(uint32_t)INT32_MIN, 0, false},
               {UINT32_MAX, 0, false}, {1, 0, false}, {INT32_MAX, 0, false},
               {0, 0, false},          {0, 1, false}, {4, 0, false},
               {4, 1, false}};

/* How often a wait for rank 1, which has stopped or looks around as well, does so before it
 * gives up. */
static int looks_for_rank_1(ewx_cpu_engine *engine, bool has_stopped)
{
    ewx_patience patience = ewx_patience_begin(engine);
    int looks = 1;
    while (ewx_patience_lasts(engine, &patience, 1)) {
        looks++;
        if (!has_stopped)
            atomic_fetch_add(&engine->world->mailboxes[1]->lane.looks, 1);
    }
    ewx_patience_end(engine);
    return looks;
}

static int hear_excuses(ew_world *world, void *argument)
{
    (void)argument;
    duty d;
    int without = 0;
    const ew_problem problem = EW_PROBLEM(128, 512, 64, EW_FP32);
    RANK_OK(duty_open(&d, world, problem, ""));
    RANK_OK(duty_call(&d, 100, 1));
    RANK_OK(ew_world_barrier(world));
    ewx_cpu_engine *engine = ewx_plan_state(d.plan);
    if (ew_world_rank(world) == 0)
        without = looks_for_rank_1(engine, false);
    for (size_t at = 0; at < sizeof excuses / sizeof *excuses; at++) {
        const uint32_t epoch = engine->call.epoch - excuses[at].calls_ago;
        RANK_OK(ew_world_barrier(world));
        if (ew_world_rank(world) == 1)
            atomic_store(&ewx_heap_header(&engine->heap, 1)->waiting,
                         (uint64_t)epoch << 32 | excuses[at].whom);
        RANK_OK(ew_world_barrier(world));
        if (ew_world_rank(world) == 0)
            RANK_CHECK((looks_for_rank_1(engine, false) > without) == excuses[at].counts &&
                           looks_for_rank_1(engine, true) == without,
                       "excuse %zu", at);
    }
    duty_close(&d);
    return 0;
}

static void nonsense_is_no_excuse(void **state)
{
    (void)state;
    harness_context("a wait for rank 1");
    harness_run(EW_RANKS_AS_PROCESSES, 3, hear_excuses, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TIDY(nonsense_from_a_peer_crashes_nobody),
        TIDY(a_lying_peer_hangs_and_fools_nobody),
        TIDY(nonsense_is_no_excuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
