/* How many cores this process may really use. */
#ifndef EWX_BASE_CORES_H
#define EWX_BASE_CORES_H

/* The affinity mask, capped by the cgroup's CPU quota; at least 1. */
int ewx_usable_cores(void);

#endif
