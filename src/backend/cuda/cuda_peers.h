/* Memory of a rank's GPU as all ranks of its host reach it: by its address where ranks are
 * threads, by CUDA's handles between processes. */
#ifndef EWX_CUDA_PEERS_H
#define EWX_CUDA_PEERS_H

#include "backend/cuda/device.h"

/* Collective; the device is entered.  `memory` came from cudaMalloc.  addresses[r] becomes
 * the address of what rank r passed, this rank's own too; other hosts' stay as they are.
 * `what` is what it is called in errors, such as "heap".  Unmap either way. */
ew_status ewx_peers_map(ew_world *world, const ewx_device *device, void *memory,
                        const char *what, unsigned char *addresses[EWX_MAX_RANKS]);

/* Gives back what was mapped of other ranks; the rank's own memory stays. */
void ewx_peers_unmap(const ew_world *world, unsigned char *addresses[EWX_MAX_RANKS]);

#endif
