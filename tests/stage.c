/* Acting, telling and comparing stories. */
#include "stage.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/clock.h"

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

stage *stage_open(void)
{
    stage *s = harness_share(sizeof *s);
    s->rank = s->nth = -1;
    s->where = -1;
    return s;
}

void stage_close(stage *s)
{
    harness_unshare(s, sizeof *s);
}

ew_status stage_run(stage *s, ew_ranks_as kind, int num_ranks, uint32_t timeout_ms,
                    ew_rank_main body, int *exits)
{
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = timeout_ms;
    ewx_probe_install(act_on, s);
    const ew_status status = harness_run_failing(kind, num_ranks, &options, body, s, exits);
    ewx_probe_install(NULL, NULL);
    return status;
}

int stage_tell(stage *s, ew_world *world, ew_status status)
{
    const int rank = ew_world_rank(world);
    s->statuses[rank] = status;
    s->out_ns[rank] = ewx_now_ns();
    snprintf(s->texts[rank], sizeof s->texts[rank], "%s", ew_last_error());
    atomic_fetch_add(&s->finished, 1);
    return status == EW_OK ? 0 : 3;
}

int stage_listen(stage *s, ew_world *world, duty *d, ew_status status)
{
    for (int tries = 0; status == EW_OK && tries < 5000; tries++) {
        sleep_ms(1);
        status = ew_plan_wait(d->plan);
    }
    const int code = stage_tell(s, world, status);
    duty_close(d);
    return code;
}

void stage_await(stage *s, int count)
{
    for (int tries = 0; tries < 5000 && atomic_load(&s->finished) < count; tries++)
        sleep_ms(2);
}

void stage_await_act(const stage *s)
{
    for (int tries = 0; tries < 5000 && atomic_load(&s->acted_ns) == 0; tries++)
        sleep_ms(2);
}

void expect_story(const stage *s, int rank, ew_status status, const char *text)
{
    if (s->statuses[rank] != status || !strstr(s->texts[rank], text))
        fail_msg("rank %d got %s, \"%s\"; wanted %s with \"%s\"", rank,
                 ew_status_name(s->statuses[rank]), s->texts[rank], ew_status_name(status),
                 text);
}

void expect_same_story(const stage *s, int num_ranks, int except, ew_status status,
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

void expect_kills_named(const ewx_probe_point *points, int num_points,
                        const char *const *configs, ew_rank_main body)
{
    for (int trial = 0; trial < 12; trial++) {
        const int num_ranks = 2 + trial % 3, victim = trial % num_ranks;
        stage *s = stage_open();
        int exits[MAX_W];
        s->act = ACT_KILL;
        s->point = points[trial % num_points];
        s->rank = victim;
        s->nth = 1 + trial * 3;
        s->config = configs ? configs[trial % 2] : NULL;
        harness_context("W=%d, point %d, victim %d", num_ranks, (int)s->point, victim);
        assert_int_equal(
            stage_run(s, EW_RANKS_AS_PROCESSES, num_ranks, LONG_TIMEOUT_MS, body, exits),
            EW_ERR_PEER_DIED);
        assert_int_equal(exits[victim], 128 + SIGKILL);
        expect_same_story(s, num_ranks, victim, EW_ERR_PEER_DIED, "died");
        stage_close(s);
    }
    harness_context("%s", "");
}

/* ---- Work until something happens ---- */

int work_on(ew_world *world, stage *s, int64_t m, const char *config, int calls)
{
    duty d;
    const ew_problem problem = EW_PROBLEM(128, 512, 64, EW_FP32);
    ew_status status = duty_open(&d, world, problem, config);
    if (status == EW_OK)
        status = ew_plan_set_timeout(d.plan, s->timeout_s[ew_world_rank(world)]);
    for (int call = 0; status == EW_OK && call < calls; call++) {
        status = duty_call(&d, m, (uint32_t)call);
        RANK_CHECK(status != EW_OK || duty_wrong(&d, m, (uint32_t)call) == 0, "call %d",
                   call);
    }
    const int code = stage_tell(s, world, status);
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

int work_for_ever(ew_world *world, void *argument)
{
    stage *s = argument;
    s->pids[ew_world_rank(world)] = getpid();
    return work_on(world, s, 100, s->config ? s->config : "", 1000000);
}

static int good_body(ew_world *world, void *argument)
{
    return work_on(world, argument, 77, "", 5);
}

void expect_world_still_works(void)
{
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++) {
        stage *s = stage_open();
        harness_run(both_kinds[kind], 3, good_body, s);
        stage_close(s);
    }
}
