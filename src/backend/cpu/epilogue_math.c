/* Vectors by hand, for the reason given in reduce.c.  A product and the sum it goes into
 * are two statements: compilers may fuse what stands in one. */
#include "backend/cpu/epilogue_math.h"

#include <math.h>

#include "backend/cpu/kernels/convert.h"
#include "base/dtype.h"
#include "plan/layer.h"

enum { OCTETS = EWX_TILE_N / EWX_OCTET };

/* The functions below are compiled once for each element type. */
#define SPECIALISED static inline __attribute__((always_inline))

SPECIALISED ewx_octet add(ewx_octet x, ewx_octet y)
{
    return (ewx_octet){x.low + y.low, x.high + y.high};
}

SPECIALISED ewx_octet multiply(ewx_octet x, ewx_octet y)
{
    return (ewx_octet){x.low * y.low, x.high * y.high};
}

SPECIALISED ewx_octet eightfold(float value)
{
    const ewx_floats four = {value, value, value, value};
    return (ewx_octet){four, four};
}

/* Rounds to the element type and stores the result, unless dst is NULL. */
SPECIALISED ewx_octet round_to(ew_dtype dtype, ewx_octet x, void *dst, int64_t at)
{
    if (dtype == EW_FP32) {
        if (dst)
            ewx_octet_store(dtype, x, dst, at);
        return x;
    }
    const ewx_halves half =
        dtype == EW_BF16 ? ewx_bf16_from_octet(x) : ewx_fp16_from_octet(x);
    if (dst)
        memcpy((uint16_t *)dst + at, &half, sizeof half);
    return dtype == EW_BF16 ? ewx_octet_from_bf16(half) : ewx_octet_from_fp16(half);
}

/* Eight elements of a row; the squares of h, four sums of two each. */
SPECIALISED ewx_floats add_octet(ew_dtype dtype, const ewx_epilogue_row *row, int64_t at)
{
    ewx_octet x = ewx_octet_load(dtype, row->sum, at);
    if (row->bias)
        x = round_to(dtype, add(x, ewx_octet_load(dtype, row->bias, at)), NULL, 0);
    if (row->c)
        ewx_octet_store(dtype, x, row->c, at);
    if (row->residual)
        x = round_to(dtype, add(x, ewx_octet_load(dtype, row->residual, at)), row->h, at);
    else if (row->h)
        ewx_octet_store(dtype, x, row->h, at);
    const ewx_octet squares = multiply(x, x);
    return squares.low + squares.high;
}

static size_t bytes_of(ew_dtype dtype, int64_t count)
{
    return (size_t)count * (dtype == EW_FP32 ? sizeof(float) : sizeof(uint16_t));
}

static const void *element(ew_dtype dtype, const void *row, int64_t at)
{
    return (const unsigned char *)row + bytes_of(dtype, at);
}

/* The last, incomplete octet: through copies that end with zeros. */
static ewx_floats add_rest(ew_dtype dtype, const ewx_epilogue_row *row, int64_t at,
                           int64_t count)
{
    float parts[3][EWX_OCTET] = {{0}}, results[2][EWX_OCTET];
    const void *sources[3] = {row->sum, row->bias, row->residual};
    void *places[2] = {row->c, row->h};
    for (int i = 0; i < 3; i++)
        if (sources[i])
            memcpy(parts[i], element(dtype, sources[i], at), bytes_of(dtype, count));
    const ewx_epilogue_row rest = {.sum = parts[0],
                                   .bias = row->bias ? parts[1] : NULL,
                                   .residual = row->residual ? parts[2] : NULL,
                                   .c = results[0],
                                   .h = results[1]};
    const ewx_floats squares = dtype == EW_FP32   ? add_octet(EW_FP32, &rest, 0)
                               : dtype == EW_BF16 ? add_octet(EW_BF16, &rest, 0)
                                                  : add_octet(EW_FP16, &rest, 0);
    for (int i = 0; i < 2; i++)
        if (places[i])
            memcpy((unsigned char *)places[i] + bytes_of(dtype, at), results[i],
                   bytes_of(dtype, count));
    return squares;
}

/* ---- Sums ---- */

