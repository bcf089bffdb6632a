/* What is left of an epilogue when the sums are there: rows that the reducer could
 * not normalise in time, or all of it after a sum that was not ours.  A CTA does a few rows
 * at a time, so that many are in flight even where a rank has few. */
#include "backend/cuda/kernels/epilogue.cuh"
#include "backend/cuda/kernels/protocol.cuh"

namespace
{

/* Fits where a reducing CTA does, beside a producer that is still at work. */
constexpr int THREADS = 256, CTAS_PER_SM = 4, BATCH = 4;
constexpr int WARPS_PER_ROW = 4, ROWS = THREADS / WARP / WARPS_PER_ROW;
static_assert(ROWS == EWX_CUDA_EPILOGUE_ROWS, "the host counts CTAs by it");

/* Warp `part` of a row: c, h and the squares of its pieces, from their sum. */
template <class T>
__device__ void add_row(const ewx_cuda_epilogue &epilogue, const ewx_grid &grid,
                        int64_t row, int part, int lane)
{
    constexpr int STEP = WARP * WARPS_PER_ROW;
    const uint64_t once = l2_evict_first();
    const int pieces = (int)(grid.cols / PIECE);
    const int64_t at = row * grid.cols * 2;
#pragma unroll 1
    for (int first = part * WARP + lane; first - lane < pieces; first += STEP * BATCH) {
        uint4 sum[BATCH], residual[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int piece = first + i * STEP;
            residual[i] = make_uint4(0, 0, 0, 0);
            if (piece < pieces)
                sum[i] = ld_16((const unsigned char *)epilogue.sum + at + piece * 16, once);
            if (piece < pieces && epilogue.has_residual)
                residual[i] =
                    ld_16((const unsigned char *)epilogue.h + at + piece * 16, once);
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            const int piece = first + i * STEP;
            float squares = 0;
            if (piece < pieces)
                squares = squares_of_piece<T>(finish_piece<T>(epilogue, sum[i], residual[i],
                                                              at + piece * 16, piece * 16));
            squares = squares_of_tile(squares);
            if (piece < pieces && piece % PIECES_PER_ROW == 0)
                squares_at(epilogue, grid, row)[piece / PIECES_PER_ROW] = squares;
        }
    }
}

template <class T, bool WHOLE>
__global__ void __launch_bounds__(THREADS, CTAS_PER_SM)
    finish_rows(const __grid_constant__ ewx_cuda_epilogue epilogue,
                const __grid_constant__ ewx_cuda_call call)
{
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const int part = warp % WARPS_PER_ROW;
    const int64_t rows = owned_rows(call);
    await_kernel_before();
    const int64_t done = WHOLE ? 0 : epilogue.counters->next_strip * EWX_STRIP_ROWS;
    if (__syncthreads_or(has_stopped(call))) /* not everything was summed */
        return;
    for (int64_t first = done + blockIdx.x * ROWS; first < rows;
         first += gridDim.x * ROWS) {
        const int64_t row = first + warp / WARPS_PER_ROW;
        if (WHOLE && row < rows)
            add_row<T>(epilogue, call.grid, row, part, lane);
        if (WHOLE)
            __syncthreads(); /* the row's squares, by all its warps */
        if (epilogue.normed && row < rows)
            normalise_row<T, BATCH>(epilogue, call.grid, row, {WARPS_PER_ROW, part}, lane,
                                    own_row());
    }
    __syncthreads();
    if (threadIdx.x == 0)
        close_epilogue(epilogue, call);
}

template <bool WHOLE>
ewx_cuda_entry entry_of(ew_dtype dtype)
{
    if (dtype == EW_FP32)
        return {};
    return {dtype == EW_BF16 ? (const void *)finish_rows<__nv_bfloat16, WHOLE>
                             : (const void *)finish_rows<__half, WHOLE>,
            THREADS, 0, 0};
}

} // namespace

ewx_cuda_entry ewx_cuda_epilogue_rest(ew_dtype dtype)
{
    return entry_of<false>(dtype);
}

ewx_cuda_entry ewx_cuda_epilogue_whole(ew_dtype dtype)
{
    return entry_of<true>(dtype);
}
