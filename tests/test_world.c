/* The world: how ranks talk and part, and that they leave nothing behind.  How they meet is
 * test_meeting.c's. */
#include "harness.h"
#include "faultkit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/probe.h"

#define SOME_TIMEOUT_MS 20000 /* never reached unless something hangs */

/* ---- Collectives ---- */

static int gather_sizes(ew_world *world, void *argument)
{
    static const size_t sizes[] = {0, 1, 4096, 4097, 100000};
    (void)argument;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        RANK_TRY(gather_and_compare(world, sizes[i]));
    for (int round = 0; round < 50; round++) {
        RANK_TRY(gather_and_compare(world, 8));
        RANK_OK(ew_world_barrier(world));
    }
    return 0;
}

static void collectives_carry_every_byte(void **state)
{
    (void)state;
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++)
        for (int num_ranks = 1; num_ranks <= 8; num_ranks++) {
            harness_context("kind %d, W=%d", (int)both_kinds[kind], num_ranks);
            harness_run(both_kinds[kind], num_ranks, gather_sizes, NULL);
        }
}

/* Nobody leaves a barrier before everybody has come. */
static int count_arrivals(ew_world *world, void *argument)
{
    atomic_int *arrived = argument;
    const int num_ranks = ew_world_size(world);
    for (int round = 1; round <= 100; round++) {
        atomic_fetch_add(arrived, 1);
        RANK_OK(ew_world_barrier(world));
        const int seen = atomic_load(arrived);
        RANK_CHECK(seen >= round * num_ranks, "%d of %d", seen, round * num_ranks);
        RANK_OK(ew_world_barrier(world));
    }
    return 0;
}

static void barrier_holds_everyone(void **state)
{
    (void)state;
    for (int kind = FIRST_KIND; kind < NUM_KINDS; kind++) {
        atomic_int *arrived = harness_share(sizeof *arrived);
        harness_run(both_kinds[kind], 4, count_arrivals, arrived);
        harness_unshare(arrived, sizeof *arrived);
    }
}

/* ---- How ranks end ---- */

static int end_as_told(ew_world *world, void *argument)
{
    const int code = ((const int *)argument)[ew_world_rank(world)];
    if (code >= 2000)
        exit(code - 2000);
    if (code >= 1000)
        raise(code - 1000);
    return code;
}

