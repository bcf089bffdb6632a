/* What kernels share that needs no particular instruction set. */
#ifndef EWX_CPU_KERNEL_PORTABLE_H
#define EWX_CPU_KERNEL_PORTABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/cpu/kernels/kernel.h"

bool ewx_always_available(void);

/* Asks for all of it at once, which takes the time of a few k's. */
static inline void ewx_prefetch(ewx_ahead ahead)
{
    enum { CACHE_LINE = 64 };
    for (size_t at = 0; at < ahead.bytes; at += CACHE_LINE)
        __builtin_prefetch(ahead.at + at);
}

/* ewx_kernel.store_bf16 in plain C. */
void ewx_store_bf16(const float *acc, int64_t stride, int rows, int cols, uint16_t *dst,
                    int64_t dst_stride);

#endif
