/* Which sources this library was compiled from (cmake/build_id.cmake). */
#ifndef EWX_BASE_BUILD_ID_H
#define EWX_BASE_BUILD_ID_H

#include <stdint.h>

extern const uint64_t ewx_build_id; /* 52 bits */
/* The same for the files of one backend alone. */
extern const uint32_t ewx_cpu_kernels_id, ewx_cuda_kernels_id;

#endif
