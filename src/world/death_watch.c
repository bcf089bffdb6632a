/* The watcher: one sleeping thread per process that notices when a peer process ends.  A
 * peer that ends without having left the world in good order is reported to all. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/status.h"
#include "world/world.h"

/* A pidfd becomes readable when the process ends.  Where the kernel or a container refuses
 * one, the peer's socket hangs up instead; it is readable also when a message waits. */
static struct pollfd open_death_fd(const ew_world *world, int rank)
{
#ifdef SYS_pidfd_open
    const int fd = (int)syscall(SYS_pidfd_open, world->pids[rank], 0);
    if (fd >= 0)
        return (struct pollfd){.fd = fd, .events = POLLIN};
#endif
    return (struct pollfd){.fd = fcntl(world->sockets[rank], F_DUPFD_CLOEXEC, 0),
                           .events = POLLRDHUP};
}

static void report_death(ew_world *world, int rank)
{
    atomic_store(&world->gone[rank], true);
    if (ewx_world_departed(world, rank))
        return;
    ewx_world_raise(
        world,
        &(ewx_fault){.status = EW_ERR_PEER_DIED, .culprit = rank, .reporter = world->rank});
}

static void watch_peers(ew_world *world, struct pollfd *entries)
{
    const nfds_t count = (nfds_t)world->num_ranks + 1;
    for (;;) {
        if (poll(entries, count, -1) < 0 && errno != EINTR)
            return;
        if (entries[world->num_ranks].revents)
            return;
        for (int rank = 0; rank < world->num_ranks; rank++)
            if (entries[rank].fd >= 0 && entries[rank].revents) {
                report_death(world, rank);
                close(entries[rank].fd);
                entries[rank].fd = -1; /* poll skips negative descriptors */
            }
    }
}

static void *watcher_main(void *argument)
{
    ew_world *world = argument;
    struct pollfd entries[EWX_MAX_RANKS + 1];
    for (int rank = 0; rank < world->num_ranks; rank++)
        entries[rank] = rank == world->rank || !ewx_world_is_local(world, rank)
                            ? (struct pollfd){.fd = -1}
                            : open_death_fd(world, rank);
    entries[world->num_ranks] = (struct pollfd){.fd = world->stop_fd, .events = POLLIN};
    watch_peers(world, entries);
    for (int rank = 0; rank < world->num_ranks; rank++)
        if (entries[rank].fd >= 0)
            close(entries[rank].fd);
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
