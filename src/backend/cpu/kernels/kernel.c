/* The list of micro-kernels, best first, and the choice among them. */
#include "backend/cpu/kernels/kernel.h"

#include <string.h>

extern const ewx_kernel ewx_kernel_portable;
#if defined(__aarch64__)
extern const ewx_kernel ewx_kernel_neon;
#if defined(__linux__)
extern const ewx_kernel ewx_kernel_neon_bf16, ewx_kernel_neon_fp16;
#endif
#elif defined(__x86_64__)
extern const ewx_kernel ewx_kernel_avx512_bf16, ewx_kernel_avx512, ewx_kernel_avx2;
#if defined(__linux__)
extern const ewx_kernel ewx_kernel_amx_bf16, ewx_kernel_amx_fp16;
#endif
#endif

static const ewx_kernel *const kernels[] = {
#if defined(__aarch64__)
#if defined(__linux__)
    &ewx_kernel_neon_bf16, &ewx_kernel_neon_fp16,
#endif
    &ewx_kernel_neon,
#elif defined(__x86_64__)
#if defined(__linux__)
    &ewx_kernel_amx_bf16,    &ewx_kernel_amx_fp16,
#endif
    &ewx_kernel_avx512_bf16, &ewx_kernel_avx512,
    &ewx_kernel_avx2,
#endif
    &ewx_kernel_portable,  NULL,
};

const ewx_kernel *const *ewx_kernel_list(void)
{
    return kernels;
}

static bool serves(const ewx_kernel *kernel, ew_dtype dtype)
{
    return kernel->packs == EW_FP32 || kernel->packs == dtype;
}

const ewx_kernel *ewx_kernel_select(ew_dtype dtype, const char *name)
{
    for (const ewx_kernel *const *kernel = kernels; *kernel; kernel++) {
        const bool wanted = name ? strcmp((*kernel)->name, name) == 0
                                 : !(*kernel)->pays || (*kernel)->pays();
        if (serves(*kernel, dtype) && wanted && (*kernel)->available())
            return *kernel;
    }
    return NULL;
}

const char *ewx_kernel_refusal(ew_dtype dtype)
{
    for (const ewx_kernel *const *kernel = kernels; *kernel; kernel++)
        if (serves(*kernel, dtype) && (*kernel)->refusal && (*kernel)->refusal())
            return (*kernel)->refusal();
    return NULL;
}
