/* Allocations and system calls of the library that fail on demand
 * (ENTWINE_FAULT="memory:..." and "system:..."): included once, by a test that is linked
 * with --wrap for each of them (tests/CMakeLists.txt, EW_EXHAUSTING).  Also counts what was
 * allocated and not freed. */
#ifndef TESTS_EXHAUST_H
#define TESTS_EXHAUST_H

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>

#include "base/inject.h"

static atomic_long exhaust_live;  /* allocations that were not freed */
static atomic_int *exhaust_fired; /* shared with the ranks, or NULL */

/* A failure of the launcher itself, which no rule of ENTWINE_FAULT reaches: the n-th of a
 * kind in that process.  left 0: none, or it has been. */
static struct {
    pid_t pid;
    ewx_deal deal;
    int left;
} exhaust_launcher;

static bool exhaust_is_launchers(ewx_deal deal)
{
    return exhaust_launcher.pid == getpid() && exhaust_launcher.deal == deal &&
           exhaust_launcher.left > 0 && --exhaust_launcher.left == 0;
}

static bool exhaust_now(ewx_deal deal, int error)
{
    if (!exhaust_is_launchers(deal) && !ewx_inject_fails(deal))
        return false;
    if (exhaust_fired)
        atomic_fetch_add(exhaust_fired, 1);
    errno = error;
    return true;
}

/* ---- Memory ---- */

static void *exhaust_count(void *memory)
{
    exhaust_live += memory != NULL;
    return memory;
}

#define WRAP_MEMORY(name, parameters, arguments)             \
    void *__real_##name parameters;                          \
    void *__wrap_##name parameters;                          \
    void *__wrap_##name parameters                           \
    {                                                        \
        return exhaust_now(EWX_DEAL_NO_MEMORY, ENOMEM)       \
                   ? NULL                                    \
                   : exhaust_count(__real_##name arguments); \
    }
WRAP_MEMORY(malloc, (size_t bytes), (bytes))
WRAP_MEMORY(calloc, (size_t count, size_t bytes), (count, bytes))
WRAP_MEMORY(aligned_alloc, (size_t unit, size_t bytes), (unit, bytes))

void __real_free(void *memory);
void __wrap_free(void *memory);
void __wrap_free(void *memory)
{
    exhaust_live -= memory != NULL;
    __real_free(memory);
}

/* ---- System calls, and what is made of them ---- */

#define WRAP_SYSTEM(type, name, parameters, arguments, failed, error)            \
    type __real_##name parameters;                                               \
    type __wrap_##name parameters;                                               \
    type __wrap_##name parameters                                                \
    {                                                                            \
        return exhaust_now(EWX_DEAL_NO_SYSTEM, error) ? (failed)                 \
                                                      : __real_##name arguments; \
    }
WRAP_SYSTEM(int, socket, (int d, int t, int p), (d, t, p), -1, EMFILE)
WRAP_SYSTEM(int, socketpair, (int d, int t, int p, int *v), (d, t, p, v), -1, EMFILE)
WRAP_SYSTEM(int, bind, (int f, const struct sockaddr *a, socklen_t n), (f, a, n), -1,
            EACCES)
WRAP_SYSTEM(int, listen, (int f, int n), (f, n), -1, EADDRINUSE)
WRAP_SYSTEM(int, getsockname, (int f, struct sockaddr *a, socklen_t *n), (f, a, n), -1,
            ENOBUFS)
WRAP_SYSTEM(int, setsockopt, (int f, int l, int o, const void *v, socklen_t n),
            (f, l, o, v, n), -1, ENOBUFS)
WRAP_SYSTEM(int, connect, (int f, const struct sockaddr *a, socklen_t n), (f, a, n), -1,
            ENOMEM)
WRAP_SYSTEM(int, accept4, (int f, struct sockaddr *a, socklen_t *n, int flags),
            (f, a, n, flags), -1, EMFILE)
WRAP_SYSTEM(ssize_t, sendmsg, (int f, const struct msghdr *m, int flags), (f, m, flags), -1,
            ENOBUFS)
WRAP_SYSTEM(ssize_t, send, (int f, const void *b, size_t n, int flags), (f, b, n, flags),
            -1, ENOBUFS)
WRAP_SYSTEM(ssize_t, getrandom, (void *b, size_t n, unsigned f), (b, n, f), -1, ENOSYS)
WRAP_SYSTEM(int, memfd_create, (const char *n, unsigned f), (n, f), -1, EMFILE)
WRAP_SYSTEM(int, fallocate, (int f, int m, off_t o, off_t n), (f, m, o, n), -1, ENOSPC)
WRAP_SYSTEM(int, fchmod, (int f, mode_t m), (f, m), -1, EPERM)
WRAP_SYSTEM(ssize_t, pwrite, (int f, const void *b, size_t n, off_t o), (f, b, n, o), -1,
            ENOSPC)
WRAP_SYSTEM(void *, mmap, (void *a, size_t n, int p, int fl, int f, off_t o),
            (a, n, p, fl, f, o), MAP_FAILED, ENOMEM)
WRAP_SYSTEM(int, eventfd, (unsigned v, int f), (v, f), -1, EMFILE)
WRAP_SYSTEM(int, pthread_create,
            (pthread_t * t, const pthread_attr_t *a, void *(*f)(void *), void *x),
            (t, a, f, x), EAGAIN, EAGAIN)
WRAP_SYSTEM(FILE *, fopen, (const char *p, const char *m), (p, m), NULL, EMFILE)
WRAP_SYSTEM(pid_t, fork, (void), (), -1, EAGAIN)

int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...)
{
    va_list arguments;
    va_start(arguments, command);
    const long value = va_arg(arguments, long);
    va_end(arguments);
    return exhaust_now(EWX_DEAL_NO_SYSTEM, EMFILE) ? -1 : __real_fcntl(fd, command, value);
}

#endif
