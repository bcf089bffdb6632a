/* The handler writes to an eventfd, the thread reads it. */
#include "base/dump.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/message.h"

enum { STOP = 1000000 }; /* more than anybody asks for before it is read */

static _Atomic(ew_world *) dumped_world;
static atomic_int request_fd = -1;
static pthread_t writer;

static void write_recording(const ew_world *world)
{
    char path[4096];
    const char *folder = getenv("ENTWINE_DUMP_DIR");
    int length =
        snprintf(path, sizeof path, "%s/entwine-%lld-%d.json",
                 folder && *folder ? folder : ".", (long long)time(NULL), (int)getpid());
    if (length >= (int)sizeof path)
        return;
    if (ew_world_dump(world, path))
        cli_warn("no flight recording: %s", ew_last_error());
    else
        cli_print(stderr, "entwine: flight recording written to %s\n", path);
}

static void *write_when_asked(void *argument)
{
    const ew_world *world = argument;
    const int fd = atomic_load(&request_fd);
    uint64_t asked = 0;
    while (asked < STOP) {
        ssize_t got = read(fd, &asked, sizeof asked);
        if (got < 0 && errno != EINTR)
            break;
        if (got == sizeof asked && asked < STOP)
            write_recording(world);
    }
    return NULL;
}

void cli_dump_open(ew_world *world)
{
    ew_world *none = NULL;
    if (!atomic_compare_exchange_strong(&dumped_world, &none, world))
        return;
    const int fd = eventfd(0, EFD_CLOEXEC);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    atomic_store(&request_fd, fd);
    if (fd < 0 || pthread_create(&writer, NULL, write_when_asked, world)) {
        atomic_store(&request_fd, -1);
        if (fd >= 0)
            close(fd);
        atomic_store(&dumped_world, NULL);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void cli_dump_close(ew_world *world)
{
    const uint64_t stop = STOP;
    if (atomic_load(&dumped_world) != world)
        return;
    const int fd = atomic_exchange(&request_fd, -1);
    if (write(fd, &stop, sizeof stop) == sizeof stop)
        pthread_join(writer, NULL);
    close(fd);
    atomic_store(&dumped_world, NULL);
}

bool cli_dump_request(void)
{
    const int fd = atomic_load(&request_fd);
    const uint64_t one = 1;
    const int saved = errno;
    const bool asked = fd >= 0 && write(fd, &one, sizeof one) == sizeof one;
    errno = saved;
    return asked;
}
