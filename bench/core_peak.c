#include "core_peak.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"

/* 24 independent sums hide the latency of any FMA unit; 12 fill AVX2's 16 registers. */
#define SUMS_24 "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23"
#define SUMS_12 "0,1,2,3,4,5,6,7,8,9,10,11"

#if defined(__aarch64__)

#define CLOBBERED                                                                    \
    "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", "v12", \
        "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23"

/* Registers start at zero: whatever was in them might be slow subnormals. */
static void clear_registers(void)
{
    __asm__ volatile(".irp r," SUMS_24 ",30,31\n\tmovi v\\r\\().4s, #0\n\t.endr" ::
                         : CLOBBERED, "v30", "v31");
}

static void peak_neon(int64_t loops)
{
    clear_registers();
    for (int64_t i = 0; i < loops; i++)
        __asm__ volatile(".irp r," SUMS_24
                         "\n\tfmla v\\r\\().4s, v30.4s, v31.4s\n\t.endr" ::
                             : CLOBBERED);
}

#if defined(__clang__)
__attribute__((target("bf16")))
#else
__attribute__((target("+bf16")))
#endif
static void
peak_neon_bf16(int64_t loops)
{
    clear_registers();
    for (int64_t i = 0; i < loops; i++)
        __asm__ volatile(".irp r," SUMS_24
                         "\n\tbfmmla v\\r\\().4s, v30.8h, v31.8h\n\t.endr" ::
                             : CLOBBERED);
}

#if defined(__clang__)
__attribute__((target("fp16fml")))
#else
__attribute__((target("arch=armv8.2-a+fp16fml")))
#endif
static void
peak_neon_fp16(int64_t loops)
{
    clear_registers();
    for (int64_t i = 0; i < loops; i++)
        __asm__ volatile(".irp r," SUMS_24
                         "\n\tfmlal v\\r\\().4s, v30.4h, v31.4h\n\t.endr" ::
                             : CLOBBERED);
}

static const core_peak peaks[] = {{"neon", "fp32", peak_neon, 24 * 8},
                                  {"neon", "bf16", peak_neon_bf16, 24 * 32},
                                  {"neon", "fp16", peak_neon_fp16, 24 * 8}};

#elif defined(__x86_64__)

#define CLOBBERED                                                                   \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", \
        "xmm10", "xmm11"
#define CLOBBERED_HIGH                                                               \
    "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", \
        "xmm21", "xmm22", "xmm23"

/* Registers start at zero: whatever was in them might be slow subnormals. */
__attribute__((target("avx2,fma"))) static void peak_avx2(int64_t loops)
{
    __asm__ volatile(".irp r," SUMS_12
                     ",14,15\n\tvxorps %%ymm\\r, %%ymm\\r, %%ymm\\r\n\t.endr" ::
                         : CLOBBERED);
    for (int64_t i = 0; i < loops; i++)
        __asm__ volatile(".irp r," SUMS_12
                         "\n\tvfmadd231ps %%ymm14, %%ymm15, %%ymm\\r\n\t.endr" ::
                             : CLOBBERED);
}

__attribute__((target("avx512f"))) static void peak_avx512(int64_t loops)
{
    __asm__ volatile(".irp r," SUMS_24
                     ",30,31\n\tvpxord %%zmm\\r, %%zmm\\r, %%zmm\\r\n\t.endr" ::
                         : CLOBBERED, CLOBBERED_HIGH);
    for (int64_t i = 0; i < loops; i++)
        __asm__ volatile(".irp r," SUMS_24
                         "\n\tvfmadd231ps %%zmm30, %%zmm31, %%zmm\\r\n\t.endr" ::
                             : CLOBBERED, CLOBBERED_HIGH);
}

__attribute__((target("avx512f,avx512bf16"))) static void peak_avx512_bf16(int64_t loops)
{
    __asm__ volatile(".irp r," SUMS_24
                     ",30,31\n\tvpxord %%zmm\\r, %%zmm\\r, %%zmm\\r\n\t.endr" ::
                         : CLOBBERED, CLOBBERED_HIGH);
    for (int64_t i = 0; i < loops; i++)
        __asm__ volatile(".irp r," SUMS_24
                         "\n\tvdpbf16ps %%zmm30, %%zmm31, %%zmm\\r\n\t.endr" ::
                             : CLOBBERED, CLOBBERED_HIGH);
}

/* AMX takes its operands from L1, two tiles of each for four multiplications, and real
 * numbers: with zeros the core is faster than it ever is at work. */
static void peak_amx_bf16(int64_t loops)
{
    enum { TILE_BYTES = 1024, L1_BYTES = 16 * TILE_BYTES };
    static _Alignas(64) uint16_t numbers[L1_BYTES / sizeof(uint16_t)];
    const ewx_kernel *kernel = ewx_kernel_select(EW_BF16, NULL);
    const int64_t pitch = 64;
    if (!numbers[0]) /* the first, which does not count */
        for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
            numbers[i] = ewx_bf16_from_f32((float)(rand() % 200 + 1) / 100.0f - 1.005f);
    kernel->enter();
    for (int64_t i = 0; i < loops; i++) {
        const char *at = (const char *)numbers + i % 4 * 4 * TILE_BYTES;
        __asm__ volatile("tileloadd (%0,%4,1), %%tmm6\n\ttileloadd (%1,%4,1), %%tmm4\n\t"
                         "tdpbf16ps %%tmm6, %%tmm4, %%tmm0\n\t"
                         "tileloadd (%2,%4,1), %%tmm7\n\t"
                         "tdpbf16ps %%tmm7, %%tmm4, %%tmm1\n\t"
                         "tileloadd (%3,%4,1), %%tmm5\n\t"
                         "tdpbf16ps %%tmm6, %%tmm5, %%tmm2\n\t"
                         "tdpbf16ps %%tmm7, %%tmm5, %%tmm3" ::"r"(at),
                         "r"(at + TILE_BYTES), "r"(at + 2 * TILE_BYTES),
                         "r"(at + 3 * TILE_BYTES), "r"(pitch)
                         : "memory");
    }
    kernel->leave();
}

static const core_peak peaks[] = {{"amx", "bf16", peak_amx_bf16, 4 * 2 * 16 * 16 * 32},
                                  {"avx512", "fp32", peak_avx512, 24 * 32},
                                  {"avx512", "bf16", peak_avx512_bf16, 24 * 64},
                                  {"avx2", "fp32", peak_avx2, 12 * 16}};

#else

static const core_peak peaks[] = {{"none", "none", NULL, 0.0}};

#endif

const core_peak *core_peak_find(const ewx_kernel *kernel)
{
    for (size_t i = 0; i < sizeof peaks / sizeof peaks[0]; i++) {
        const char *type = strrchr(kernel->name, '-') + 1;
        if (strncmp(kernel->name, peaks[i].kernel, strlen(peaks[i].kernel)) == 0 &&
            strcmp(type, peaks[i].type) == 0)
            return &peaks[i];
    }
    return NULL;
}
