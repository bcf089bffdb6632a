/* Conversions between element types, one element and eight at a time, and the sum over
 * ranks, which is rounded once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/gemm.h"
#include "backend/cpu/kernels/convert.h"
#include "random_inputs.h"

static const ew_dtype dtypes[] = {EW_FP32, EW_BF16, EW_FP16};
enum { NUM_DTYPES = sizeof dtypes / sizeof dtypes[0], POISON = 0xa5 };

typedef struct format {
    float (*widen)(uint16_t half);
    uint16_t (*narrow)(float value);
    uint16_t infinity, quiet;
    double limit; /* what infinity stands for when rounding */
} format;

static const format formats[] = {
    {ewx_f32_from_bf16, ewx_bf16_from_f32, 0x7f80, 0x0040, 0x1p128},
    {ewx_f32_from_fp16, ewx_fp16_from_f32, 0x7c00, 0x0200, 0x1p16},
};

/* Between a half and its successor values round to the nearer one, the middle to even. */
static void check_rounding(const format *f, uint16_t half, uint16_t sign)
{
    const uint16_t next = (uint16_t)(half + 1);
    const double upper = next == f->infinity ? f->limit : (double)f->widen(next);
    const float middle = (float)(((double)f->widen(half) + upper) / 2.0);
    const uint16_t even = half & 1 ? next : half;
    const float factor = sign ? -1.0f : 1.0f;
    assert_int_equal(f->narrow(factor * f->widen(half)), half | sign);
    assert_int_equal(f->narrow(factor * nextafterf(middle, 0.0f)), half | sign);
    assert_int_equal(f->narrow(factor * middle), even | sign);
    assert_int_equal(f->narrow(factor * nextafterf(middle, INFINITY)), next | sign);
}

static void test_rounding_is_to_nearest_even(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const format *f = &formats[i];
        for (uint16_t half = 0; half < f->infinity; half++) {
            check_rounding(f, half, 0);
            check_rounding(f, half, 0x8000);
        }
        assert_int_equal(f->narrow(INFINITY), f->infinity);
        assert_int_equal(f->narrow(-INFINITY), f->infinity | 0x8000);
    }
}

static void test_nan_stays_quiet_nan(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        const format *f = &formats[i];
        for (uint32_t half = f->infinity + 1u; half < 0x8000u; half++) {
            assert_true(isnan(f->widen((uint16_t)half)));
            assert_int_equal(f->narrow(f->widen((uint16_t)half)), half | f->quiet);
        }
        assert_int_equal(f->narrow(ewx_f32_from_bits(0xff800001u)),
                         0x8000 | f->infinity | f->quiet);
    }
}

static void test_fp16_values(void **state)
{
    (void)state;
    for (int half = 0; half < 0x7c00; half++) {
        const int exponent = half >> 10, fraction = half & 0x3ff;
        const double value =
            exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
        assert_true((double)ewx_f32_from_fp16((uint16_t)half) == value);
        assert_true((double)ewx_f32_from_fp16((uint16_t)(half | 0x8000)) == -value);
    }
    assert_int_equal(ewx_f32_bits(ewx_f32_from_fp16(0x8000)), 0x80000000u);
}

static void test_octets_agree_with_scalars(void **state)
{
    (void)state;
    for (uint32_t first = 0; first < 0x10000; first += EWX_OCTET) {
        uint16_t half[2 * EWX_OCTET] = {
            0}; /* as large as fp32: types are chosen at run time */
        float wide[EWX_OCTET];
        for (uint32_t i = 0; i < EWX_OCTET; i++)
            half[i] = (uint16_t)(first + i);
        for (int type = 1; type < NUM_DTYPES; type++) {
            ewx_octet_store(EW_FP32, ewx_octet_load(dtypes[type], half, 0), wide, 0);
            for (int i = 0; i < EWX_OCTET; i++)
                assert_int_equal(ewx_f32_bits(wide[i]),
                                 ewx_f32_bits(element_get(dtypes[type], half, i)));
        }
    }
    for (uint64_t bits = 0; bits < 1ull << 32; bits += 8 * 1021) {
        float wide[EWX_OCTET];
        uint16_t got[2 * EWX_OCTET], want[EWX_OCTET];
        for (uint32_t i = 0; i < EWX_OCTET; i++)
            wide[i] = ewx_f32_from_bits((uint32_t)bits + 1021 * i);
        for (int type = 1; type < NUM_DTYPES; type++) {
            ewx_octet_store(dtypes[type], ewx_octet_load(EW_FP32, wide, 0), got, 0);
            for (int i = 0; i < EWX_OCTET; i++)
                element_put(dtypes[type], want, i, wide[i]);
            assert_memory_equal(got, want, sizeof want);
        }
    }
}

