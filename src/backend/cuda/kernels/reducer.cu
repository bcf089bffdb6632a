/* The reducer: x CTAs, each with every x-th of the rank's tiles, in the order in which
 * producers compute them.  A CTA waits until all ranks have published a tile, pulls their
 * contributions in 16-byte pieces, adds them in fp32 in the order of the ranks (of a rank
 * that has several, in that of its pieces of K), and writes the rounded sum into the
 * caller's matrix.
 *
 * Registers are capped so that a CTA fits beside a producer CTA (16384 are left there). */
#include "backend/cuda/kernels/finish_tile.cuh"
#include "backend/cuda/kernels/variants.cuh"

namespace
{

/* ---- This rank's tiles ---- */

/* A tile of this rank's part, or the rows that it owns in a tile that spans owners. */
__device__ __forceinline__ ewx_tile own_tile(const ewx_cuda_call &call,
                                             const ewx_share &mine, int64_t index)
{
    return mine.ownership == EWX_OWNS_ROWS
               ? ewx_share_tile_in_columns(&call.grid, &mine, index)
               : ewx_task_tile(&call.grid, mine.part, index);
}

/* The number by which its contributions are published. */
__device__ __forceinline__ int64_t flag_task(const ewx_cuda_call &call, int64_t index,
                                             ewx_tile tile)
{
    return call.ownership == EWX_OWNS_ROWS ? ewx_tile_task(&call.grid, 0, tile) : index;
}

/* The whole CTA, when it has read a sum that contributions were added to: for the next call
 * but one, of which any part of the tile may hold output. */
template <int THREADS>
__device__ void clear_sum(const ewx_cuda_call &call, const tile_place &place)
{
    const uint64_t soon = l2_evict_normal();
    unsigned char *tile = call.heaps[call.rank] + place.source;
    __syncthreads();
    for (int piece = threadIdx.x; piece < PIECES; piece += THREADS)
        st_16(tile + piece * 16, make_uint4(0, 0, 0, 0), soon);
}

/* ---- With an epilogue ---- */

/* The whole CTA, after a tile: counts it, and normalises rows that are complete. */
template <class T, int THREADS>
__device__ void normalise_some(const ewx_cuda_call &call, const ewx_cuda_epilogue &epilogue,
                               int tile_row)
{
    __shared__ int taken;
    const int rows = (int)ewx_part_rows(&call.grid, call.rank);
    __syncthreads();
    if (threadIdx.x == 0) {
        count_tile(epilogue, tile_row);
        taken = take_strip(epilogue, (int)ewx_num_strips(rows), EWX_BLOCK_STRIPS,
                           (uint32_t)call.grid.tile_cols);
    }
    __syncthreads();
    const int strip = taken;
    if (strip < 0)
        return;
    const int first = strip * EWX_STRIP_ROWS, end = min(first + EWX_STRIP_ROWS, rows);
    for (int row = first + threadIdx.x / WARP; row < end; row += THREADS / WARP)
        normalise_row<T, 2>(epilogue, call.grid, row, {1, 0}, threadIdx.x % WARP,
                            own_row());
}

/* ---- The kernel ---- */

/* FUSED: with the epilogue, which is otherwise not read. */
template <class T, int THREADS, int W, int SOURCES, int ROWS, bool FUSED>
__device__ __forceinline__ void reduce(const ewx_cuda_output &output,
                                       const ewx_cuda_call &call,
                                       const ewx_cuda_epilogue &epilogue)
{
    const uint32_t epoch = call.counters->epochs[EWX_STAGE_EXCHANGE] + 1;
    const int first_task = (int)output.first_task + blockIdx.x;
    if (output.announce && blockIdx.x == 0 && threadIdx.x == 0)
        announce_output(call, epoch);
    for (int task = first_task; task < (int)output.end_task; task += gridDim.x) {
        const ewx_tile tile = own_tile(call, output.mine, task);
        const ewx_tile_rows rows = ewx_share_tile_rows(&call.grid, &output.mine, tile);
        const tile_place place = own_place(output, call, epoch, output.mine, tile, rows);
        const int first_row = (int)rows.place;
        const bool paced = is_paced(call) && !call.pushed;
        transfer on_link = {0, 0};
        bool ready = true;
        if (threadIdx.x < 32) {
            if (task == first_task)
                ready = calls_agree(call, epoch, threadIdx.x);
            ready = ready &&
                    await_tile(call, epoch, flag_task(call, task, tile), tile, threadIdx.x);
            if (ready && threadIdx.x == 0)
                stamp_begin(call.trace.reduced, task);
            if (ready && paced) {
                on_link = book_pull(call, place.height * place.pieces * 16, threadIdx.x);
                await_time(on_link.begin_ns);
            }
        }
        if (!__syncthreads_and(ready))
            break;
        if (FUSED)
            finish_tile<T, THREADS, W, SOURCES, ROWS>(place, call, epilogue, first_row,
                                                      (int)tile.col);
        else
            reduce_tile<T, THREADS, W, SOURCES, ROWS, beyond::NOTHING>(
                place, call, false, ewx_cuda_symmetric());
#if EW_MUTANT != 83 /* planted bug: sums go on from where they were */
        if (call.adds)
            clear_sum<THREADS>(call, place);
#endif
        if (paced && threadIdx.x < 32)
            await_time(on_link.end_ns);
        if (threadIdx.x == 0)
            stamp_end(call.trace.reduced, task);
        if (FUSED && epilogue.normed)
            normalise_some<T, THREADS>(call, epilogue, (int)tile.row);
    }
    /* All contributions are there, so a kernel that takes SMs now keeps no producer from
     * anything this one waits for. */
    let_next_kernel_start();
    __syncthreads();
    if (threadIdx.x == 0)
        close_reducer(call, epoch, output.closes);
}

template <class T, int THREADS, int W, int SOURCES, int ROWS>
__global__ void __launch_bounds__(THREADS, CTAS_PER_SM<THREADS>)
    reducer(const __grid_constant__ ewx_cuda_output output,
            const __grid_constant__ ewx_cuda_call call)
{
    reduce<T, THREADS, W, SOURCES, ROWS, false>(output, call, ewx_cuda_epilogue());
}

/* At most 64 registers for 512 threads too: 32 are too few for all this. */
template <class T, int THREADS, int W, int SOURCES, int ROWS>
__global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    fused_reducer(const __grid_constant__ ewx_cuda_output output,
                  const __grid_constant__ ewx_cuda_call call,
                  const __grid_constant__ ewx_cuda_epilogue epilogue)
{
    reduce<T, THREADS, W, SOURCES, ROWS, true>(output, call, epilogue);
}

/* How many contributions of how many pieces a thread has in flight: the product hides the
 * latency of remote loads and must fit the registers, beside what an epilogue needs. */
template <bool FUSED>
struct reducers {
    static constexpr int FEWEST = 1, MOST_THREADS = 512;

    template <class T, int THREADS, int W>
    static const void *kernel()
    {
        constexpr int MOST = FUSED            ? (W == 8 && THREADS < 512 ? 8 : 4)
                             : THREADS == 512 ? 2
                                              : 8;
        constexpr int SOURCES = W == 0 || W > MOST ? MOST : W;
        constexpr int ROWS = THREADS == 512 || W == 0 ? 1 : (FUSED ? 4 : 8) / SOURCES;
        if constexpr (FUSED)
            return (
                const void *)fused_reducer<T, THREADS, W, SOURCES, (ROWS > 0 ? ROWS : 1)>;
        else
            return (const void *)reducer<T, THREADS, W, SOURCES, ROWS>;
    }
};

} // namespace

ewx_cuda_entry ewx_cuda_reducer(ew_dtype dtype, int num_sources, int threads)
{
    return entry_of<reducers<false>>(dtype, num_sources, threads);
}

ewx_cuda_entry ewx_cuda_fused_reducer(ew_dtype dtype, int num_sources, int threads)
{
    return entry_of<reducers<true>>(dtype, num_sources, threads);
}
