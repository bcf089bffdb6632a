/* The activation of products that a kernel has computed and rounded, as if they had been
 * stored: the bits are those of an activation afterwards. */
#ifndef EWX_CUDA_ACTIVATE_CUH
#define EWX_CUDA_ACTIVATE_CUH

#include "backend/cuda/kernels/pieces.cuh"
#include "plan/activation_math.h"

/* Activates a gate and multiplies it by an up, where there is one. */
template <ew_activation ACTIVATION, bool HAS_UP>
__device__ __forceinline__ void activate_as(float (&gate)[PIECE], const float (&up)[PIECE])
{
#pragma unroll
    for (int i = 0; i < PIECE; i++) {
        gate[i] = ewx_activate(ACTIVATION, gate[i]);
        if constexpr (HAS_UP)
            gate[i] = EWX_MUL(gate[i], up[i]);
    }
}

/* Compiled for each activation. */
template <bool HAS_UP>
__device__ __forceinline__ void activate(int activation, float (&gate)[PIECE],
                                         const float (&up)[PIECE])
{
    if (activation == EW_ACTIVATION_SILU)
        activate_as<EW_ACTIVATION_SILU, HAS_UP>(gate, up);
    else if (activation == EW_ACTIVATION_GELU_TANH)
        activate_as<EW_ACTIVATION_GELU_TANH, HAS_UP>(gate, up);
    else
        activate_as<EW_ACTIVATION_NONE, HAS_UP>(gate, up);
}

template <class T>
__device__ __forceinline__ uint4 activated_piece(int activation, bool has_up, uint4 gate,
                                                 uint4 up)
{
    float x[PIECE], y[PIECE];
    unpack<T>(x, gate);
    unpack<T>(y, up);
    if (has_up)
        activate<true>(activation, x, y);
    else
        activate<false>(activation, x, y);
    return rounded<T>(x);
}

#endif
