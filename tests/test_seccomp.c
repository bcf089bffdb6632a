/* Ranks in a process that may not make some system call, as containers and sandboxes forbid
 * them: a filter answers with an error.  Either the work is done and right, or every rank
 * that could not start or go on has an error with a text, and nobody hangs or crashes. */
#include "harness.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <linux/filter.h>
#include <linux/seccomp.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/measure.h"

enum { W = 2, M = 24, N = 40, K = 16, LIMIT_S = 60, WRONG = 9 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { IS_SANITIZED = 1 };
#else
enum { IS_SANITIZED = 0 };
#endif

typedef struct denial {
    const char *name;
    long number;
    const char *says; /* what the refusal does; NULL: the library can do without it */
} denial;

#define NEEDS(call, says)       \
    {                           \
#call, SYS_##call, says \
    }
#define DOES_WITHOUT(call)      \
    {                           \
#call, SYS_##call, NULL \
    }

static const denial denials[] = {
    NEEDS(memfd_create, "memfd_create failed"),
    NEEDS(fallocate, "fallocate of"),
    NEEDS(ftruncate, "ftruncate"),
    NEEDS(fchmod, "fchmod of"),
    NEEDS(fcntl, "sealing of"),
    NEEDS(pwrite64, "cannot be written"),
    NEEDS(socket, "socket failed"),
    NEEDS(socketpair, "socketpair failed"),
    NEEDS(bind, "bind failed"),
    NEEDS(listen, "listen failed"),
    NEEDS(accept4, "accept failed"),
    NEEDS(connect, "cannot be reached"),
    NEEDS(sendmsg, "sendmsg failed"),
    NEEDS(recvmsg, "recvmsg failed"),
    NEEDS(getsockname, "getsockname failed"),
    NEEDS(getsockopt, "getsockopt failed"),
    NEEDS(setsockopt, "setsockopt"),
    NEEDS(eventfd2, "eventfd failed"),
    NEEDS(ppoll, "poll failed"),
#ifdef SYS_poll
    NEEDS(poll, "poll failed"),
#endif
    NEEDS(getrandom, "getrandom of a secret failed"),
    NEEDS(prlimit64, "prlimit"),
#ifdef SYS_pidfd_open
    DOES_WITHOUT(pidfd_open),
    DOES_WITHOUT(pidfd_send_signal),
#endif
    DOES_WITHOUT(userfaultfd),
    DOES_WITHOUT(madvise),
    DOES_WITHOUT(sched_getaffinity),
    DOES_WITHOUT(sched_setaffinity),
    DOES_WITHOUT(sched_yield),
    DOES_WITHOUT(membarrier),
    DOES_WITHOUT(mbind),
    DOES_WITHOUT(set_mempolicy),
    DOES_WITHOUT(mlock),
    DOES_WITHOUT(process_vm_readv),
    DOES_WITHOUT(ptrace),
    DOES_WITHOUT(timerfd_create),
    DOES_WITHOUT(signalfd4),
    DOES_WITHOUT(inotify_init1),
#ifdef SYS_close_range
    DOES_WITHOUT(close_range),
#endif
    DOES_WITHOUT(setpriority),
    DOES_WITHOUT(uname),
    DOES_WITHOUT(sysinfo),
    DOES_WITHOUT(statx),
    DOES_WITHOUT(faccessat),
    DOES_WITHOUT(openat), /* /proc and /sys tell nothing then */
};

/* From now on the call fails with `error`, here and in children. */
static bool deny(long number, int error)
{
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {sizeof program / sizeof program[0], program};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

static int work(ew_world *world, void *argument)
{
    (void)argument;
    const ew_problem problem = EW_PROBLEM(M, N, K, EW_FP32);
    const int rank = ew_world_rank(world);
    static _Thread_local float A[M * K], B[N * K], C[M * N];
    ew_plan *plan;
    ew_check check;
    RANK_OK(ew_exact_fill_a(EW_FP32, 1, rank, W, M, K, A));
    RANK_OK(ew_exact_fill_b(EW_FP32, 1, rank, EW_WEIGHT_NK, N, K, B));
    memset(C, 0xff, sizeof C);
    RANK_OK(ew_plan_create(world, &problem, NULL, &plan));
    RANK_OK(ew_plan_set_weight(plan, B));
    RANK_OK(ew_gemm_rs(plan, M, A, NULL, C, NULL));
    RANK_OK(ew_gemm_rs(plan, M, A, B, C, NULL));
    RANK_OK(ew_exact_verify(&problem, 1, rank, W, M, C, &check));
    ew_plan_destroy(plan);
    return check.wrong == 0 ? 0 : WRONG;
}

typedef struct report {
    ew_status status;
    int exits[W];
    char note[HARNESS_TEXT_BYTES], error[512];
    atomic_int heir; /* a process that outlives rank 1 */
} report;

/* In a child, whose filter cannot be taken off again. */
static void work_without(const denial *d, int error, ew_ranks_as kind, report *r)
{
    const ew_world_options options = {.struct_size = sizeof options, .timeout_ms = 5000};
    alarm(LIMIT_S); /* its default action ends a hang */
    if (!deny(d->number, error))
        _exit(77);
    r->status =
        harness_try(kind, W, &options, work, NULL, r->exits, r->note, sizeof r->note);
    snprintf(r->error, sizeof r->error, "%s", ew_last_error());
    _exit(0);
}

/* Of wrong values, or by a signal; but the launcher ends ranks that wait for one that has
 * failed. */
static bool is_bad_end(int code)
{
    return code == WRONG || (code > 128 && code != 128 + SIGKILL);
}

/* 0: done and right, 1: refused. */
static int judge(const denial *d, int error, ew_ranks_as kind, const report *r, int status)
{
    char what[160];
    snprintf(what, sizeof what, "without %s (%s), ranks as %s", d->name,
             error == EPERM ? "EPERM" : "ENOSYS",
             kind == EW_RANKS_AS_THREADS ? "threads" : "processes");
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        fail_msg("%s: the program ended with %#x", what, (unsigned)status);
    for (int rank = 0; rank < W; rank++)
        if (is_bad_end(r->exits[rank]))
            fail_msg("%s: rank %d ended with %d: %s", what, rank, r->exits[rank], r->note);
    const bool is_done = r->status == EW_OK && !*r->note;
    if (is_done)
        return 0;
    if (!d->says || !(strstr(r->error, d->says) || strstr(r->note, d->says)))
        fail_msg("%s: %s \"%s\" \"%s\"", what, ew_status_name(r->status), r->error,
                 r->note);
    return 1;
}

static int try_without(const denial *d, int error, ew_ranks_as kind)
{
    report *r = harness_share(sizeof *r);
    int status = 0;
    const pid_t child = fork();
    if (child == 0)
        work_without(d, error, kind, r);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) {
        harness_unshare(r, sizeof *r);
        return -1;
    }
    const int refused = judge(d, error, kind, r, status);
    if (refused && getenv("VERBOSE"))
        print_message("%s: %s | %s\n", d->name, r->error, r->note);
    harness_unshare(r, sizeof *r);
    return refused;
}

static void try_all(ew_ranks_as kind)
{
    int done = 0, refused = 0;
    if (IS_SANITIZED)
        skip(); /* their runtimes make calls of their own */
    for (size_t at = 0; at < sizeof denials / sizeof denials[0]; at++)
        for (int error = 0; error < 2; error++) {
            const int outcome = try_without(&denials[at], error ? EPERM : ENOSYS, kind);
            if (outcome < 0)
                skip(); /* this process may not filter itself */
            done += outcome == 0;
            refused += outcome == 1;
        }
    print_message("%d did without the call, %d were refused with a text\n", done, refused);
    assert_true(done > refused);
}

static void ranks_as_processes(void **state)
{
    (void)state;
    try_all(EW_RANKS_AS_PROCESSES);
}

static void ranks_as_threads(void **state)
{
    (void)state;
    try_all(EW_RANKS_AS_THREADS);
}

/* ---- A death ---- */

#ifdef SYS_pidfd_open

/* Rank 1 leaves a child behind, which holds its sockets. */
static void die_with_an_heir(report *r)
{
    const pid_t heir = fork();
    if (heir == 0) {
        alarm(LIMIT_S);
        pause();
        _exit(0);
    }
    atomic_store(&r->heir, (int)heir);
    raise(SIGKILL);
}

static int die_or_notice(ew_world *world, void *argument)
{
    report *r = argument;
    RANK_OK(ew_world_barrier(world));
    if (ew_world_rank(world) == 1)
        die_with_an_heir(r);
    r->status = ew_world_barrier(world);
    snprintf(r->error, sizeof r->error, "%s", ew_last_error());
    if (ew_world_rank(world) == 0)
        kill(atomic_load(&r->heir), SIGKILL);
    return 0;
}

static void a_death_is_noticed_without_pidfds(void **state)
{
    (void)state;
    if (IS_SANITIZED)
        skip();
    const ew_world_options options = {.struct_size = sizeof options, .timeout_ms = 10000};
    report *r = harness_share(sizeof *r);
    int status;
    const pid_t child = fork();
    if (child == 0) {
        alarm(LIMIT_S);
        if (!deny(SYS_pidfd_open, ENOSYS))
            _exit(77);
        harness_try(EW_RANKS_AS_PROCESSES, W, &options, die_or_notice, r, r->exits, r->note,
                    sizeof r->note);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip();
    assert_int_equal(status, 0);
    assert_string_equal(r->note, "");
    assert_int_equal(r->exits[1], 128 + SIGKILL);
    assert_int_equal(r->status, EW_ERR_PEER_DIED);
    assert_non_null(strstr(r->error, "rank 1"));
    harness_unshare(r, sizeof *r);
}

#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_as_processes),
        cmocka_unit_test(ranks_as_threads),
#ifdef SYS_pidfd_open
        cmocka_unit_test(a_death_is_noticed_without_pidfds),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
