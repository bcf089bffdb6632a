/* Matrices for benchmarks and checks, made and checked where they lie. */
#include "backend/cuda/kernels/kernels.h"
#include "backend/cuda/kernels/ptx.cuh"

namespace
{

constexpr int THREADS = 256;

template <class T>
__device__ __forceinline__ uint16_t rounded(float value)
{
    return (uint16_t)element<T>::pack(value, 0.0f);
}

template <class T>
__device__ __forceinline__ float widened(uint16_t value)
{
    return element<T>::unpack(value).x;
}

__device__ __forceinline__ int64_t first_index()
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ int64_t stride()
{
    return (int64_t)gridDim.x * blockDim.x;
}

/* The matrix is zero; entries that meet in one place add up. */
template <class T>
__device__ void fill_row_of_a(const ewx_input &input, int64_t row, uint16_t *to)
{
    const uint32_t salt = ewx_exact_salt(input.seed, input.rank);
    const int entries = ewx_exact_entries(input.num_ranks);
    for (int s = 0; s < entries; s++) {
        const int64_t k = ewx_exact_a(salt, row, s, input.depth).k;
        int sum = 0;
        for (int other = 0; other < entries; other++) {
            const ewx_exact_entry entry = ewx_exact_a(salt, row, other, input.depth);
            sum += entry.k == k ? entry.sign : 0;
        }
        to[row * input.depth + k] = rounded<T>((float)sum);
    }
}

template <class T>
__device__ float value_of_b(const ewx_input &input, int64_t index)
{
    const bool by_rows = input.layout == EW_WEIGHT_NK;
    const int64_t inner = by_rows ? input.depth : input.rows;
    const int64_t outer_index = index / inner, inner_index = index % inner;
    const int64_t row = by_rows ? outer_index : inner_index;
    const int64_t k = by_rows ? inner_index : outer_index;
    return (float)ewx_exact_b(ewx_exact_salt(input.seed, input.rank), (uint32_t)row,
                              ewx_exact_k_hash(k));
}

template <class T>
__global__ void generator(const __grid_constant__ ewx_input input, uint16_t *to)
{
    if (input.kind == EWX_INPUT_EXACT_A) {
        for (int64_t row = first_index(); row < input.rows; row += stride())
            fill_row_of_a<T>(input, row, to);
        return;
    }
    const uint32_t salt = ewx_random_salt(input.seed);
    for (int64_t i = first_index(); i < input.rows * input.depth; i += stride())
        to[i] = rounded<T>(input.kind == EWX_INPUT_RANDOM ? ewx_random_value(salt, i)
                                                          : value_of_b<T>(input, i));
}

/* An element of A x B^T, of two ranks. */
__device__ int32_t value_of(const ewx_cuda_expectation &expected, int entries,
                            uint32_t salt_a, int64_t row, uint32_t salt_b, uint32_t col)
{
    int32_t sum = 0;
    for (int s = 0; s < entries; s++) {
        const ewx_exact_entry entry = ewx_exact_a(salt_a, row, s, expected.depth);
        sum += entry.sign * ewx_exact_b(salt_b, col, ewx_exact_k_hash(entry.k));
    }
    return sum;
}

/* Every rank's exact A has rows 0, 1, ... of its own. */
__device__ int32_t value_of_gathered(const ewx_cuda_expectation &expected, int entries,
                                     int64_t row, uint32_t col)
{
    const int64_t share = expected.all_rows / expected.num_ranks;
    const int64_t extra = expected.all_rows % expected.num_ranks;
    const bool is_large = row < extra * (share + 1);
    const int64_t rest = row - extra * (share + 1);
    const int64_t src = is_large ? row / (share + 1) : extra + rest / share;
    return value_of(expected, entries, ewx_exact_salt(expected.seed, (int)src),
                    is_large ? row % (share + 1) : rest % share,
                    ewx_exact_salt(expected.seed, expected.rank), col);
}

template <class T>
__global__ void verifier(const __grid_constant__ ewx_cuda_expectation expected,
                         const uint16_t *c, ewx_cuda_verdict *verdict)
{
    const int entries = ewx_exact_entries(expected.num_ranks);
    unsigned long long wrong = 0;
    double worst = 0;
    for (int64_t i = first_index(); i < expected.rows * expected.cols; i += stride()) {
        const int64_t row = expected.first_row + i / expected.cols;
        const uint32_t col = (uint32_t)(i % expected.cols);
        int32_t sum = 0;
        if (expected.gathers)
            sum = value_of_gathered(expected, entries, row, col);
        for (int rank = 0; rank < expected.num_ranks && !expected.gathers; rank++) {
            const uint32_t salt = ewx_exact_salt(expected.seed, rank);
            sum += value_of(expected, entries, salt, row, salt, col);
        }
        /* Bit for bit: a negative zero is wrong, and so is a NaN. */
        wrong += c[i] != rounded<T>((float)sum);
        const double error = fabs((double)widened<T>(c[i]) - sum);
        worst = error <= worst ? worst : error == error ? error : INFINITY;
    }
    if (wrong == 0)
        return;
    atomicAdd(&verdict->wrong, wrong);
    /* Errors are not negative, so their bits are in their order. */
    atomicMax(&verdict->worst_bits, (unsigned long long)__double_as_longlong(worst));
}

} // namespace

ewx_cuda_entry ewx_cuda_generator(ew_dtype dtype)
{
    return {dtype == EW_BF16 ? (const void *)generator<__nv_bfloat16>
                             : (const void *)generator<__half>,
            THREADS, 0, 0};
}

ewx_cuda_entry ewx_cuda_verifier(ew_dtype dtype)
{
    return {dtype == EW_BF16 ? (const void *)verifier<__nv_bfloat16>
                             : (const void *)verifier<__half>,
            THREADS, 0, 0};
}
