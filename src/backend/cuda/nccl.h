/* NCCL, found at run time: the vendor's ReduceScatter for the baseline, where every rank
 * has a GPU of its own (NCCL refuses two ranks on one). */
#ifndef EWX_CUDA_NCCL_H
#define EWX_CUDA_NCCL_H

#include "backend/cuda/device.h"

typedef struct ewx_nccl {
    void *communicator; /* NULL: not used */
} ewx_nccl;

bool ewx_nccl_available(void);

/* Collective; leaves the communicator NULL unless all ranks have NCCL.  The device is
 * entered. */
ew_status ewx_nccl_open(ewx_nccl *nccl, ew_world *world, const ewx_device *device);
void ewx_nccl_close(ewx_nccl *nccl);

/* Sums `count` elements per rank into `to`, enqueued on the stream. */
ew_status ewx_nccl_reduce_scatter(const ewx_nccl *nccl, ew_dtype dtype, const void *from,
                                  void *to, int64_t count, cudaStream_t stream);

#endif
