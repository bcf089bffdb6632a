/* ew_world_abort, from a rank, another thread or a signal handler: it reaches ranks that
 * wait and ranks that work, and all say who it was. */
#include "stage.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/clock.h"
#include "stress.h"

#ifdef __SANITIZE_ADDRESS__ /* processes are costly to fork there */
enum { USUAL_ABORTS = 15 };
#else
enum { USUAL_ABORTS = 60 };
#endif
/* A rank that is deaf waits for the timeout, and then also says who aborted. */
enum { TIMEOUT_MS = 8000 };
#define HEARD_NS 4000000000

/* For the signal handler of this process. */
static ew_world *to_abort;
static stage *to_tell;

static void abort_on_signal(int signal_number)
{
    (void)signal_number;
    atomic_store(&to_tell->acted_ns, ewx_now_ns());
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
        to_tell = s;
        signal(SIGALRM, abort_on_signal);
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
    stage_await(s, ew_world_size(world) - 1);
    const int code = stage_tell(s, world, ew_plan_wait(d.plan));
    duty_close(&d);
    return code;
}

static stress_times ranks_out; /* since the abort */

static void expect_aborted(ew_ranks_as kind, int num_ranks, ew_rank_main body,
                           harness_random *random)
{
    stage *s = stage_open();
    char text[64];
    s->rank = (int)harness_between(random, 0, num_ranks - 1);
    s->sleep_ms = (int)harness_between(random, 0, 30);
    harness_context("kind %d, W=%d, rank %d after %d ms", (int)kind, num_ranks, s->rank,
                    s->sleep_ms);
    const ew_status status = stage_run(s, kind, num_ranks, TIMEOUT_MS, body, NULL);
    assert_int_equal(status, EW_ERR_ABORTED);
    snprintf(text, sizeof text, "rank %d aborted the world", s->rank);
    expect_same_story(s, num_ranks, -1, EW_ERR_ABORTED, text);
    for (int rank = 0; rank < num_ranks; rank++) {
        assert_true(s->out_ns[rank] - s->acted_ns < HEARD_NS);
        stress_time(&ranks_out, s->out_ns[rank] - s->acted_ns);
    }
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
    static const struct {
        ew_ranks_as kind;
        ew_rank_main body;
    } ways[] = {{EW_RANKS_AS_PROCESSES, work_until_aborted},
                {EW_RANKS_AS_THREADS, work_until_aborted},
                {EW_RANKS_AS_PROCESSES, work_until_signalled}};
    const int64_t aborts = stress_count("ABORTS", USUAL_ABORTS);
    harness_random random = harness_seed((uint64_t)stress_count("SEED", 3));
    for (int64_t round = 0; round < aborts; round++)
        expect_aborted(ways[round % 3].kind, 3, ways[round % 3].body, &random);
    stress_tell("aborts", "%lld", (long long)aborts);
    stress_tell_times("ranks", &ranks_out);
    stress_figure("aborts");
    expect_world_still_works();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TIDY(aborts_reach_waiting_ranks), /* first: a mutant is to meet it at once */
        TIDY(aborts_reach_working_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
