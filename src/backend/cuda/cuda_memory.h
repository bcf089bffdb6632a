/* Matrices on the GPU for benchmarks, tests and programs without memory of their own. */
#ifndef EWX_CUDA_MEMORY_H
#define EWX_CUDA_MEMORY_H

#include "backend/backend.h"

/* As ewx_memory says. */
ew_status ewx_cuda_allocate(ew_world *world, size_t bytes, void **memory_out);
void ewx_cuda_release(ew_world *world, void *memory);
ew_status ewx_cuda_copy(ew_world *world, void *to, const void *from, size_t bytes);
ew_status ewx_cuda_fill(ew_world *world, void *to, int byte, size_t bytes);
ew_status ewx_cuda_generate(ew_world *world, const ewx_input *input, void *matrix);
ew_status ewx_cuda_verify(ew_world *world, const ew_problem *problem, uint32_t seed,
                          int64_t m, const void *C, ew_check *check_out);

#endif
