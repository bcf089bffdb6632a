/* fp32 kernel in GNU C vectors, for machines without a kernel of their own, and the
 * reference that the others are compared with. */
#include "backend/cpu/kernels/portable.h"

#include "backend/cpu/kernels/convert.h"
#include "backend/cpu/kernels/kernel.h"
#include "base/dtype.h"

/* 4 x 8: eight accumulators of four floats fit the 16 registers of SSE2 as well. */
enum { MR = 4, NR = 8, LANES = 4 };

typedef float vector __attribute__((vector_size(LANES * sizeof(float))));

static inline vector load(const float *src)
{
    vector value;
    memcpy(&value, src, sizeof value);
    return value;
}

static void multiply(int64_t depth, const void *a, const void *b, float *acc,
                     int64_t stride, bool accumulate, ewx_ahead ahead)
{
    ewx_prefetch(ahead);
    const float *pa = a, *pb = b;
    vector sum[MR][2];
    for (int i = 0; i < MR; i++)
        for (int j = 0; j < 2; j++)
            sum[i][j] = accumulate ? load(acc + i * stride + j * LANES) : (vector){0};
    for (int64_t k = 0; k < depth; k++, pa += MR, pb += NR) {
        const vector b0 = load(pb), b1 = load(pb + LANES);
        for (int i = 0; i < MR; i++) {
            sum[i][0] += pa[i] * b0;
            sum[i][1] += pa[i] * b1;
        }
    }
    for (int i = 0; i < MR; i++)
        memcpy(acc + i * stride, sum[i], sizeof sum[i]);
}

bool ewx_always_available(void)
{
    return true;
}

void ewx_store_bf16(const float *acc, int64_t stride, int rows, int cols, uint16_t *dst,
                    int64_t dst_stride)
{
    for (int i = 0; i < rows; i++) {
        const float *row = acc + i * stride;
        int j = 0;
        for (; j + EWX_OCTET <= cols; j += EWX_OCTET)
            ewx_octet_store(EW_BF16, ewx_octet_load(EW_FP32, row, j), dst + i * dst_stride,
                            j);
        for (; j < cols; j++)
            dst[i * dst_stride + j] = ewx_bf16_from_f32(row[j]);
    }
}

void ewx_store_fp16(const float *acc, int64_t stride, int rows, int cols, uint16_t *dst,
                    int64_t dst_stride)
{
    for (int i = 0; i < rows; i++) {
        const float *row = acc + i * stride;
        int j = 0;
        for (; j + EWX_OCTET <= cols; j += EWX_OCTET)
            ewx_octet_store(EW_FP16, ewx_octet_load(EW_FP32, row, j), dst + i * dst_stride,
                            j);
        for (; j < cols; j++)
            dst[i * dst_stride + j] = ewx_fp16_from_f32(row[j]);
    }
}

const ewx_kernel ewx_kernel_portable = {
    .name = "portable-4x8-fp32",
    .packs = EW_FP32,
    .mr = MR,
    .nr = NR,
    .kr = 1,
    .max_chunk = 512,
    .stream_panels = 3,
    .available = ewx_always_available,
    .multiply = multiply,
    .store_bf16 = ewx_store_bf16,
    .store_fp16 = ewx_store_fp16,
};
