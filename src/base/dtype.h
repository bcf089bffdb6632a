/* Conversions between fp32 and the 16-bit element types, round-to-nearest-even, NaN
 * kept quiet.  Pure inline functions without branches, so that loops over them become
 * vector code; the vector kernels must agree with them bit for bit. */
#ifndef EWX_BASE_DTYPE_H
#define EWX_BASE_DTYPE_H

#include <stdint.h>
#include <string.h>

static inline float ewx_f32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t ewx_f32_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* A choice without a branch, which compilers keep so when they use vectors. */
static inline uint32_t ewx_choose(int condition, uint32_t yes, uint32_t no)
{
    return no ^ ((yes ^ no) & (0u - (uint32_t)condition));
}

static inline float ewx_f32_from_bf16(uint16_t half)
{
    return ewx_f32_from_bits((uint32_t)half << 16);
}

static inline uint16_t ewx_bf16_from_f32(float value)
{
    const uint32_t bits = ewx_f32_bits(value);
    const uint32_t quiet = bits | 0x00400000u;
    const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    return (uint16_t)(ewx_choose((bits & 0x7fffffffu) > 0x7f800000u, quiet, rounded) >> 16);
}

static inline float ewx_f32_from_fp16(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t exponent = (half >> 10) & 0x1fu, fraction = half & 0x3ffu;
    /* Below the normal numbers fraction * 2^-24 is exact in fp32. */
    const uint32_t subnormal = ewx_f32_bits((float)(int32_t)fraction * 0x1p-24f);
    const uint32_t special =
        0x7f800000u | (fraction << 13) | ((uint32_t)(fraction != 0) << 22);
    const uint32_t normal = ((exponent + 112u) << 23) | (fraction << 13);
    const uint32_t magnitude = exponent == 0      ? subnormal
                               : exponent == 0x1f ? special
                                                  : normal;
    return ewx_f32_from_bits(sign | magnitude);
}

static inline uint16_t ewx_fp16_from_f32(float value)
{
    const uint32_t bits = ewx_f32_bits(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    const uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    /* Below 2^-14 adding 0.5 rounds at 2^-24, the unit of subnormals. */
    const uint32_t small = ewx_choose(magnitude < 0x38800000u, magnitude, 0);
    const uint32_t subnormal = ewx_f32_bits(ewx_f32_from_bits(small) + 0.5f) - 0x3f000000u;
    const uint32_t normal =
        (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const uint32_t finite = ewx_choose(magnitude < 0x38800000u, subnormal, normal);
    const uint32_t large = ewx_choose(magnitude > 0x7f800000u, nan, 0x7c00u);
    /* 65520 and above round to infinity. */
    return (uint16_t)(sign | ewx_choose(magnitude < 0x477ff000u, finite, large));
}

#endif
