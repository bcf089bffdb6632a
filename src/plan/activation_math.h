/* What an MLP applies to its gate, for one element, for hosts and kernels alike.  The
 * exponential is our own: a library's has other bits on another system.  EWX_FMA rounds
 * once, EWX_MUL and EWX_ADD round each; no compiler may fuse or split them, so every
 * processor gives the same bits.  One without that instruction calls a function for it. */
#ifndef EWX_PLAN_ACTIVATION_MATH_H
#define EWX_PLAN_ACTIVATION_MATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/host_device.h"
#include "entwine/entwine.h"

#ifdef __CUDACC__
#define EWX_ELEMENT_CODE static __device__ __forceinline__
#define EWX_MUL(a, b) __fmul_rn(a, b) /* which nvcc does not fuse */
#define EWX_ADD(a, b) __fadd_rn(a, b)
#define EWX_FMA(a, b, c) __fmaf_rn(a, b, c)
#else
/* Inlined into code for other instruction sets too. */
#define EWX_ELEMENT_CODE static inline __attribute__((always_inline))
#define EWX_MUL(a, b) ((a) * (b))
#define EWX_ADD(a, b) ((a) + (b))
#define EWX_FMA(a, b, c) __builtin_fmaf(a, b, c)
#endif

EWX_ELEMENT_CODE float ewx_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

EWX_ELEMENT_CODE uint32_t ewx_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* exp(r) for |r| up to ln(2) / 2: its Taylor polynomial of degree 7. */
EWX_ELEMENT_CODE float ewx_exp_near_zero(float r)
{
    float sum = EWX_FMA(1.0f / 5040, r, 1.0f / 720);
    sum = EWX_FMA(sum, r, 1.0f / 120);
    sum = EWX_FMA(sum, r, 1.0f / 24);
    sum = EWX_FMA(sum, r, 1.0f / 6);
    sum = EWX_FMA(sum, r, 1.0f / 2);
    sum = EWX_FMA(sum, r, 1.0f);
    return EWX_FMA(sum, r, 1.0f);
}

/* exp(x) for x up to 0, as 2^n exp(r) with x = n ln(2) + r.  What is too small for fp32
 * becomes 0. */
EWX_ELEMENT_CODE float ewx_exp_of_negative(float x)
{
    /* Added to a small number, leaves its whole part; and in the last bits n + 64. */
    const float whole = 0x1.8p23f + 64.0f;
    const float ln2_high = 0x1.63p-1f, ln2_low = -0x1.bd0106p-13f;
    x = x > -104.0f ? x : -104.0f;
    const float shifted = EWX_FMA(x, 0x1.715476p+0f, whole);
    const float n = EWX_ADD(shifted, -whole);
    const float rest = EWX_FMA(n, -ln2_high, x);
    const float fraction = ewx_exp_near_zero(EWX_FMA(n, -ln2_low, rest));
    /* 2^(n + 64) goes into the exponent; then the result may be subnormal. */
    const uint32_t large = ewx_to_bits(fraction) + (ewx_to_bits(shifted) << 23);
    return EWX_MUL(ewx_from_bits(large), 0x1p-64f);
}

/* a / b, rounded once, for b = 1 + e with e from 0 to 1, and a = e or 1.  On GPUs without
 * the branches that a division has for what lies outside: an approximate reciprocal,
 * refined, but above 1/2, which it would be for the largest b below 2 as well; its product
 * with a; and what is then left of a, which is exact.  It is right for every e, even if the
 * approximation is 3 units off.  Where what is left would be too small for fp32, b is 1. */
EWX_ELEMENT_CODE float ewx_quotient(float a, float b)
{
#ifdef __CUDACC__
    float y;
    asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(b));
    y = fmaxf(__fmaf_rn(__fmaf_rn(-b, y, 1.0f), y, y), 0x1.000002p-1f);
    const float q = __fmul_rn(a, y);
    return __fmaf_rn(__fmaf_rn(-b, q, a), y, q);
#else
    return a / b;
#endif
}

/* x / (1 + exp(-t)), without an exp that overflows. */
EWX_ELEMENT_CODE float ewx_times_sigmoid(float x, float t)
{
    const float e = ewx_exp_of_negative(-fabsf(t));
    const float above = t < 0.0f ? e : 1.0f;
    return EWX_MUL(x, ewx_quotient(above, EWX_ADD(1.0f, e)));
}

/* (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)). */
EWX_ELEMENT_CODE float ewx_twice_gelu_argument(float x)
{
    const float square = EWX_MUL(x, x);
    const float cubic = EWX_MUL(square, 0x1.6e4e26p-5f); /* 0.044715 */
    const float inner = EWX_MUL(x, EWX_ADD(1.0f, cubic));
    return EWX_MUL(inner, 0x1.988454p+0f); /* 2 sqrt(2 / pi) */
}

EWX_ELEMENT_CODE float ewx_activate(ew_activation activation, float x)
{
    if (activation == EW_ACTIVATION_NONE)
        return x;
    return ewx_times_sigmoid(
        x, activation == EW_ACTIVATION_SILU ? x : ewx_twice_gelu_argument(x));
}

#endif
