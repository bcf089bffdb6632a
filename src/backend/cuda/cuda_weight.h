/* A weight as the kernels read it: N x K in the GPU's memory. */
#ifndef EWX_CUDA_WEIGHT_H
#define EWX_CUDA_WEIGHT_H

#include "backend/backend.h"
#include "backend/cuda/device.h"
#include "backend/cuda/kernels/kernels.h"

size_t ewx_cuda_weight_bytes(const ewx_spec *spec);

/* Copies a B of n columns to `packed`, or transposes it with that prepared kernel, on the
 * stream that the next producer runs on.  The device is entered. */
ew_status ewx_cuda_weight_enqueue(const ewx_device *device, const ewx_spec *spec, int64_t n,
                                  const ewx_cuda_entry *transpose, const void *B,
                                  void *packed);

/* Kernels and copies take matrices that start at a multiple of 16 bytes. */
ew_status ewx_cuda_check_pointer(const char *name, const void *pointer);

/* As ewx_weights says. */
ew_status ewx_cuda_weight_open(ew_world *world, const ewx_spec *spec, void **packed_out);
ew_status ewx_cuda_weight_pack(ew_world *world, const ewx_spec *spec, void *packed,
                               const void *B);
void ewx_cuda_weight_close(ew_world *world, void *packed);

#endif
