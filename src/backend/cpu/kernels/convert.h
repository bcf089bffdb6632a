/* The conversions of base/dtype.h, eight elements at a time, in GNU C vectors: compilers
 * do not find good vector code for the scalar ones.  fp16 uses the instructions that
 * every 64-bit ARM has. */
#ifndef EWX_CPU_CONVERT_H
#define EWX_CPU_CONVERT_H

#include <stdint.h>
#include <string.h>

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "entwine/entwine.h"

typedef float ewx_floats __attribute__((vector_size(16)));
typedef uint32_t ewx_words __attribute__((vector_size(16)));
typedef int32_t ewx_masks __attribute__((vector_size(16)));
typedef uint16_t ewx_halves __attribute__((vector_size(16)));

enum { EWX_OCTET = 8 };

typedef struct ewx_octet {
    ewx_floats low, high;
} ewx_octet;

static inline ewx_words ewx_words_choose(ewx_masks mask, ewx_words yes, ewx_words no)
{
    return ((ewx_words)mask & yes) | (~(ewx_words)mask & no);
}

/* Each of the eight halves becomes the upper half of a word; needs little-endian. */
static inline ewx_octet ewx_octet_from_bf16(ewx_halves half)
{
    const ewx_halves zero = {0};
    return (ewx_octet){
        (ewx_floats)__builtin_shufflevector(zero, half, 0, 8, 1, 9, 2, 10, 3, 11),
        (ewx_floats)__builtin_shufflevector(zero, half, 4, 12, 5, 13, 6, 14, 7, 15)};
}

static inline ewx_halves ewx_upper_halves(ewx_words low, ewx_words high)
{
    return __builtin_shufflevector((ewx_halves)low, (ewx_halves)high, 1, 3, 5, 7, 9, 11, 13,
                                   15);
}

static inline ewx_words ewx_words_round_bf16(ewx_floats value)
{
    const ewx_words bits = (ewx_words)value;
    const ewx_words rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    return ewx_words_choose(value == value, rounded, bits | 0x00400000u);
}

static inline ewx_halves ewx_bf16_from_octet(ewx_octet value)
{
    return ewx_upper_halves(ewx_words_round_bf16(value.low),
                            ewx_words_round_bf16(value.high));
}

#if defined(__aarch64__)

static inline ewx_octet ewx_octet_from_fp16(ewx_halves half)
{
    const float16x8_t value = vreinterpretq_f16_u16((uint16x8_t)half);
    return (ewx_octet){(ewx_floats)vcvt_f32_f16(vget_low_f16(value)),
                       (ewx_floats)vcvt_high_f32_f16(value)};
}

static inline ewx_halves ewx_fp16_from_octet(ewx_octet value)
{
    const float16x4_t low = vcvt_f16_f32((float32x4_t)value.low);
    return (ewx_halves)vreinterpretq_u16_f16(
        vcvt_high_f16_f32(low, (float32x4_t)value.high));
}

#else

/* `upper` holds the fp16 bits in its upper half. */
static inline ewx_floats ewx_floats_from_fp16(ewx_words upper)
{
    const ewx_words sign = upper & 0x80000000u, exponent = (upper >> 26) & 0x1fu;
    const ewx_words fraction = (upper >> 16) & 0x3ffu;
    const ewx_words subnormal =
        (ewx_words)(__builtin_convertvector((ewx_masks)fraction, ewx_floats) * 0x1p-24f);
    const ewx_words quiet = (ewx_words)(fraction != 0) & 0x00400000u;
    const ewx_words special = 0x7f800000u | (fraction << 13) | quiet;
    const ewx_words normal = ((exponent + 112u) << 23) | (fraction << 13);
    const ewx_words finite = ewx_words_choose(exponent == 0, subnormal, normal);
    return (ewx_floats)(sign | ewx_words_choose(exponent == 0x1fu, special, finite));
}

static inline ewx_octet ewx_octet_from_fp16(ewx_halves half)
{
    const ewx_octet upper = ewx_octet_from_bf16(half);
    return (ewx_octet){ewx_floats_from_fp16((ewx_words)upper.low),
                       ewx_floats_from_fp16((ewx_words)upper.high)};
}

/* Returns the fp16 bits in the upper half of each word. */
static inline ewx_words ewx_words_round_fp16(ewx_floats value)
{
    const ewx_words sign = (ewx_words)value & 0x80000000u;
    const ewx_words magnitude = (ewx_words)value & 0x7fffffffu;
    const ewx_masks is_small = magnitude < 0x38800000u;
    const ewx_floats shifted = (ewx_floats)(magnitude & (ewx_words)is_small) + 0.5f;
    const ewx_words subnormal = (ewx_words)shifted - 0x3f000000u;
    const ewx_words normal =
        (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    const ewx_words nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    const ewx_words infinity = (ewx_words){0} + 0x7c00u;
    const ewx_words large = ewx_words_choose(value == value, infinity, nan);
    const ewx_words finite = ewx_words_choose(is_small, subnormal, normal);
    return sign | ewx_words_choose(magnitude < 0x477ff000u, finite, large) << 16;
}

static inline ewx_halves ewx_fp16_from_octet(ewx_octet value)
{
    return ewx_upper_halves(ewx_words_round_fp16(value.low),
                            ewx_words_round_fp16(value.high));
}

#endif

/* Eight elements at src + at; `dtype` is a constant where these are inlined. */
static inline __attribute__((always_inline)) ewx_octet ewx_octet_load(ew_dtype dtype,
                                                                      const void *src,
                                                                      int64_t at)
{
    ewx_floats low, high;
    ewx_halves half;
    if (dtype == EW_FP32) {
        memcpy(&low, (const float *)src + at, sizeof low);
        memcpy(&high, (const float *)src + at + 4, sizeof high);
        return (ewx_octet){low, high};
    }
    memcpy(&half, (const uint16_t *)src + at, sizeof half);
    return dtype == EW_BF16 ? ewx_octet_from_bf16(half) : ewx_octet_from_fp16(half);
}

static inline __attribute__((always_inline)) void ewx_octet_store(ew_dtype dtype,
                                                                  ewx_octet value,
                                                                  void *dst, int64_t at)
{
    if (dtype == EW_FP32) {
        memcpy((float *)dst + at, &value.low, sizeof value.low);
        memcpy((float *)dst + at + 4, &value.high, sizeof value.high);
        return;
    }
    const ewx_halves half =
        dtype == EW_BF16 ? ewx_bf16_from_octet(value) : ewx_fp16_from_octet(value);
    memcpy((uint16_t *)dst + at, &half, sizeof half);
}

#endif
