/* The memory that all ranks of a world share. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/memory.h"
#include "base/status.h"
#include "world/world.h"

uint32_t ewx_library_version(void)
{
    return EW_VERSION_MAJOR * 1000000u + EW_VERSION_MINOR * 1000u + EW_VERSION_PATCH;
}

size_t ewx_control_bytes(int num_ranks)
{
    return sizeof(ewx_control) +
           (size_t)num_ranks * (sizeof(ewx_mailbox) + 2 * ewx_parcel_bytes(num_ranks));
}

void *ewx_world_parcel(const ew_world *world, int rank, uint32_t round)
{
    if (world->num_hosts > 1)
        return world->mailboxes[rank]->data[round & 1];
    char *parcels = (char *)&world->control->mailboxes[world->num_ranks];
    return parcels + ((size_t)rank * 2 + (round & 1)) * ewx_parcel_bytes(world->num_ranks);
}

static ew_status write_header(int fd, int num_ranks, bool in_threads)
{
    const ewx_control_header header = {.magic = "entwine",
                                       .version = ewx_library_version(),
                                       .mailbox_bytes = sizeof(ewx_mailbox),
                                       .num_ranks = num_ranks,
                                       .in_threads = in_threads,
                                       .started_ns = ewx_now_ns(),
                                       .started_ticks = ewx_ticks(),
                                       .started_unix = (int64_t)time(NULL)};
    return pwrite(fd, &header, sizeof header, 0) == sizeof header
               ? EW_OK
               : ewx_fail(EW_ERR_SYSTEM, "the control block cannot be written: %s",
                          strerror(errno));
}

static ew_status fail_control(const char *what)
{
    return ewx_fail(errno == ENOSPC || errno == ENOMEM ? EW_ERR_MEMORY : EW_ERR_SYSTEM,
                    "%s of the control block failed: %s", what, strerror(errno));
}

/* Allocates the memory and fixes its size and its owner. */
static ew_status prepare(int fd, size_t bytes)
{
    int result;
    do
        result = fallocate(fd, 0, 0, (off_t)bytes);
    while (result != 0 && errno == EINTR);
    if (result != 0)
        return fail_control("fallocate");
    if (fchmod(fd, 0600) != 0)
        return fail_control("fchmod");
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return fail_control("sealing");
    return EW_OK;
}

ew_status ewx_control_create(int num_ranks, bool in_threads, int *fd_out)
{
    EW_TRY(ewx_memory_check_shared("the world", ewx_control_bytes(num_ranks)));
    const int fd = memfd_create("entwine-control", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return ewx_fail(
            EW_ERR_SYSTEM,
            "memfd_create failed: %s\n  fix: raise the limit of open files (ulimit -n)",
            strerror(errno));
    ew_status status = prepare(fd, ewx_control_bytes(num_ranks));
    if (status == EW_OK)
        status = write_header(fd, num_ranks, in_threads);
    if (status != EW_OK)
        close(fd);
    else
        *fd_out = fd;
    return status;
}

ew_status ewx_control_map(int fd, int num_ranks, ewx_control **control_out)
{
    void *address =
        mmap(NULL, ewx_control_bytes(num_ranks), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED)
        return ewx_fail(EW_ERR_SYSTEM, "mmap of the control block failed: %s",
                        strerror(errno));
    *control_out = address;
    return EW_OK;
}
