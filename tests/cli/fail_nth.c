/* The n-th call of one kind fails: preloaded into a program, for every n in turn.
 *   FAIL_CALL   malloc, open, read, fstat, write, fsync, rename, close or random
 *   FAIL_NTH    which of them, from 1; 0: none
 *   FAIL_MARK   a file that is made when one has failed
 * The kernel hands system calls to a handler, which makes them itself, with a sixth
 * argument that says so: those inside the C library are seen, too. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#define OURS 0x5a17c0deu

static const struct {
    const char *name;
    int error;
    long numbers[3]; /* -1: none */
} kinds[] = {
    {"open", EMFILE, {SYS_openat, -1, -1}},
    {"read", EIO, {SYS_read, SYS_pread64, -1}},
    {"fstat", EIO, {SYS_newfstatat, SYS_fstat, -1}},
    {"write", ENOSPC, {SYS_write, SYS_writev, -1}},
    {"fsync", EIO, {SYS_fsync, -1, -1}},
#ifdef SYS_rename
    {"rename", EXDEV, {SYS_rename, SYS_renameat, SYS_renameat2}},
#else
    {"rename", EXDEV, {SYS_renameat, SYS_renameat2, -1}},
#endif
    {"close", EIO, {SYS_close, -1, -1}},
    {"random", ENOSYS, {SYS_getrandom, -1, -1}},
};
enum { NUM_KINDS = sizeof kinds / sizeof kinds[0] };

static int fail_error;
static long fail_nth = -1; /* -1: allocations never fail */
static const char *mark_path;
static atomic_long count;

static long call(long number, const long *a)
{
    return syscall(number, a[0], a[1], a[2], a[3], a[4], (long)OURS);
}

static bool is_due(void)
{
    if (atomic_fetch_add(&count, 1) + 1 != fail_nth)
        return false;
    const long make[] = {AT_FDCWD, (long)(intptr_t)mark_path,
                         O_CREAT | O_WRONLY | O_CLOEXEC, 0600, 0};
    const long made = call(SYS_openat, make);
    const long shut[5] = {made};
    call(SYS_close, shut);
    return true;
}

/* ---- Allocations ---- */

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);

static bool no_memory(void)
{
    if (fail_nth < 0 || fail_error != ENOMEM || !is_due())
        return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t bytes)
{
    return no_memory() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t num, size_t bytes)
{
    return no_memory() ? NULL : __libc_calloc(num, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    return no_memory() ? NULL : __libc_realloc(memory, bytes);
}

/* ---- System calls ---- */

static void on_call(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    const int kept = errno;
#if defined(__x86_64__)
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    const long a[] = {r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8]};
    greg_t *result = &r[REG_RAX];
#elif defined(__aarch64__)
    unsigned long long *r = ((ucontext_t *)context)->uc_mcontext.regs;
    const long a[] = {(long)r[0], (long)r[1], (long)r[2], (long)r[3], (long)r[4]};
    unsigned long long *result = &r[0];
#endif
    const bool due = is_due();
    long got = 0;
    if (!due || info->si_syscall == SYS_close) { /* a close that fails has closed */
        got = call(info->si_syscall, a);
        if (got < 0)
            got = -errno;
    }
    if (due)
        got = -fail_error;
    *result = (unsigned long long)got;
    errno = kept;
}

/* A thread that blocks all signals would be killed by the first call that is handed over.
 */
int pthread_sigmask(int how, const sigset_t *set, sigset_t *before)
{
    sigset_t without;
    if (set) {
        without = *set;
        sigdelset(&without, SIGSYS);
    }
    const long done =
        syscall(SYS_rt_sigprocmask, how, set ? &without : NULL, before, _NSIG / 8);
    return done ? errno : 0;
}

static void trap(const long *numbers)
{
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_NODEFER | SA_RESTART};
    struct sock_filter program[16] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[5])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OURS, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    };
    unsigned short length = 4;
    for (int at = 0; at < 3; at++)
        if (numbers[at] >= 0) {
            program[length++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K,
                                                             (uint32_t)numbers[at], 0, 1);
            program[length++] =
                (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
        }
    program[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    const struct sock_fprog filter = {length, program};
    action.sa_sigaction = on_call;
    sigaction(SIGSYS, &action, NULL);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) != 0)
        _exit(78); /* the caller skips what cannot be tried here */
}

__attribute__((constructor)) static void arm(void)
{
    const char *kind = getenv("FAIL_CALL"), *nth = getenv("FAIL_NTH");
    mark_path = getenv("FAIL_MARK");
    if (!kind || !nth || !mark_path)
        return;
    unsetenv("LD_PRELOAD");
    for (int at = 0; at < NUM_KINDS; at++)
        if (strcmp(kinds[at].name, kind) == 0) {
            fail_error = kinds[at].error;
            fail_nth = atol(nth);
            trap(kinds[at].numbers);
            return;
        }
    fail_error = ENOMEM;
    fail_nth = atol(nth);
}
