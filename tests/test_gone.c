/* Ranks that are killed or stopped at a random moment while they meet or create plans, not
 * at a probe: every survivor names the same rank with the same status, and none waits for
 * the whole timeout when a process is dead.  A survivor leaves as soon as it has its error,
 * so that slower ones see its end too and have to tell the cause from the consequence. */
#include "faultkit.h"
#include "harness.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/probe.h"
#include "stress.h"

enum { MOST_RANKS = 8, MOST_BYTES = 1024 };
#ifdef __SANITIZE_ADDRESS__ /* processes are costly to fork there */
enum { USUAL_BLOWS = 20 };
#else
enum { USUAL_BLOWS = 60 };
#endif
#define KILL_TIMEOUT_MS 12000 /* never reached */
#define STOP_TIMEOUT_MS 1500
#define SLOW_TIMEOUT_MS 1200
#define SOON_NS 10000000000

typedef struct scene {
    atomic_int arrived, gathered, joined;
    bool makes_plans, without_pidfds;
    uint32_t timeout_ms;
    unsigned char cards[MOST_RANKS][MOST_BYTES];
    ew_status statuses[MOST_RANKS];
    char texts[MOST_RANKS][512];
    _Atomic int64_t out_ns[MOST_RANKS];
} scene;

typedef struct actor {
    scene *scene;
    int rank, num_ranks;
} actor;

static bool reaches(atomic_int *counter, int count)
{
    for (const int64_t end = ewx_now_ns() + SOON_NS; ewx_now_ns() < end; sched_yield())
        if (atomic_load(counter) >= count)
            return true;
    return false;
}

static int gather(void *context, const void *mine, void *all, size_t bytes)
{
    const actor *me = context;
    scene *s = me->scene;
    if (bytes > MOST_BYTES)
        return 1;
    memcpy(s->cards[me->rank], mine, bytes);
    atomic_fetch_add(&s->arrived, 1);
    if (!reaches(&s->arrived, me->num_ranks))
        return 1;
    for (int rank = 0; rank < me->num_ranks; rank++)
        memcpy((char *)all + (size_t)rank * bytes, s->cards[rank], bytes);
    atomic_fetch_add(&s->gathered, 1);
    return 0;
}

static ew_status make_plans(ew_world *world)
{
    const ew_problem problem = EW_PROBLEM(128, 256, 64, EW_FP32);
    ew_status status = EW_OK;
    while (status == EW_OK) {
        ew_plan *plan = NULL;
        status = ew_plan_create(world, &problem, NULL, &plan);
        ew_plan_destroy(plan);
    }
    return status;
}

static ew_status meet_again(ew_world *world)
{
    ew_status status = EW_OK;
    while (status == EW_OK)
        status = ew_world_barrier(world);
    return status;
}

static void act(const actor *me)
{
    scene *s = me->scene;
    if (s->without_pidfds)
        forbid_pidfds();
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = s->timeout_ms;
    ew_world *world = NULL;
    ew_status status = ew_world_create(me->rank, me->num_ranks, gather,
                                       (void *)(uintptr_t)me, &options, &world);
    if (status == EW_OK) {
        atomic_fetch_add(&s->joined, 1);
        status = s->makes_plans ? make_plans(world) : meet_again(world);
    }
    s->statuses[me->rank] = status;
    snprintf(s->texts[me->rank], sizeof s->texts[0], "%s", ew_last_error());
    atomic_store(&s->out_ns[me->rank], ewx_now_ns());
    ew_world_destroy(world);
}

/* ---- The blow ---- */

typedef struct blow {
    int signal;
    bool in_plans, without_pidfds, pids_are_hidden;
    int num_ranks, victim;
    int dies_unconnected; /* this rank, if it is not 0, by itself */
    int64_t delay_us;
} blow;

