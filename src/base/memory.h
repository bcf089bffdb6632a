/* How much memory this process could still take without the kernel having to kill. */
#ifndef EWX_BASE_MEMORY_H
#define EWX_BASE_MEMORY_H

#include <stddef.h>

/* What the kernel calls available, capped by the cgroup's limit; SIZE_MAX when unknown. */
size_t ewx_available_memory(void);

#endif
