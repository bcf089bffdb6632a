/* Which variant of a reducer adds up a call's contributions: one for every type and number
 * of threads, and for the numbers of contributions that occur most; W = 0 is the variant
 * for any number.  A family of kernels says which it has:
 *
 *     static constexpr int FEWEST, MOST_THREADS;
 *     template <class T, int THREADS, int W> static const void *kernel(); */
#ifndef EWX_CUDA_VARIANTS_CUH
#define EWX_CUDA_VARIANTS_CUH

#include "backend/cuda/kernels/kernels.h"

namespace
{

template <class FAMILY, class T, int THREADS>
const void *variant_for(int num_contributions)
{
    switch (num_contributions) {
    case 1:
        return FAMILY::template kernel<T, THREADS, FAMILY::FEWEST == 1>();
    case 2:
        return FAMILY::template kernel<T, THREADS, 2>();
    case 4:
        return FAMILY::template kernel<T, THREADS, 4>();
    case 8:
        return FAMILY::template kernel<T, THREADS, 8>();
    }
    return FAMILY::template kernel<T, THREADS, 0>();
}

template <class FAMILY, class T>
const void *variant_for(int num_contributions, int threads)
{
    switch (threads) {
    case 128:
        return variant_for<FAMILY, T, 128>(num_contributions);
    case 256:
        return variant_for<FAMILY, T, 256>(num_contributions);
    case 512:
        if constexpr (FAMILY::MOST_THREADS >= 512)
            return variant_for<FAMILY, T, 512>(num_contributions);
    }
    return nullptr;
}

template <class FAMILY>
ewx_cuda_entry entry_of(ew_dtype dtype, int num_contributions, int threads)
{
    if (dtype == EW_FP32)
        return {};
    return {dtype == EW_BF16
                ? variant_for<FAMILY, __nv_bfloat16>(num_contributions, threads)
                : variant_for<FAMILY, __half>(num_contributions, threads),
            threads, 0, 0};
}

} // namespace
#endif
