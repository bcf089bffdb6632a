/* The symmetric heap on GPUs: one segment per rank, in that rank's memory, mapped by all of
 * its host; of a rank elsewhere a replica of the head and the flags (carrier.h).
 * Contributions are written by their owner and read by everyone; the words of the head and
 * the flags are written by peers (kernels/kernels.h says who writes what). */
#ifndef EWX_CUDA_HEAP_H
#define EWX_CUDA_HEAP_H

#include "backend/cuda/device.h"
#include "backend/cuda/kernels/kernels.h"

typedef struct ewx_cuda_heap {
    ew_world *world;
    size_t segment_bytes;
    bool stays; /* a fabric may still read this rank's */
    unsigned char *segments[EWX_MAX_RANKS];
} ewx_cuda_heap;

/* Collective; the device is entered. */
ew_status ewx_cuda_heap_open(ewx_cuda_heap *heap, ew_world *world, const ewx_device *device,
                             const ewx_layout *layout);

/* `epoch` is this rank's last call: peers may still be reading it, and are waited for.  If
 * one does not end in time its memory is left mapped: better than to pull it away. */
void ewx_cuda_heap_close(ewx_cuda_heap *heap, uint32_t epoch);

#endif
