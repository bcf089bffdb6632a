/* The most that a core can do: FMAs on registers alone. */
#ifndef CORE_PEAK_H
#define CORE_PEAK_H

#include <stdint.h>

#include "backend/cpu/gemm.h"

typedef struct core_peak {
    const char *kernel; /* how names of kernels that it belongs to begin */
    const char *type;   /* and end */
    void (*run)(int64_t loops);
    double flops; /* per loop */
} core_peak;

/* That of a kernel's instructions, or NULL. */
const core_peak *core_peak_find(const ewx_kernel *kernel);

#endif
