/* What kernels share that needs no particular instruction set. */
#ifndef EWX_CPU_KERNEL_PORTABLE_H
#define EWX_CPU_KERNEL_PORTABLE_H

#include <stdbool.h>
#include <stdint.h>

bool ewx_always_available(void);

/* ewx_kernel.store_bf16 in plain C. */
void ewx_store_bf16(const float *acc, int64_t stride, int rows, int cols, uint16_t *dst,
                    int64_t dst_stride);

#endif
