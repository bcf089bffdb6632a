/* A world that somebody else may be using: another thread, a signal handler inside of a
 * call, a forked child.  A second user is refused, and does the first one no harm. */
#include "faultkit.h"
#include "harness.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/measure.h"

enum { MAX_W = 3 };

/* ---- Two users of one world ---- */

enum { CALLS = 300, USERS = 2 };

typedef struct desk {
    ew_world *world;
    ew_plan *plan;
    const float *A;
    int64_t m;
    atomic_int next_call, refused, wrong;
} desk;

enum { DESK_M = 40, DESK_N = 24, DESK_K = 8 };

static bool was_in_use(ew_status status)
{
    return status == EW_ERR_ARGUMENT && error_has("in use", "\n  fix: ", NULL);
}

static void check_desk(desk *d, const float *C)
{
    int64_t first, count;
    ew_owned_rows(d->m, ew_world_size(d->world), ew_world_rank(d->world), &first, &count);
    for (int64_t i = 0; i < count * DESK_N; i++)
        if (C[i] != (float)(DESK_K * ew_world_size(d->world))) {
            atomic_fetch_add(&d->wrong, 1);
            return;
        }
}

/* Makes its share of the calls, and each of them until it is let in. */
static void *use_desk(void *argument)
{
    desk *d = argument;
    float C[DESK_M * DESK_N];
    while (atomic_fetch_add(&d->next_call, 1) < CALLS) {
        ew_status status;
        memset(C, 0xff, sizeof C);
        while (was_in_use(status = ew_gemm_rs(d->plan, d->m, d->A, NULL, C, NULL))) {
            atomic_fetch_add(&d->refused, 1);
            sched_yield();
        }
        if (status != EW_OK) {
            atomic_fetch_add(&d->wrong, 1);
            return NULL;
        }
        check_desk(d, C);
    }
    return NULL;
}

static int desk_open(desk *d, ew_world *world, float *A, const char *config_text)
{
    const ew_problem problem = EW_PROBLEM(DESK_M, DESK_N, DESK_K, EW_FP32);
    ew_config config = EW_CONFIG_INIT;
    float B[DESK_N * DESK_K];
    for (int i = 0; i < DESK_M * DESK_K; i++)
        A[i] = 1;
    for (int i = 0; i < DESK_N * DESK_K; i++)
        B[i] = 1;
    *d = (desk){.world = world, .A = A, .m = DESK_M};
    RANK_OK(ew_config_parse(config_text, &config));
    RANK_OK(ew_plan_create(world, &problem, &config, &d->plan));
    RANK_OK(ew_plan_set_weight(d->plan, B));
    return 0;
}

static int share_a_desk(ew_world *world, void *argument)
{
    float A[DESK_M * DESK_K];
    pthread_t threads[USERS];
    desk d;
    RANK_TRY(desk_open(&d, world, A, argument));
    for (int i = 0; i < USERS; i++)
        RANK_CHECK(pthread_create(&threads[i], NULL, use_desk, &d) == 0, "no thread");
    for (int i = 0; i < USERS; i++)
        pthread_join(threads[i], NULL);
    RANK_CHECK(atomic_load(&d.wrong) == 0, "%d wrong calls", atomic_load(&d.wrong));
    ew_plan_destroy(d.plan);
    return 0;
}

static void two_threads_do_no_harm(void **state)
{
    (void)state;
    static const char *const configs[] = {"workers=1", "workers=2"};
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++)
        for (int num_ranks = 1; num_ranks <= 2; num_ranks++)
            for (int i = 0; i < 2; i++) {
                harness_context("kind %d, W=%d, %s", kind, num_ranks, configs[i]);
                harness_run(both_kinds[kind], num_ranks, share_a_desk, (void *)configs[i]);
            }
}

/* ---- A weight that another thread takes away and brings back ---- */

typedef struct binder {
    ew_plan *plan;
    ew_weight *weight;
    atomic_bool stop;
} binder;