static void pause_us(int64_t us)
{
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

static bool names(const char *text, const blow *b)
{
    char died[32], stopped[32], left[32];
    snprintf(died, sizeof died, "rank %d died", b->victim);
    snprintf(stopped, sizeof stopped, "s for rank %d ", b->victim);
    snprintf(left, sizeof left, "rank %d left", b->victim);
    return strstr(text, b->signal == SIGKILL ? died : stopped) ||
           (b->pids_are_hidden && strstr(text, left)); /* of one that was gone before all */
}

static const char *judge(const scene *s, const blow *b, int64_t struck_ns,
                         stress_times *times)
{
    static char verdict[1024];
    const ew_status wanted = b->signal == SIGKILL ? EW_ERR_PEER_DIED : EW_ERR_TIMEOUT;
    for (int rank = 0; rank < b->num_ranks; rank++) {
        if (rank == b->victim)
            continue;
        if (s->statuses[rank] != wanted || !names(s->texts[rank], b)) {
            snprintf(verdict, sizeof verdict, "rank %d has %s, \"%s\"", rank,
                     ew_status_name(s->statuses[rank]), s->texts[rank]);
            return verdict;
        }
        stress_time(times, s->out_ns[rank] - struck_ns);
        if (s->out_ns[rank] - struck_ns > SOON_NS)
            return "a survivor waited for the timeout";
    }
    return NULL;
}

/* NULL, or what was wrong.  The victim is never reaped before the survivors are out, as a
 * parent that waits for its children in turn would have it. */
static const char *strike(const blow *b, stress_times *times, int *in_meeting)
{
    scene *s = harness_share(sizeof *s);
    pid_t pids[MOST_RANKS];
    s->makes_plans = b->in_plans;
    s->without_pidfds = b->without_pidfds;
    s->timeout_ms = b->signal == SIGKILL ? KILL_TIMEOUT_MS : STOP_TIMEOUT_MS;
    for (int rank = 0; rank < b->num_ranks; rank++)
        if ((pids[rank] = fork()) == 0) {
            act(&(actor){s, rank, b->num_ranks});
            _exit(0);
        }
    reaches(b->in_plans ? &s->joined : &s->gathered, b->in_plans ? b->num_ranks : 1);
    pause_us(b->delay_us);
    const int64_t struck_ns = ewx_now_ns();
    *in_meeting += atomic_load(&s->joined) < b->num_ranks;
    kill(pids[b->victim], b->signal);
    for (int rank = 0; rank < b->num_ranks; rank++)
        if (rank != b->victim)
            waitpid(pids[rank], NULL, 0);
    kill(pids[b->victim], SIGKILL);
    waitpid(pids[b->victim], NULL, 0);
    const char *verdict = judge(s, b, struck_ns, times);
    harness_unshare(s, sizeof *s);
    return verdict;
}

/* `kind` says what all the blows have in common. */
static void strike_often(const blow *kind, int64_t blows, const char *figure)
{
    const bool in_plans = kind->in_plans;
    harness_random random = harness_seed((uint64_t)stress_count("SEED", 1) + in_plans);
    stress_times times = {0};
    int wrong = 0, in_meeting = 0;
    char first[1200] = "";
    for (int64_t i = 0; i < blows; i++) {
        blow b = *kind;
        b.num_ranks = in_plans ? (int)harness_between(&random, 2, MOST_RANKS) : 4;
        b.victim = (int)harness_between(&random, 0, b.num_ranks - 1);
        b.delay_us = harness_between(&random, 0, in_plans ? 10000 : 400);
        const char *verdict = strike(&b, &times, &in_meeting);
        wrong += verdict != NULL;
        if (verdict && !first[0])
            snprintf(first, sizeof first, "W=%d, rank %d after %d us: %s", b.num_ranks,
                     b.victim, (int)b.delay_us, verdict);
    }
    stress_tell("blows", "%lld", (long long)blows);
    stress_tell("in_meeting", "%d", in_meeting); /* before all had their world */
    stress_tell("wrong", "%d", wrong);
    stress_tell_times("survivors", &times);
    stress_figure(figure);
    if (wrong > 0)
        fail_msg("%d of %d: %s", wrong, (int)blows, first);
}

static void killed_while_ranks_meet(void **state)
{
    (void)state;
    strike_often(&(blow){.signal = SIGKILL}, stress_count("BLOWS", USUAL_BLOWS),
                 "meeting_kills");
}

static void killed_while_ranks_plan(void **state)
{
    (void)state;
    strike_often(&(blow){.signal = SIGKILL, .in_plans = true},
                 stress_count("BLOWS", USUAL_BLOWS), "plan_kills");
}

static void killed_where_pidfds_are_forbidden(void **state)
{
    (void)state;
    strike_often(&(blow){.signal = SIGKILL, .without_pidfds = true},
                 stress_count("BLOWS", USUAL_BLOWS), "meeting_kills_without_pidfds");
}

/* No hello tells what its pid means, as without /proc. */
static int hide_pids(void *context, ewx_probe_point point, int rank, int64_t where)
{
    const blow *b = context;
    if (point == EWX_PROBE_MEETING && where == 0 && rank > 0 && rank == b->dies_unconnected)
        raise(SIGKILL);
    return point == EWX_PROBE_HELLO && where < 0;
}

/* Nothing but its address is known of the victim then. */
static void dead_before_it_connects_with_a_hidden_pid(void **state)
{
    (void)state;
    blow b = {.signal = SIGKILL, .pids_are_hidden = true, .num_ranks = 4};
    stress_times times = {0};
    int in_meeting = 0;
    b.victim = b.dies_unconnected = 3;
    ewx_probe_install(hide_pids, &b);
    const char *verdict = strike(&b, &times, &in_meeting);
    ewx_probe_install(NULL, NULL);
    if (verdict)
        fail_msg("%s", verdict);
}

static void killed_where_pids_are_hidden(void **state)
{
    (void)state;
    blow b = {.signal = SIGKILL, .pids_are_hidden = true};
    ewx_probe_install(hide_pids, &b);
    strike_often(&b, stress_count("BLOWS", USUAL_BLOWS), "meeting_kills_with_hidden_pids");
    ewx_probe_install(NULL, NULL);
}

static void stopped_while_ranks_meet(void **state)
{
    (void)state;
    strike_often(&(blow){.signal = SIGSTOP}, stress_count("BLOWS", USUAL_BLOWS) / 10,
                 "meeting_stops");
}

static void stopped_while_ranks_plan(void **state)
{
    (void)state;
    strike_often(&(blow){.signal = SIGSTOP, .in_plans = true},
                 stress_count("BLOWS", USUAL_BLOWS) / 10, "plan_stops");
}

/* ---- A rank stops while the owner of the control block is slow ---- */

/* Rank 1 stops; what makes rank 0, the owner, take longer than others wait for one that is
 * stopped: it is starved, or rank 2 keeps it waiting at first. */
typedef struct slow_meeting {
    scene scene;
    int64_t stops_at; /* as `where` of EWX_PROBE_MEETING */
    bool is_starved;
    _Atomic bool has_stopped;
} slow_meeting;

static int disturb_meeting(void *context, ewx_probe_point point, int rank, int64_t where)
{
    slow_meeting *m = context;
    if (point != EWX_PROBE_MEETING)
        return 0;
    if (rank == 1 && where == m->stops_at) {
        atomic_store(&m->has_stopped, true);
        kill(getpid(), SIGSTOP);
    }
    if (rank == 2 && where == 0 && !m->is_starved)
        sleep_ms(SLOW_TIMEOUT_MS / 2);
    return 0;
}

static bool has_ended(pid_t pid)
{
    siginfo_t is = {0};
    return waitid(P_PID, (id_t)pid, &is, WEXITED | WNOHANG | WNOWAIT) != 0 ||
           is.si_pid == pid;
}

/* It gets a tenth of a core, in pieces of which a timer counts a third. */
static void starve(const slow_meeting *m, pid_t pid)
{
    while (!atomic_load(&m->has_stopped))
        sleep_ms(1);
    for (int i = 0; i < 200 && !has_ended(pid); i++) {
        kill(pid, SIGSTOP);
        sleep_ms(225);
        kill(pid, SIGCONT);
        sleep_ms(25);
    }
}

static void expect_stopped_rank_named(int64_t stops_at, bool is_starved)
{
    enum { NUM_RANKS = 4 };
    slow_meeting *m = harness_share(sizeof *m);
    pid_t pids[NUM_RANKS];
    m->scene.timeout_ms = SLOW_TIMEOUT_MS;
    m->stops_at = stops_at;
    m->is_starved = is_starved;
    for (int rank = 0; rank < NUM_RANKS; rank++)
        if ((pids[rank] = fork()) == 0) {
            ewx_probe_install(disturb_meeting, m);
            act(&(actor){&m->scene, rank, NUM_RANKS});
            _exit(0);
        }
    if (is_starved)
        starve(m, pids[0]);
    for (int rank = 0; rank < NUM_RANKS; rank++)
        if (rank != 1)
            waitpid(pids[rank], NULL, 0);
    kill(pids[1], SIGKILL);
    waitpid(pids[1], NULL, 0);
    for (int rank = 0; rank < NUM_RANKS; rank++)
        if (rank != 1 &&
            (m->scene.statuses[rank] != EW_ERR_TIMEOUT ||
             !strstr(m->scene.texts[rank], "rank 0 waited 1.2 s for rank 1 to join")))
            fail_msg("stopped at %d: rank %d has %s, \"%s\"", (int)stops_at, rank,
                     ew_status_name(m->scene.statuses[rank]), m->scene.texts[rank]);
    harness_unshare(m, sizeof *m);
}

static void a_starved_owner_is_not_blamed(void **state)
{
    (void)state;
    for (int64_t stops_at = 0; stops_at < 2; stops_at++)
        expect_stopped_rank_named(stops_at, true);
}

static void an_owner_that_waited_before_is_not_blamed(void **state)
{
    (void)state;
    expect_stopped_rank_named(1, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TIDY(killed_while_ranks_meet),
        TIDY(killed_while_ranks_plan),
        TIDY(killed_where_pidfds_are_forbidden),
        TIDY(dead_before_it_connects_with_a_hidden_pid),
        TIDY(killed_where_pids_are_hidden),
        TIDY(stopped_while_ranks_meet),
        TIDY(stopped_while_ranks_plan),
        TIDY(a_starved_owner_is_not_blamed),
        TIDY(an_owner_that_waited_before_is_not_blamed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