/* Neighbours of x, then neighbours of y. */
SPECIALISED ewx_floats add_neighbours(ewx_floats x, ewx_floats y)
{
    return __builtin_shufflevector(x, y, 0, 2, 4, 6) +
           __builtin_shufflevector(x, y, 1, 3, 5, 7);
}

static float sum_tile(const ewx_floats parts[OCTETS])
{
    ewx_floats sums[OCTETS / 4]; /* four octets each */
    for (int i = 0; i < OCTETS / 4; i++)
        sums[i] = add_neighbours(add_neighbours(parts[4 * i], parts[4 * i + 1]),
                                 add_neighbours(parts[4 * i + 2], parts[4 * i + 3]));
    const ewx_floats apart4 = (sums[0] + sums[2]) + (sums[1] + sums[3]);
    return (apart4[0] + apart4[2]) + (apart4[1] + apart4[3]);
}

SPECIALISED float add_row(ew_dtype dtype, const ewx_epilogue_row *row, int64_t cols)
{
    ewx_floats parts[OCTETS] = {{0}};
    int64_t at = 0;
    for (; at + EWX_OCTET <= cols; at += EWX_OCTET)
        parts[at / EWX_OCTET] = add_octet(dtype, row, at);
    if (at < cols)
        parts[at / EWX_OCTET] = add_rest(dtype, row, at, cols - at);
    return sum_tile(parts);
}

float ewx_epilogue_add(ew_dtype dtype, const ewx_epilogue_row *row, int64_t cols)
{
    const ewx_epilogue_row copy = *row; /* known not to change while h is written */
    switch (dtype) {
    case EW_FP32:
        return add_row(EW_FP32, &copy, cols);
    case EW_BF16:
        return add_row(EW_BF16, &copy, cols);
    case EW_FP16:
        break;
    }
    return add_row(EW_FP16, &copy, cols);
}

float ewx_epilogue_scale(const float *squares, int64_t tiles, int64_t n, float eps)
{
    float sums[EWX_ROW_SUMS] = {0};
    for (int64_t tile = 0; tile < tiles; tile++)
        sums[tile % EWX_ROW_SUMS] += squares[tile];
    for (int apart = EWX_ROW_SUMS / 2; apart > 0; apart /= 2)
        for (int i = 0; i < apart; i++)
            sums[i] += sums[i + apart];
    return 1.0f / sqrtf(sums[0] / (float)n + eps);
}

/* ---- Norm ---- */

SPECIALISED void scale_octet(ew_dtype dtype, const void *h, ewx_octet r, const void *weight,
                             void *normed, int64_t at)
{
    const ewx_octet x = round_to(dtype, multiply(ewx_octet_load(dtype, h, at), r), NULL, 0);
    ewx_octet_store(dtype, multiply(x, ewx_octet_load(dtype, weight, at)), normed, at);
}

SPECIALISED void scale_row(ew_dtype dtype, const void *h, float r, const void *weight,
                           void *normed, int64_t n)
{
    const ewx_octet factor = eightfold(r);
    int64_t at = 0;
    for (; at + EWX_OCTET <= n; at += EWX_OCTET)
        scale_octet(dtype, h, factor, weight, normed, at);
    if (at == n)
        return;
    float parts[2][EWX_OCTET] = {{0}}, result[EWX_OCTET];
    const size_t rest = bytes_of(dtype, n - at);
    memcpy(parts[0], element(dtype, h, at), rest);
    memcpy(parts[1], element(dtype, weight, at), rest);
    scale_octet(dtype, parts[0], factor, parts[1], result, 0);
    memcpy((unsigned char *)normed + bytes_of(dtype, at), result, rest);
}

void ewx_epilogue_normalise(ew_dtype dtype, const void *h, float r, const void *weight,
                            void *normed, int64_t n)
{
    switch (dtype) {
    case EW_FP32:
        scale_row(EW_FP32, h, r, weight, normed, n);
        break;
    case EW_BF16:
        scale_row(EW_BF16, h, r, weight, normed, n);
        break;
    case EW_FP16:
        scale_row(EW_FP16, h, r, weight, normed, n);
        break;
    }
}
