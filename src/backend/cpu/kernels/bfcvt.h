/* FEAT_BF16 of 64-bit ARM rounds to bf16 in one instruction, to the bits of base/dtype.h.
 * Elsewhere ewx_has_bfcvt is false and the rest is there to be compiled. */
#ifndef EWX_CPU_BFCVT_H
#define EWX_CPU_BFCVT_H

#include <stdbool.h>

#include "backend/cpu/kernels/convert.h"

#if defined(__aarch64__) && defined(__linux__)

#include <sys/auxv.h>

#ifndef HWCAP2_BF16
#define HWCAP2_BF16 (1 << 14)
#endif

/* Marks functions that use such instructions. */
#if defined(__clang__)
#define EWX_BF16_CODE __attribute__((target("bf16")))
#else
#define EWX_BF16_CODE __attribute__((target("+bf16")))
#endif

static inline bool ewx_has_bfcvt(void)
{
    return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
}

/* Assembly, because clang 14 declares the intrinsics only when the whole file is
 * compiled for a machine that has them. */
EWX_BF16_CODE static inline ewx_halves ewx_bfcvt(ewx_octet value)
{
    ewx_halves half;
    __asm__("bfcvtn %0.4h, %1.4s\n\tbfcvtn2 %0.8h, %2.4s"
            : "=&w"(half)
            : "w"(value.low), "w"(value.high));
    return half;
}

#else

#define EWX_BF16_CODE

static inline bool ewx_has_bfcvt(void)
{
    return false;
}

static inline ewx_halves ewx_bfcvt(ewx_octet value)
{
    return ewx_bf16_from_octet(value);
}

#endif

#endif
