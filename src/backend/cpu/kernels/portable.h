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

/* Called for every k: where B is a stream, asks for the `bytes` that are read `distance`
 * bytes further on.  The hardware's prefetcher stops at the end of every page. */
static inline __attribute__((always_inline)) void ewx_prefetch_stream(ewx_ahead ahead,
                                                                      const void *b,
                                                                      size_t bytes,
                                                                      size_t distance)
{
    enum { CACHE_LINE = 64, TO_L1 = 3 };
    for (size_t at = 0; !ahead.bytes && at < bytes; at += CACHE_LINE)
        __builtin_prefetch((const char *)b + distance + at, 0, TO_L1);
}

/* Operations of ARM's prfm. */
typedef enum ewx_prfm { EWX_PLDL2KEEP = 2, EWX_PLDL3KEEP = 4 } ewx_prfm;

/* ewx_kernel.store_bf16 and store_fp16 in plain C. */
void ewx_store_bf16(const float *acc, int64_t stride, int rows, int cols, uint16_t *dst,
                    int64_t dst_stride);
void ewx_store_fp16(const float *acc, int64_t stride, int rows, int cols, uint16_t *dst,
                    int64_t dst_stride);

#endif
