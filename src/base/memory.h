/* How much memory this process could still take before the kernel would have to kill. */
#ifndef EWX_BASE_MEMORY_H
#define EWX_BASE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#include "entwine/entwine.h"

#define EWX_MAX_MEMORY_LIMITS 12

/* The machine's memory, or what one control group above this process may use. */
typedef struct ewx_memory_limit {
    uint64_t id; /* the same for all processes under this limit; 0: the machine */
    size_t limit_bytes;
    size_t free_bytes; /* with the cached files that the kernel would drop */
    char name[160];    /* for messages; long paths are cut at the front */
} ewx_memory_limit;

/* The machine and then the groups that have a limit, from the process's own upwards; a
 * machine that does not say is left out.  Of more groups than fit the highest are. */
typedef struct ewx_memory_limits {
    int count;
    ewx_memory_limit at[EWX_MAX_MEMORY_LIMITS];
} ewx_memory_limits;

void ewx_memory_limits_read(ewx_memory_limits *limits_out);

/* Shared memory is a file to the kernel, which ends a process that lets one grow beyond the
 * limit on its size.  EW_ERR_SYSTEM, instead, when `bytes` bytes of `what` would. */
ew_status ewx_memory_check_shared(const char *what, size_t bytes);

#endif
