#include "block_kernels.h"

#include "backend/cuda/kernels/activate.cuh"

namespace
{

/* Gate and up beside each other in a row; the bits are those of the fused epilogue. */
__global__ void swiglu(const uint4 *wide, uint4 *out, int64_t rows, int64_t cols)
{
    const int64_t pieces = cols / PIECE;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < rows * pieces;
         i += (int64_t)gridDim.x * blockDim.x) {
        const uint4 *gate = wide + i / pieces * 2 * pieces + i % pieces;
        out[i] =
            activated_piece<__nv_bfloat16>(EW_ACTIVATION_SILU, true, *gate, gate[pieces]);
    }
}

/* The bits of numbers that are not negative are in their order; NaN comes last. */
__device__ __forceinline__ unsigned magnitude_bits(float x)
{
    return __float_as_uint(fabsf(x));
}

__global__ void compare(const uint16_t *one, const uint16_t *other, int64_t count,
                        block_verdict *verdict)
{
    unsigned long long different = 0;
    unsigned worst_bits = 0, largest_bits = 0;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < count;
         i += (int64_t)gridDim.x * blockDim.x) {
        const float x = __uint_as_float((unsigned)one[i] << 16);
        const float y = __uint_as_float((unsigned)other[i] << 16);
        largest_bits = max(largest_bits, magnitude_bits(y));
        if (one[i] == other[i])
            continue;
        different++;
        worst_bits = max(worst_bits, magnitude_bits(x - y));
    }
    atomicAdd(&verdict->different, different);
    atomicMax(&verdict->worst_bits, worst_bits);
    atomicMax(&verdict->largest_bits, largest_bits);
}

} // namespace

ewx_cuda_entry block_swiglu_kernel(void)
{
    return {(const void *)swiglu, 256, 0, 0};
}

ewx_cuda_entry block_compare_kernel(void)
{
    return {(const void *)compare, 256, 0, 0};
}