static void exits_are_reported(void **state)
{
    static const struct {
        int codes[3], exits[3];
        ew_status status;
        const char *text;
    } cases[] = {
        {{0, 0, 0}, {0, 0, 0}, EW_OK, ""},
        {{0, 5, 0}, {0, 5, 0}, EW_ERR_ABORTED, "rank 1 returned 5"},
        {{0, 200, 0}, {0, 200, 0}, EW_ERR_ABORTED, "rank 1 returned 200"},
        {{0, 0, 125}, {0, 0, 125}, EW_ERR_ABORTED, "rank 2 returned 125"},
        {{0, 0, 256}, {0, 0, 1}, EW_ERR_ABORTED, "rank 2 returned 1"},
        {{0, -1, 0}, {0, 255, 0}, EW_ERR_ABORTED, "rank 1 returned 255"},
        {{1000 + SIGKILL, 0, 0},
         {128 + SIGKILL, 0, 0},
         EW_ERR_PEER_DIED,
         "rank 0 was killed by signal 9"},
        {{3, 1000 + SIGTERM, 0},
         {3, 128 + SIGTERM, 0},
         EW_ERR_PEER_DIED,
         "rank 1 was killed by signal 15"},
        {{0, 2000 + 9, 0}, {0, 9, 0}, EW_ERR_ABORTED, "rank 1 returned 9"},
        {{0, 2000, 0}, {0, 0, 0}, EW_OK, ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int codes[3], exits[3] = {-1, -1, -1};
        memcpy(codes, cases[i].codes, sizeof codes);
        const ew_status status =
            ew_run_ranks(EW_RANKS_AS_PROCESSES, 3, NULL, end_as_told, codes, exits);
        if (status != cases[i].status || !strstr(ew_last_error(), cases[i].text) ||
            memcmp(exits, cases[i].exits, sizeof exits) != 0)
            fail_msg("case %zu: %s \"%s\", exits %d %d %d", i, ew_status_name(status),
                     ew_last_error(), exits[0], exits[1], exits[2]);
    }
    int codes[3] = {0, 5, 0}, exits[3];
    assert_int_equal(ew_run_ranks(EW_RANKS_AS_THREADS, 3, NULL, end_as_told, codes, exits),
                     EW_ERR_ABORTED);
    assert_int_equal(exits[1], 5);
    assert_int_equal(ew_run_ranks(EW_RANKS_AS_THREADS, 3, NULL, end_as_told, codes, NULL),
                     EW_ERR_ABORTED);
}

/* Rank 1 fails by itself; the others wait for it and fail because of that. */
static int fail_in_turn(ew_world *world, void *argument)
{
    (void)argument;
    if (ew_world_rank(world) == 1)
        return 7;
    return ew_world_barrier(world) == EW_OK ? 0 : 20;
}

static void the_first_failure_is_named(void **state)
{
    (void)state;
    for (ew_ranks_as kind = EW_RANKS_AS_PROCESSES; kind <= EW_RANKS_AS_THREADS; kind++) {
        int exits[3];
        assert_int_equal(ew_run_ranks(kind, 3, NULL, fail_in_turn, NULL, exits),
                         EW_ERR_ABORTED);
        assert_int_equal(exits[0], 20);
        assert_true(error_has("rank 1 returned 7", NULL));
    }
}

/* A rank that does not follow is ended after the grace, and not called the cause. */
static int outstay(ew_world *world, void *argument)
{
    (void)argument;
    if (ew_world_rank(world) == 2)
        raise(SIGKILL);
    if (ew_world_rank(world) == 0)
        sleep_ms(60000);
    return 0;
}

static void the_cause_is_blamed(void **state)
{
    (void)state;
    int exits[3];
    const int64_t start_ns = ewx_now_ns();
    assert_int_equal(ew_run_ranks(EW_RANKS_AS_PROCESSES, 3, NULL, outstay, NULL, exits),
                     EW_ERR_PEER_DIED);
    assert_true(error_has("rank 2 was killed by signal 9", NULL));
    assert_int_equal(exits[0], 128 + SIGKILL);
    assert_true(ewx_now_ns() - start_ns < 20000000000);
}

static void ignored_sigchld_is_no_hang(void **state)
{
    (void)state;
    int codes[3] = {0}, exits[3];
    void (*before)(int) = signal(SIGCHLD, SIG_IGN);
    const ew_status status =
        ew_run_ranks(EW_RANKS_AS_PROCESSES, 3, NULL, end_as_told, codes, exits);
    signal(SIGCHLD, before);
    assert_int_equal(status, EW_ERR_SYSTEM);
    assert_true(error_has("SIGCHLD", "fix:", NULL));
}

/* ---- Descriptors ---- */

typedef struct fd_list {
    char links[256][128];
} fd_list;

static int audit_fds(ew_world *world, void *argument)
{
    const fd_list *known = argument;
    int pidfds = 0;
    RANK_OK(ew_world_barrier(world));
    for (int fd = 0; fd < 256; fd++) {
        char path[64], link[128] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, link, sizeof link - 1) < 0)
            continue;
        if (strcmp(known->links[fd], link) == 0)
            continue;
        pidfds += strstr(link, "pidfd") != NULL;
        RANK_CHECK(strncmp(link, "socket:", 7) == 0 || strncmp(link, "/memfd:", 7) == 0 ||
                       strncmp(link, "anon_inode:", 11) == 0,
                   "descriptor %d is %s", fd, link);
        int domain = AF_UNIX;
        socklen_t bytes = sizeof domain;
        getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes);
        RANK_CHECK(domain == AF_UNIX, "descriptor %d is a socket of family %d", fd, domain);
        int listening = 0;
        bytes = sizeof listening;
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &bytes);
        RANK_CHECK(!listening, "descriptor %d still listens", fd);
        RANK_CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC, "descriptor %d (%s) survives exec", fd,
                   link);
    }
    RANK_CHECK(pidfds < ew_world_size(world), "%d pidfds for %d ranks", pidfds,
               ew_world_size(world));
    RANK_OK(ew_world_barrier(world));
    return 0;
}

/* No file, no network socket, nothing that an exec'd program would inherit; also with
 * the most careless umask and with a standard stream closed. */
static void ranks_open_only_private_things(void **state)
{
    (void)state;
    fd_list *known = harness_share(sizeof *known);
    for (int closed_stdin = 0; closed_stdin < 2; closed_stdin++) {
        const int saved = closed_stdin ? dup(0) : -1;
        if (closed_stdin)
            close(0);
        memset(known, 0, sizeof *known);
        for (int fd = 0; fd < 256; fd++) {
            char path[64];
            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            if (readlink(path, known->links[fd], sizeof known->links[0] - 1) < 0)
                known->links[fd][0] = '\0';
        }
        const census before = census_take();
        const mode_t mask = umask(0);
        harness_run(EW_RANKS_AS_PROCESSES, 4, audit_fds, known);
        umask(mask);
        const census after = census_take();
        if (closed_stdin) {
            dup2(saved, 0);
            close(saved);
        }
        assert_int_equal(after.fds, before.fds);
    }
    harness_unshare(known, sizeof *known);
}

