/* The activation of products that a kernel has computed.  A product is rounded before, as
 * if it had been stored, so the bits are those of an activation afterwards. */
#ifndef EWX_CUDA_ACTIVATE_CUH
#define EWX_CUDA_ACTIVATE_CUH

#include "backend/cuda/kernels/pieces.cuh"
#include "plan/activation_math.h"

template <class T>
__device__ __forceinline__ float2 rounded_pair(float low, float high)
{
#if EW_MUTANT == 64 /* planted bug: products go into the activation as they are */
    return make_float2(low, high);
#endif
    return element<T>::unpack(element<T>::pack(low, high));
}

/* Of a gate, times an up where there is one.  The gate stays as it is: where an accumulator
 * of wgmma is written by anything else, ptxas makes every wgmma wait for the one before. */
template <class T, ew_activation ACTIVATION, bool HAS_UP, int COUNT>
__device__ __forceinline__ void activate_as(float *result, const float *gate,
                                            const float *up)
{
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) {
        const float2 x = rounded_pair<T>(gate[i], gate[i + 1]);
        result[i] = ewx_activate(ACTIVATION, x.x);
        result[i + 1] = ewx_activate(ACTIVATION, x.y);
        if constexpr (HAS_UP) {
            const float2 y = rounded_pair<T>(up[i], up[i + 1]);
            result[i] = EWX_MUL(result[i], y.x);
            result[i + 1] = EWX_MUL(result[i + 1], y.y);
        }
    }
}

/* Compiled for each activation. */
template <class T, bool HAS_UP, int COUNT>
__device__ __forceinline__ void activate(int activation, float *result, const float *gate,
                                         const float *up)
{
    if (activation == EW_ACTIVATION_SILU)
        activate_as<T, EW_ACTIVATION_SILU, HAS_UP, COUNT>(result, gate, up);
    else if (activation == EW_ACTIVATION_GELU_TANH)
        activate_as<T, EW_ACTIVATION_GELU_TANH, HAS_UP, COUNT>(result, gate, up);
    else
        activate_as<T, EW_ACTIVATION_NONE, HAS_UP, COUNT>(result, gate, up);
}

/* The same of a piece that has been rounded. */
template <class T>
__device__ __forceinline__ uint4 activated_piece(int activation, bool has_up, uint4 gate,
                                                 uint4 up)
{
    float x[PIECE], y[PIECE];
    unpack<T>(x, gate);
    unpack<T>(y, up);
    if (has_up)
        activate<T, true, PIECE>(activation, x, x, y);
    else
        activate<T, false, PIECE>(activation, x, x, nullptr);
    return rounded<T>(x);
}

#endif