static void *bind_and_unbind(void *argument)
{
    binder *b = argument;
    for (bool bound = true; !atomic_load(&b->stop); bound = !bound)
        if (ew_plan_bind_weight(b->plan, bound ? NULL : b->weight) != EW_OK)
            bound = !bound; /* refused: the other thread is in a call */
    return NULL;
}

static int call_without_a_hold(ew_world *world, void *argument)
{
    enum { ENOUGH = 100000, MOST = 1000000 };
    const ew_problem problem = EW_PROBLEM(DESK_M, DESK_N, DESK_K, EW_FP32);
    float A[DESK_M * DESK_K], B[DESK_N * DESK_K], C[DESK_M * DESK_N];
    binder b = {.stop = false};
    pthread_t thread;
    desk d;
    int without = 0;
    RANK_TRY(desk_open(&d, world, A, argument));
    for (int i = 0; i < DESK_N * DESK_K; i++)
        B[i] = 1;
    RANK_OK(ew_weight_create(world, &problem, NULL, B, &b.weight));
    b.plan = d.plan;
    RANK_OK(ew_plan_bind_weight(b.plan, b.weight));
    RANK_CHECK(pthread_create(&thread, NULL, bind_and_unbind, &b) == 0, "no thread");
    for (int call = 0; call < MOST && without < ENOUGH; call++) {
        memset(C, 0xff, sizeof C);
        const ew_status status = ew_gemm_rs(d.plan, d.m, A, NULL, C, NULL);
        if (status == EW_OK)
            check_desk(&d, C);
        else if (status == EW_ERR_ARGUMENT && error_has("no weight", "\n  fix: ", NULL))
            without++;
        else if (!was_in_use(status))
            atomic_fetch_add(&d.wrong, 1);
    }
    atomic_store(&b.stop, true);
    pthread_join(thread, NULL);
    RANK_CHECK(atomic_load(&d.wrong) == 0, "%d wrong calls", atomic_load(&d.wrong));
    RANK_CHECK(without > 0, "the weight was never away");
    ew_weight_destroy(b.weight);
    ew_plan_destroy(d.plan);
    return 0;
}

static void a_weight_may_go_at_any_time(void **state)
{
    (void)state;
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++)
        harness_run(both_kinds[kind], 1, call_without_a_hold, (void *)"workers=1");
}

/* ---- A call inside a call ---- */

static desk *interrupted;
static atomic_int inside, refused_inside, odd_inside;

static void call_again(int signal_number)
{
    (void)signal_number;
    static float C[DESK_M * DESK_N];
    memset(C, 0xff, sizeof C);
    const ew_status status =
        ew_gemm_rs(interrupted->plan, interrupted->m, interrupted->A, NULL, C, NULL);
    atomic_fetch_add(&inside, 1);
    if (was_in_use(status))
        atomic_fetch_add(&refused_inside, 1);
    else if (status == EW_OK)
        check_desk(interrupted, C);
    else
        atomic_fetch_add(&odd_inside, 1);
}

static void ring(int microseconds)
{
    struct sigaction action = {.sa_handler = call_again, .sa_flags = SA_RESTART};
    const struct timeval every = {.tv_usec = microseconds};
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &(struct itimerval){every, every}, NULL);
}

/* Until enough calls were interrupted, but not for ever. */
static int call_while_interrupted(ew_world *world, void *argument)
{
    float A[DESK_M * DESK_K], C[DESK_M * DESK_N];
    desk d;
    RANK_TRY(desk_open(&d, world, A, argument));
    interrupted = &d;
    ring(200);
    for (int call = 0; call < 2000000 && atomic_load(&refused_inside) < 20; call++) {
        memset(C, 0xff, sizeof C);
        RANK_OK(ew_gemm_rs(d.plan, d.m, A, NULL, C, NULL));
        check_desk(&d, C);
    }
    signal(SIGALRM, SIG_IGN);
    ring(0);
    signal(SIGALRM, SIG_DFL);
    RANK_CHECK(atomic_load(&d.wrong) == 0, "%d wrong calls", atomic_load(&d.wrong));
    RANK_CHECK(atomic_load(&odd_inside) == 0, "%d unexpected ends",
               atomic_load(&odd_inside));
    RANK_CHECK(atomic_load(&refused_inside) >= 20, "%d of %d refused",
               atomic_load(&refused_inside), atomic_load(&inside));
    ew_plan_destroy(d.plan);
    return 0;
}