static int starve_one(void *context, ewx_probe_point point, int rank, int64_t where)
{
    (void)context;
    (void)where;
    if (point == EWX_PROBE_BOOTSTRAP && rank == 1)
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){3, 3});
    return 0;
}

/* A rank that cannot even make a socket says so; nobody blames the all-gather. */
static void no_descriptors_left_is_explained(void **state)
{
    (void)state;
    int codes[3] = {0};
    ewx_probe_install(starve_one, NULL);
    const ew_status status =
        ew_run_ranks(EW_RANKS_AS_PROCESSES, 3, NULL, end_as_told, codes, NULL);
    ewx_probe_install(NULL, NULL);
    assert_int_equal(status, EW_ERR_SYSTEM);
    assert_true(error_has("rank 1", "Too many open files", "fix:", NULL));
}

/* Room for so many descriptors more, on rank 1. */
static int plan_with_few(ew_world *world, void *argument)
{
    const ew_problem problem = EW_PROBLEM(64, 128, 32, EW_FP32);
    ew_plan *plan = NULL;
    if (ew_world_rank(world) == 1) {
        const int next = dup(0);
        RANK_CHECK(next >= 0, "no descriptor");
        close(next);
        const rlim_t limit = (rlim_t)(next + *(const int *)argument);
        RANK_CHECK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){limit, limit}) == 0, "limit");
    }
    const ew_status status = ew_plan_create(world, &problem, NULL, &plan);
    ew_plan_destroy(plan);
    RANK_CHECK(status == EW_OK || ew_world_rank(world) != 1 ||
                   (status == EW_ERR_SYSTEM &&
                    error_has("Too many open files", "ulimit -n", NULL)),
               "%s: %s", ew_status_name(status), ew_last_error());
    RANK_CHECK(status == EW_OK || ew_world_rank(world) == 1 ||
                   (status == EW_ERR_SYSTEM && error_has("rank 1 could not", NULL)),
               "%s: %s", ew_status_name(status), ew_last_error());
    return 0;
}

/* Wherever it runs out, the rank says of what, and the others say which rank did. */
static void descriptors_that_run_out_are_explained(void **state)
{
    (void)state;
    for (int more = 0; more < 6; more++) {
        harness_context("%d more descriptors", more);
        harness_run(EW_RANKS_AS_PROCESSES, 3, plan_with_few, &more);
    }
}

/* ---- Shared memory beyond the limit of file sizes ---- */

/* Without a word the kernel would end the process. */
static int plan_beyond_the_limit(ew_world *world, void *argument)
{
    const ew_problem problem = EW_PROBLEM(512, 512, 32, EW_FP32);
    ew_plan *plan = NULL;
    (void)argument;
    if (ew_world_rank(world) == 1)
        RANK_CHECK(setrlimit(RLIMIT_FSIZE, &(struct rlimit){65536, 65536}) == 0, "limit");
    RANK_CHECK(ew_plan_create(world, &problem, NULL, &plan) == EW_ERR_SYSTEM, "%s",
               ew_last_error());
    if (ew_world_rank(world) == 1)
        RANK_CHECK(error_has("heap takes", "a file may have 65536", "ulimit -f", NULL),
                   "%s", ew_last_error());
    else
        RANK_CHECK(error_has("rank 1 could not", NULL), "%s", ew_last_error());
    return 0;
}

static int join_beyond_the_limit(ew_world *world, void *argument)
{
    int exits[2] = {0};
    (void)world;
    RANK_CHECK(setrlimit(RLIMIT_FSIZE, &(struct rlimit){1, 1}) == 0, "limit");
    RANK_CHECK(ew_run_ranks(EW_RANKS_AS_PROCESSES, 2, NULL, end_as_told, argument, exits) ==
                       EW_ERR_SYSTEM &&
                   error_has("a file may have 1", "ulimit -f", NULL),
               "%s", ew_last_error());
    return 0;
}

static void limits_of_file_sizes_are_explained(void **state)
{
    int codes[3] = {0};
    (void)state;
    harness_run(EW_RANKS_AS_PROCESSES, 3, plan_beyond_the_limit, NULL);
    harness_run(EW_RANKS_AS_PROCESSES, 1, join_beyond_the_limit, codes);
}

