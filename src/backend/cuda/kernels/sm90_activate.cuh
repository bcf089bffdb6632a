/* Who activates products, where an activation follows the GEMM for Hopper.
 *
 * A multiplier activates the upper half of its tile, while the tensor cores wait, and the
 * storer the lower half, while they work on the next block: it has room for no more.  Where
 * blocks are too short for one warp to be done in time, the multiplier does both. */
#ifndef EWX_CUDA_SM90_ACTIVATE_CUH
#define EWX_CUDA_SM90_ACTIVATE_CUH

#include "backend/cuda/kernels/activate.cuh"
#include "backend/cuda/kernels/sm90_cta.cuh"

namespace
{

constexpr int STEPS_TO_ACTIVATE = 24; /* of a block, for a storer to be done in time */

__device__ __forceinline__ bool storer_activates(int half, int num_steps)
{
    return half == 1 && num_steps >= STEPS_TO_ACTIVATE;
}

constexpr int BOX_PIECES = BOX_BYTES / 16;

/* One warp: pieces of a box of gates, and of one of ups where there is one, become results
 * in the place of the gates.  In a loop: code for many pieces, one behind the other, took
 * nearly three times as long. */
template <class T>
__device__ __forceinline__ void activate_box(const ewx_cuda_products &products,
                                             uint32_t gates, uint32_t ups, int first,
                                             int end, int lane)
{
#pragma unroll 1
    for (int i = first + lane; i < end; i += 32) {
        const uint4 gate = ld_shared_16(gates + i * 16), up = ld_shared_16(ups + i * 16);
        st_shared_16(gates + i * 16, activated_piece<T>(products.activation,
                                                        products.columns.paired, gate, up));
    }
}

/* A gate and its up are the two sides of a tile, or each side is a gate. */
template <class T, int TILES>
__device__ __forceinline__ void activate_boxes(const ewx_cuda_products &products,
                                               const arena<TILES> &memory, int tile,
                                               int first, int end, int lane)
{
    const uint32_t right = memory.box(tile, 1);
#pragma unroll 1
    for (int side = 0; side < (products.columns.paired ? 1 : 2); side++)
        activate_box<T>(products, memory.box(tile, side), right, first, end, lane);
}

} // namespace
#endif
