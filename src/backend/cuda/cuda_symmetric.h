/* Symmetric memory of a world: allocations that all ranks made together, or had made by
 * others, in which each rank knows the address of every rank's part.  The device keeps the
 * list; a call finds in it whether an output lies there. */
#ifndef EWX_CUDA_SYMMETRIC_H
#define EWX_CUDA_SYMMETRIC_H

#include "backend/backend.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kernels/kernels.h"

extern const ewx_symmetric_memory ewx_cuda_symmetric_memory;

/* Where a matrix lies, as kernels need it; place 0: not, or not wholly, in such memory. */
ewx_cuda_symmetric ewx_cuda_symmetric_find(const ew_world *world, const ewx_device *device,
                                           const void *matrix, size_t bytes);

ew_status ewx_cuda_symmetric_open(ewx_symmetric_list **list_out);
/* When the world ends.  What was not freed by then stays until the process ends: another
 * rank may still have it mapped. */
void ewx_cuda_symmetric_close(ewx_symmetric_list *list);

#endif