/* ---- Interrupted system calls ---- */

static void on_alarm(int signal_number)
{
    (void)signal_number;
}

static void storm(bool on)
{
    struct sigaction action = {.sa_handler = on_alarm}; /* no SA_RESTART */
    sigaction(SIGALRM, &action, NULL);
    const struct timeval every = {.tv_usec = on ? 1000 : 0};
    setitimer(ITIMER_REAL, &(struct itimerval){every, every}, NULL);
}

static int storm_from_the_start(void *context, ewx_probe_point point, int rank,
                                int64_t where)
{
    (void)context;
    (void)rank;
    (void)where;
    if (point == EWX_PROBE_BOOTSTRAP)
        storm(true);
    return 0;
}

static int work_in_a_storm(ew_world *world, void *argument)
{
    const int64_t max_m = *(const int64_t *)argument;
    duty d;
    for (int round = 0; round < 100; round++)
        RANK_TRY(gather_and_compare(world, 5000));
    const ew_problem problem = EW_PROBLEM(max_m, 512, 32, EW_FP32);
    RANK_OK(duty_open(&d, world, problem, ""));
    for (uint32_t seed = 1; seed <= 5; seed++) {
        RANK_OK(duty_call(&d, 100, seed));
        RANK_CHECK(duty_wrong(&d, 100, seed) == 0, "seed %u", seed);
    }
    duty_close(&d);
    return 0;
}

/* The small heap shows that every wait and socket call lives with EINTR; the large one
 * needs milliseconds to allocate, during which the kernel gives up at every signal. */
static void signals_do_not_disturb(void **state)
{
    (void)state;
    for (int large = 0; large < 2; large++) {
        int64_t max_m = large ? 16384 : 100; /* 64 MiB each, or little */
        for (int round = 0; round < (large ? 2 : 10); round++) {
            harness_context("%s heap, round %d", large ? "large" : "small", round);
            ewx_probe_install(storm_from_the_start, NULL);
            storm(true);
            harness_run(EW_RANKS_AS_PROCESSES, 3, work_in_a_storm, &max_m);
            storm(false);
            ewx_probe_install(NULL, NULL);
        }
    }
}

/* ---- Without pidfds ---- */

static int forbid_pidfd(void *context, ewx_probe_point point, int rank, int64_t where)
{
    (void)context;
    (void)rank;
    (void)where;
    if (point == EWX_PROBE_BOOTSTRAP)
        forbid_pidfds();
    return 0;
}

static int work_then_die(ew_world *world, void *argument)
{
    (void)argument;
    duty d;
    RANK_CHECK(syscall(SYS_pidfd_open, getpid(), 0) < 0, "pidfds are not forbidden");
    for (int round = 0; round < 5; round++) { /* each sends descriptors along the sockets */
        const ew_problem problem = EW_PROBLEM(64, 128, 32, EW_FP32);
        RANK_OK(duty_open(&d, world, problem, ""));
        RANK_OK(duty_call(&d, 64, 1));
        RANK_CHECK(duty_wrong(&d, 64, 1) == 0, "round %d", round);
        duty_close(&d);
    }
    RANK_OK(ew_world_barrier(world));
    if (ew_world_rank(world) == 1)
        raise(SIGKILL);
    RANK_CHECK(ew_world_barrier(world) == EW_ERR_PEER_DIED &&
                   error_has("rank 1 died", NULL),
               "%s", ew_last_error());
    return 3;
}

static void containers_without_pidfd_work(void **state)
{
    (void)state;
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.timeout_ms = SOME_TIMEOUT_MS;
    int exits[3];
    ewx_probe_install(forbid_pidfd, NULL);
    const ew_status status =
        harness_run_failing(EW_RANKS_AS_PROCESSES, 3, &options, work_then_die, NULL, exits);
    ewx_probe_install(NULL, NULL);
    assert_int_equal(status, EW_ERR_PEER_DIED);
    assert_int_equal(exits[0], 3);
    assert_int_equal(exits[2], 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TIDY(collectives_carry_every_byte),
        TIDY(barrier_holds_everyone),
        TIDY(exits_are_reported),
        TIDY(the_first_failure_is_named),
        TIDY(the_cause_is_blamed),
        TIDY(ignored_sigchld_is_no_hang),
        TIDY(ranks_open_only_private_things),
        TIDY(no_descriptors_left_is_explained),
        TIDY(descriptors_that_run_out_are_explained),
        TIDY(limits_of_file_sizes_are_explained),
        TIDY(signals_do_not_disturb),
        TIDY(containers_without_pidfd_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
