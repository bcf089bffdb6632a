/* Notices when the process of a peer on this host ends, both while ranks meet and while
 * they work; nothing else does.  While they work a watcher does it, one sleeping thread per
 * process.  A peer that ends without having left the world in good order is reported to
 * all. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/status.h"
#include "world/world.h"

#define HANG_UP_NS 100000000
#define LOOK_MS 20 /* for each peer */

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434 /* the same on all architectures */
#endif

void ewx_death_watch_open(ew_world *world)
{
    for (int rank = 0; rank < world->num_ranks; rank++)
        if (ewx_is_peer(world, rank) && world->death_fds[rank] < 0 && world->pids[rank] > 0)
            world->death_fds[rank] = (int)syscall(SYS_pidfd_open, world->pids[rank], 0);
}

/* Of a line of /proc/PID/stat, behind the name.  A first thread that has ended is a zombie,
 * too, while others go on. */
static bool says_ended(const char *state)
{
    char letter = 0;
    long threads = 0;
    sscanf(state, " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld",
           &letter, &threads);
    return letter == 'X' || (letter == 'Z' && threads <= 1);
}

/* In a /proc of another pid namespace our pids are those of strangers. */
static bool has_own_proc(void)
{
    char self[16] = "";
    return readlink("/proc/self", self, sizeof self - 1) > 0 && atoi(self) == getpid();
}

/* Used where there is no pidfd.  A process that has ended keeps its pid until it is waited
 * for. */
static bool has_ended(pid_t pid)
{
    char path[32], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    const int fd = has_own_proc() ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    const ssize_t got = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        close(fd);
    const char *name_end = got > 0 ? strrchr(text, ')') : NULL; /* "pid (name) state ..." */
    return name_end ? says_ended(name_end + 1) : kill(pid, 0) != 0 && errno == ESRCH;
}

bool ewx_death_watch_sees(const ew_world *world, int rank)
{
#if EW_MUTANT == 21 /* planted bug: deaths go unnoticed while ranks meet */
    return false;
#endif
    struct pollfd entry = {.fd = world->death_fds[rank], .events = POLLIN};
    if (entry.fd >= 0)
        return poll(&entry, 1, 0) > 0;
    return world->pids[rank] > 0 && has_ended(world->pids[rank]);
}

/* A pidfd becomes readable when the process ends.  Where the kernel or a container refuses
 * one, the peer's socket hangs up instead, unless a process that the peer has forked holds
 * it; it is readable also when a message waits. */
static struct pollfd watched(const ew_world *world, int rank)
{
    if (world->death_fds[rank] >= 0)
        return (struct pollfd){.fd = world->death_fds[rank], .events = POLLIN};
    return (struct pollfd){.fd = world->sockets[rank], .events = POLLRDHUP};
}

ew_status ewx_death_watch_report(ew_world *world, int rank)
{
    return ewx_world_raise(
        world,
        &(ewx_fault){.status = EW_ERR_PEER_DIED, .culprit = rank, .reporter = world->rank});
}

ew_status ewx_death_watch_lost(ew_world *world, int rank)
{
    /* A process that ends closes its sockets first. */
    ewx_wait wait = ewx_wait_begin(NULL, HANG_UP_NS, 0);
    ew_status status;
    EWX_AWAIT(status, &wait, ewx_death_watch_sees(world, rank));
    if (status == EW_OK)
        return ewx_death_watch_report(world, rank);
    return ewx_world_raise(world, &(ewx_fault){.status = EW_ERR_PEER_DIED,
                                               .culprit = rank,
                                               .reporter = world->rank,
                                               .code = EWX_FAULT_JOINING});
}

/* How long to rely on the descriptors alone: with more peers to look for, longer. */
static int watch_ms(const ew_world *world)
{
    for (int i = 0; i < world->num_locals; i++)
        if (world->locals[i] != world->rank && world->death_fds[world->locals[i]] < 0)
            return LOOK_MS * world->num_locals;
    return -1;
}

static bool is_gone(const ew_world *world, int rank, const struct pollfd *entry)
{
    if (entry->revents)
        return true;
#if EW_MUTANT == 100 /* planted bug: sockets alone tell */
    return false;
#endif
    return world->death_fds[rank] < 0 && ewx_death_watch_sees(world, rank);
}

static void watch_peers(ew_world *world, struct pollfd *entries)
{
    const nfds_t count = (nfds_t)world->num_ranks + 1;
    for (;;) {
        if (poll(entries, count, watch_ms(world)) < 0 && errno != EINTR)
            return;
        if (entries[world->num_ranks].revents)
            return;
        for (int rank = 0; rank < world->num_ranks; rank++)
            if (entries[rank].fd >= 0 && is_gone(world, rank, &entries[rank])) {
                if (!ewx_world_departed(world, rank))
                    ewx_death_watch_report(world, rank);
                entries[rank].fd = -1; /* poll skips negative descriptors */
            }
    }
}

static void *watcher_main(void *argument)
{
    ew_world *world = argument;
    struct pollfd entries[EWX_MAX_RANKS + 1];
    for (int rank = 0; rank < world->num_ranks; rank++)
        entries[rank] =
            ewx_is_peer(world, rank) ? watched(world, rank) : (struct pollfd){.fd = -1};
    entries[world->num_ranks] = (struct pollfd){.fd = world->stop_fd, .events = POLLIN};
    watch_peers(world, entries);
    return NULL;
}

ew_status ewx_death_watch_start(ew_world *world)
{
    if (world->num_locals == 1)
        return EW_OK;
    world->stop_fd = eventfd(0, EFD_CLOEXEC);
    if (world->stop_fd < 0)
        return ewx_fail(EW_ERR_SYSTEM, "eventfd failed: %s", strerror(errno));
    /* Signals belong to the program's own threads. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int error = pthread_create(&world->watcher, NULL, watcher_main, world);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return ewx_fail(EW_ERR_SYSTEM, "the watcher thread cannot start: %s",
                        strerror(error));
    world->watching = true;
    return EW_OK;
}

void ewx_death_watch_stop(ew_world *world)
{
    if (world->watching) {
        const uint64_t one = 1;
        if (write(world->stop_fd, &one, sizeof one) == sizeof one)
            pthread_join(world->watcher, NULL);
        world->watching = false;
    }
    if (world->stop_fd >= 0)
        close(world->stop_fd);
    world->stop_fd = -1;
}