static void *poisoned(size_t bytes)
{
    void *memory = malloc(bytes);
    assert_non_null(memory);
    return memset(memory, POISON, bytes);
}

static void check_reduce(ew_dtype dtype, int num_ranks, int64_t rows, int64_t cols)
{
    enum { MAX_RANKS = 9 };
    const size_t elem = ew_dtype_bytes(dtype);
    const int64_t src_stride = cols + 1, dst_stride = cols + 2;
    const size_t bytes = (size_t)(rows * dst_stride) * elem;
    void *owned[MAX_RANKS];
    const void *contributions[MAX_RANKS];
    for (int rank = 0; rank < num_ranks; rank++) {
        contributions[rank] = owned[rank] = poisoned((size_t)(rows * src_stride) * elem);
        fill_random(dtype, 1, rank, OPERAND_A, rows, src_stride, owned[rank]);
    }
    element_put(dtype, owned[0], 0, -0.0f);
    char *dst = poisoned(bytes), *want = poisoned(bytes);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            float sum = element_get(dtype, contributions[0], i * src_stride + j);
            for (int rank = 1; rank < num_ranks; rank++)
                sum += element_get(dtype, contributions[rank], i * src_stride + j);
            element_put(dtype, want, i * dst_stride + j, sum);
        }
    ewx_reduce_tile(dtype, contributions, num_ranks, src_stride, rows, cols, dst,
                    dst_stride);
    assert_memory_equal(dst, want, bytes);
    for (int rank = 0; rank < num_ranks; rank++)
        free(owned[rank]);
    free(dst);
    free(want);
}

static void test_reduce(void **state)
{
    (void)state;
    static const int64_t widths[] = {1, 7, 15, 16, 17, 33, 128};
    for (int type = 0; type < NUM_DTYPES; type++)
        for (int num_ranks = 1; num_ranks <= 9; num_ranks++)
            for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
                check_reduce(dtypes[type], num_ranks, 5, widths[i]);
}

/* Infinities, subnormals, ties and values that are none, rounded as one by one. */
static void test_reduce_of_every_bf16(void **state)
{
    (void)state;
    enum { SIDE = 256, COUNT = SIDE * SIDE };
    static const uint16_t others[] = {0x0000, 0x8001, 0x3f80, 0xc2c8, 0x7f7f, 0xff80};
    uint16_t *every = poisoned(COUNT * sizeof *every),
             *other = poisoned(COUNT * sizeof *other);
    uint16_t *dst = poisoned(COUNT * sizeof *dst), *want = poisoned(COUNT * sizeof *want);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        for (int at = 0; at < COUNT; at++) {
            every[at] = (uint16_t)at;
            other[at] = others[i];
            want[at] = ewx_bf16_from_f32(ewx_f32_from_bf16(every[at]) +
                                         ewx_f32_from_bf16(other[at]));
        }
        const void *contributions[] = {every, other};
        ewx_reduce_tile(EW_BF16, contributions, 2, SIDE, SIDE, SIDE, dst, SIDE);
        assert_memory_equal(dst, want, COUNT * sizeof *dst);
    }
    free(every);
    free(other);
    free(dst);
    free(want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounding_is_to_nearest_even),
        cmocka_unit_test(test_nan_stays_quiet_nan),
        cmocka_unit_test(test_fp16_values),
        cmocka_unit_test(test_octets_agree_with_scalars),
        cmocka_unit_test(test_reduce),
        cmocka_unit_test(test_reduce_of_every_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
