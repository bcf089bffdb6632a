/* Who may use a world: the process that created it, one user at a time. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/status.h"
#include "world/world.h"

/* The kernel zeroes the page in every child, however it was forked, so that one word is
 * enough and no process id is compared.  Before Linux 4.14 it does not,
 * and a child is taken for its parent. */
ew_status ewx_use_open(ew_world *world)
{
    const size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *page =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return ewx_fail(EW_ERR_MEMORY, "no memory for a world");
    (void)madvise(page, bytes, MADV_WIPEONFORK);
    world->use = page;
    atomic_store_explicit(world->use, EWX_USE_FREE, memory_order_relaxed);
    return EW_OK;
}

void ewx_use_close(ew_world *world)
{
    if (world->use)
        munmap((void *)world->use, (size_t)sysconf(_SC_PAGESIZE));
    world->use = NULL;
}

ew_status ewx_world_refuse(uint32_t use)
{
    if (use == EWX_USE_ELSEWHERE)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "the world belongs to the process that this one was forked from\n"
                        "  fix: use it there alone, or let the child exec before it starts "
                        "a world of its own");
    if (use == EWX_USE_GONE)
        return ewx_fail(EW_ERR_ARGUMENT,
                        "the world of this plan or weight has been destroyed\n"
                        "  fix: destroy plans and weights before their world");
    return ewx_fail(
        EW_ERR_ARGUMENT,
        "the world is in use by another thread, or by the call that this signal "
        "handler has interrupted\n"
        "  fix: let one thread at a time use a world and its plans, and call "
        "only ew_world_abort from elsewhere");
}