static void calls_inside_calls_are_refused(void **state)
{
    (void)state;
    if (FIRST_KIND > 0)
        skip(); /* ThreadSanitizer holds signals back until a call has ended */
    harness_run(EW_RANKS_AS_PROCESSES, 1, call_while_interrupted, "workers=1");
    harness_run(EW_RANKS_AS_PROCESSES, 1, call_while_interrupted, "workers=2");
}

/* Everything that is not for two users, while another has the world. */
static int try_everything(ew_world *world, desk *d)
{
    const ew_problem problem = EW_PROBLEM(1, 1, 1, EW_FP32);
    char mine = 0, all[MAX_W];
    float C[DESK_M * DESK_N];
    ew_plan *plan = NULL;
    ew_timing timing;
    size_t count;
    RANK_CHECK(was_in_use(ew_plan_create(world, &problem, NULL, &plan)) && !plan, "create");
    RANK_CHECK(was_in_use(ew_plan_set_weight(d->plan, d->A)), "set_weight");
    RANK_CHECK(was_in_use(ew_gemm_rs(d->plan, 1, d->A, NULL, C, NULL)), "call");
    RANK_CHECK(was_in_use(ew_gemm_rs_layer(d->plan, 1, d->A, NULL, C, NULL, NULL)),
               "layer");
    RANK_CHECK(was_in_use(ew_plan_wait(d->plan)), "wait");
    RANK_CHECK(was_in_use(ew_plan_timing(d->plan, &timing)), "timing");
    RANK_CHECK(was_in_use(ew_plan_trace_enable(d->plan)), "trace_enable");
    RANK_CHECK(was_in_use(ew_plan_trace(d->plan, NULL, 0, &count)), "trace");
    RANK_CHECK(was_in_use(ew_plan_start_together(d->plan)), "start_together");
    RANK_CHECK(was_in_use(ew_world_allgather(world, &mine, all, 1)), "allgather");
    RANK_CHECK(was_in_use(ew_world_barrier(world)), "barrier");
    ew_plan_destroy(d->plan); /* which is still needed */
    RANK_CHECK(error_has("in use", NULL), "plan_destroy: %s", ew_last_error());
    ew_world_destroy(world);
    RANK_CHECK(error_has("in use", NULL), "world_destroy: %s", ew_last_error());
    return 0;
}

typedef struct stay {
    ew_world *world;
    ew_status status;
} stay;

static void *stay_at_barrier(void *argument)
{
    stay *s = argument;
    /* The other thread, which looks whether this one is here, may have the world itself. */
    for (int ms = 0; was_in_use(s->status = ew_world_barrier(s->world)) && ms < 5000; ms++)
        sleep_ms(1);
    return NULL;
}

/* One thread of rank 0 waits for rank 1, and another tries all the rest meanwhile. */
static int use_twice(ew_world *world, void *argument)
{
    atomic_int *tried = argument;
    float A[DESK_M * DESK_K];
    pthread_t thread;
    desk d;
    RANK_TRY(desk_open(&d, world, A, "workers=1"));
    if (ew_world_rank(world) == 0) {
        stay s = {world, EW_OK};
        RANK_CHECK(pthread_create(&thread, NULL, stay_at_barrier, &s) == 0, "no thread");
        for (int ms = 0; ms < 5000 && !was_in_use(ew_plan_wait(d.plan)); ms++)
            sleep_ms(1);
        const int failed = try_everything(world, &d);
        atomic_store(tried, 1);
        pthread_join(thread, NULL);
        RANK_TRY(failed);
        RANK_OK(s.status);
    } else {
        for (int ms = 0; ms < 10000 && !atomic_load(tried); ms++)
            sleep_ms(1);
        RANK_OK(ew_world_barrier(world));
    }
    float C[DESK_M * DESK_N];
    RANK_OK(ew_gemm_rs(d.plan, DESK_M, A, NULL, C, NULL));
    check_desk(&d, C);
    RANK_CHECK(atomic_load(&d.wrong) == 0, "wrong values");
    ew_plan_destroy(d.plan);
    return 0;
}

