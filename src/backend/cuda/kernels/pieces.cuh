/* Pieces of 16 bytes: eight elements of a row, which a thread holds at a time. */
#ifndef EWX_CUDA_PIECES_CUH
#define EWX_CUDA_PIECES_CUH

#include "backend/cuda/kernels/ptx.cuh"
#include "plan/grid.h"

constexpr int PIECE = 8;                           /* elements of 16 bytes */
constexpr int PIECES_PER_ROW = EWX_TILE_N / PIECE; /* of a tile */

template <class T>
__device__ __forceinline__ void unpack(float (&x)[PIECE], uint4 v)
{
    const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 f = element<T>::unpack(pairs[i]);
        x[2 * i] = f.x;
        x[2 * i + 1] = f.y;
    }
}

template <class T>
__device__ __forceinline__ void add(float (&sum)[PIECE], uint4 v)
{
    const uint32_t pairs[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 f = element<T>::unpack(pairs[i]);
        sum[2 * i] += f.x;
        sum[2 * i + 1] += f.y;
    }
}

template <class T>
__device__ __forceinline__ uint4 rounded(const float (&sum)[PIECE])
{
    return make_uint4(element<T>::pack(sum[0], sum[1]), element<T>::pack(sum[2], sum[3]),
                      element<T>::pack(sum[4], sum[5]), element<T>::pack(sum[6], sum[7]));
}

#endif