static void a_world_in_use_is_refused_everywhere(void **state)
{
    (void)state;
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++) {
        atomic_int *tried = harness_share(sizeof *tried);
        harness_run(both_kinds[kind], 2, use_twice, tried);
        harness_unshare(tried, sizeof *tried);
    }
}

/* ---- Forked children ---- */

typedef enum child_deed {
    CHILD_DESTROYS,
    CHILD_USES,
    CHILD_ABORTS,
    CHILD_DESTROYS_HALF,
    NUM_CHILD_DEEDS
} child_deed;

static bool was_foreign(ew_status status)
{
    return status == EW_ERR_ARGUMENT && error_has("process", "\n  fix: ", NULL);
}

/* 0 when all went as it should. */
static int play_child(ew_world *world, desk *d, child_deed deed)
{
    char mine = 0, all[MAX_W];
    float C[DESK_M * DESK_N];
    if (deed == CHILD_ABORTS)
        ew_world_abort(world);
    if (deed == CHILD_USES)
        return !(was_foreign(ew_gemm_rs(d->plan, d->m, d->A, NULL, C, NULL)) &&
                 was_foreign(ew_plan_wait(d->plan)) &&
                 was_foreign(ew_world_barrier(world)) &&
                 was_foreign(ew_world_allgather(world, &mine, all, 1)) &&
                 ew_world_rank(world) >= 0);
    if (deed != CHILD_DESTROYS_HALF)
        ew_plan_destroy(d->plan);
    ew_world_destroy(world);
    return 0;
}

static int fork_in_the_middle(ew_world *world, void *argument)
{
    const child_deed deed = *(const child_deed *)argument;
    float A[DESK_M * DESK_K], C[DESK_M * DESK_N];
    desk d;
    RANK_TRY(desk_open(&d, world, A, "workers=2"));
    for (int call = 0; call < 3; call++) {
        if (call == 1) {
            const pid_t child = fork();
            if (child == 0) {
                alarm(20); /* which ends a child that waits for ever */
                _exit(play_child(world, &d, deed));
            }
            int status = -1;
            RANK_CHECK(waitpid(child, &status, 0) == child && status == 0,
                       "deed %d: the child ended with %d", (int)deed, status);
        }
        memset(C, 0xff, sizeof C);
        RANK_OK(ew_gemm_rs(d.plan, DESK_M, A, NULL, C, NULL));
        check_desk(&d, C);
        RANK_CHECK(atomic_load(&d.wrong) == 0, "wrong values");
        RANK_OK(ew_world_barrier(world));
    }
    ew_plan_destroy(d.plan);
    return 0;
}

static void forked_children_do_no_harm(void **state)
{
    (void)state;
    if (FIRST_KIND > 0)
        skip(); /* ... and does not see other processes */
    for (int deed = 0; deed < NUM_CHILD_DEEDS; deed++)
        for (int kind = 0; kind < NUM_KINDS; kind++)
            for (int num_ranks = 1; num_ranks <= 2; num_ranks++) {
                harness_context("deed %d, kind %d, W=%d", deed, kind, num_ranks);
                harness_run(both_kinds[kind], num_ranks, fork_in_the_middle, &deed);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TIDY(two_threads_do_no_harm),
        TIDY(a_weight_may_go_at_any_time),
        TIDY(a_world_in_use_is_refused_everywhere),
        TIDY(calls_inside_calls_are_refused),
        TIDY(forked_children_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
