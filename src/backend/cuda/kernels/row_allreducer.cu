/* GEMM-AllReduce in a layer whose ranks have a residual of their own rows alone.  Every
 * rank sums its rows and adds bias and residual, as the fused reducer of GEMM-RS does, and
 * normalises them in strips.  It gives each strip's norm to all others: it stores it in
 * their heaps, in place of their contributions to the same rows, of which it is the only
 * reader and which it has read.  The others copy it from there.  Where `normed` lies in
 * symmetric memory the strip goes straight into it on all ranks, and they only wait.
 *
 * Between its own tiles a CTA normalises and copies what is there.  It waits for strips
 * only when it has no tile left to sum, and for those of other ranks only when every strip
 * of its own rank is taken: as all x are resident together, none of them keeps back what
 * another one, or another rank, waits for. */
#include "backend/cuda/kernels/finish_tile.cuh"
#include "backend/cuda/kernels/straight.cuh"
#include "backend/cuda/kernels/variants.cuh"

namespace
{

/* What a CTA finds when it looks for a strip. */
enum { NOT_READY = -1, NONE_LEFT = -2, GIVEN_UP = -3 };

/* ---- Where rows lie ---- */

__device__ ewx_share share_of(const ewx_cuda_call &call, int owner)
{
    return ewx_share_of(&call.grid, (ewx_ownership)call.ownership, call.num_ranks, owner);
}

/* The number, among all rows of the call, of row `row` of a share. */
__device__ int64_t row_of_call(const ewx_cuda_call &call, const ewx_share &share,
                               int64_t row)
{
    return ewx_part_first_row(&call.grid, share.part) + share.first_row + row;
}

/* A row in the slots of its tiles: the same place in every segment. */
struct slot_row {
    int64_t first;     /* bytes into a segment */
    int64_t tile_step; /* bytes from tile to tile */
};

__device__ slot_row slots_of_row(const ewx_cuda_call &call, uint32_t epoch,
                                 const ewx_share &share, int64_t row)
{
    const int64_t at = share.first_row + row, slice = call.slice_offset[epoch & 1];
    const ewx_tile tile = {at / EWX_TILE_M, 0};
    if (call.row_major)
        return {slice + row_of_call(call, share, row) * call.grid.cols * 2, EWX_TILE_N * 2};
    return {slice + slot_offset(call, slot_of(call, share.part, tile)) +
                at % EWX_TILE_M * EWX_TILE_N * 2,
            slot_offset(call, 1)};
}

__device__ __forceinline__ int64_t piece_of_row(const slot_row &row, int piece)
{
    return row.first + piece / PIECES_PER_ROW * row.tile_step + piece % PIECES_PER_ROW * 16;
}

/* ---- This rank's tiles ---- */

/* In the order in which the GEMM makes them, or nearly. */
__device__ ewx_tile own_tile(const ewx_cuda_call &call, const ewx_share &mine, int index)
{
    if (mine.ownership == EWX_OWNS_PART)
        return ewx_task_tile(&call.grid, mine.part, index);
    return ewx_share_tile_in_columns(&call.grid, &mine, index);
}

/* The whole CTA: false when the call is given up. */
template <class T, int THREADS, int W, int SOURCES, int ROWS>
__device__ bool finish_own_tile(const ewx_cuda_output &output, const ewx_cuda_call &call,
                                uint32_t epoch, const ewx_cuda_epilogue &epilogue,
                                const ewx_cuda_strips &strips, int index)
{
    const ewx_share &mine = strips.mine;
    const ewx_tile tile = own_tile(call, mine, index);
    const ewx_tile_rows rows = ewx_share_tile_rows(&call.grid, &mine, tile);
    transfer on_link = {0, 0};
    bool ready = true;
    if (threadIdx.x < 32) {
        ready = await_tile(call, epoch, ewx_tile_task(&call.grid, mine.part, tile), tile,
                           threadIdx.x);
        if (ready && is_paced(call)) {
            const int64_t bytes =
                (rows.end - rows.first) * ewx_tile_width(&call.grid, tile) * 2;
            on_link = book_pull(call, bytes, threadIdx.x);
            await_time(on_link.begin_ns);
        }
    }
    if (!__syncthreads_and(ready))
        return false;
    finish_tile<T, THREADS, W, SOURCES, ROWS>(
        own_place(output, call, epoch, mine, tile, rows), call, epilogue, rows.place,
        (int)tile.col);
    if (threadIdx.x < 32)
        await_time(on_link.end_ns); /* 0 without a link */
    __syncthreads();
    if (threadIdx.x == 0)
        count_tile(epilogue, mine.ownership == EWX_OWNS_PART ? (int)tile.row : 0);
    return true;
}

/* ---- This rank's strips ---- */

__device__ int num_strips(const ewx_cuda_strips &strips, const ewx_share &share)
{
    return (int)ewx_div_up(share.num_rows, strips.rows);
}

__device__ uint32_t *strip_result(const ewx_cuda_call &call, const ewx_cuda_strips &strips,
                                  int reader, int owner, int strip)
{
    return reinterpret_cast<uint32_t *>(call.heaps[reader] + strips.results_offset) +
           owner * strips.results_per_rank + (int64_t)strip * strips.rows;
}

/* Gives the pieces of a row's norm to all others. */
template <int W>
struct shared_row {
    const ewx_cuda_call &call;
    const ewx_cuda_symmetric &symmetric;
    slot_row row;
    unsigned char *straight; /* NULL, or the row in this rank's output */

    __device__ __forceinline__ void put(int piece, uint4 v) const
    {
        if (straight)
            push_straight<W>(call, symmetric, straight + piece * 16, v);
        else
            push_piece<W>(call, piece_of_row(row, piece), v);
    }
};

__device__ unsigned char *normed_row(const ewx_cuda_call &call,
                                     const ewx_cuda_strips &strips, int64_t row)
{
    return (unsigned char *)strips.normed +
           row_of_call(call, strips.mine, row) * call.grid.cols * 2;
}

/* One thread, behind a block barrier that all who wrote the strip have passed: as
 * publish_result. */
__device__ void publish_strip(const ewx_cuda_call &call, const ewx_cuda_strips &strips,
                              uint32_t epoch, int strip)
{
    fence_release_sys();
    for (int reader = 0; reader < call.num_ranks; reader++)
        if (reader != call.rank)
            st_relaxed_sys(strip_result(call, strips, reader, call.rank, strip), epoch);
}

/* How the warps of a CTA share a strip: all a row, if it has only one, else a row each. */
template <int THREADS>
__device__ row_warps warps_of(const ewx_cuda_strips &strips)
{
    const int warp = threadIdx.x / WARP;
    return strips.rows == 1 ? row_warps{THREADS / WARP, warp} : row_warps{1, 0};
}

/* The whole CTA, whose threads have all seen that the tiles of the strip are there. */
template <class T, int THREADS, int W>
__device__ void share_strip(const ewx_cuda_call &call, uint32_t epoch,
                            const ewx_cuda_epilogue &epilogue,
                            const ewx_cuda_strips &strips, int strip, bool straight)
{
    const row_warps warps = warps_of<THREADS>(strips);
    const int first = strip * strips.rows;
    const int end = (int)ewx_min64(first + strips.rows, strips.mine.num_rows);
#if EW_MUTANT == 49 /* planted bug: the flag before the norm */
    if (threadIdx.x == 0)
        publish_strip(call, strips, epoch, strip);
#endif
    for (int row = first + (warps.count == 1 ? threadIdx.x / WARP : 0); row < end;
         row += THREADS / WARP)
        normalise_row<T, 2>(
            epilogue, call.grid, row, warps, threadIdx.x % WARP,
            shared_row<W>{call, strips.symmetric,
                          slots_of_row(call, epoch, strips.mine, row),
                          straight ? normed_row(call, strips, row) : nullptr});
    __syncthreads();
    if (threadIdx.x >= 32)
        return;
    await_result_push(call, (end - first) * call.grid.cols * 2, threadIdx.x);
    if (threadIdx.x == 0)
        publish_strip(call, strips, epoch, strip);
}

/* One thread: as take_strip, but `waits` until the next one is ready. */
__device__ int take_own_strip(const ewx_cuda_call &call, const ewx_cuda_epilogue &epilogue,
                              const ewx_cuda_strips &strips, bool waits)
{
    const int count = num_strips(strips, strips.mine);
    const uint32_t next = *(volatile uint32_t *)&epilogue.counters->next_strip;
    if (next >= (uint32_t)count)
        return NONE_LEFT;
    if (waits && !await_count(call, &epilogue.counters->row_tiles[next / strips.per_block],
                              strips.tiles))
        return GIVEN_UP;
    return take_strip(epilogue, count, strips.per_block, strips.tiles);
}

/* The whole CTA: normalises strips until none is left or, unless it `waits`, ready; false
 * when the call is given up. */
template <class T, int THREADS, int W>
__device__ __noinline__ bool share_strips(const ewx_cuda_call &call, uint32_t epoch,
                                          const ewx_cuda_epilogue &epilogue,
                                          const ewx_cuda_strips &strips, bool straight,
                                          bool waits)
{
    __shared__ int taken;
    for (;;) {
        __syncthreads(); /* all have read the one before */
        if (threadIdx.x == 0)
            taken = take_own_strip(call, epilogue, strips, waits);
        __syncthreads();
        const int strip = taken;
        if (strip == NONE_LEFT || strip == GIVEN_UP || (strip == NOT_READY && !waits))
            return strip != GIVEN_UP;
        if (strip >= 0) /* else another CTA took it */
            share_strip<T, THREADS, W>(call, epoch, epilogue, strips, strip, straight);
    }
}

/* ---- The others' strips ---- */

__device__ void copy_row(const ewx_cuda_call &call, const slot_row &from, void *normed,
                         int64_t row, row_warps warps)
{
    constexpr int AT_ONCE = 4;
    const uint64_t once = l2_evict_first();
    const int step = WARP * warps.count, pieces = (int)(call.grid.cols / PIECE);
    const unsigned char *heap = call.heaps[call.rank];
    unsigned char *to = (unsigned char *)normed + row * call.grid.cols * 2;
#pragma unroll 1
    for (int first = warps.mine * WARP + threadIdx.x % WARP; first < pieces;
         first += step * AT_ONCE) {
        uint4 v[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (first + i * step < pieces)
                v[i] = ld_16(heap + piece_of_row(from, first + i * step), once);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (first + i * step < pieces)
                st_16(to + (first + i * step) * 16, v[i], once);
    }
}

/* The whole CTA: copies one of the others' strips, unless it came straight here; numbered
 * so that early ones of all come first; false when it is not there, if it `waits` because
 * the call is given up. */
template <int THREADS>
__device__ __noinline__ bool collect_strip(const ewx_cuda_call &call, uint32_t epoch,
                                           const ewx_cuda_strips &strips, int index,
                                           bool straight, bool waits)
{
    const int others = call.num_ranks - 1, strip = index / others;
    const int owner = (call.rank + 1 + index % others) % call.num_ranks;
    const ewx_share share = share_of(call, owner);
    const int64_t first = (int64_t)strip * strips.rows;
    bool ready = true;
    if (strip >= num_strips(strips, share))
        return true;
#if EW_MUTANT != 50 /* planted bug: norms are copied before they are made */
    if (threadIdx.x == 0) {
        const uint32_t *word = strip_result(call, strips, call.rank, owner, strip);
        const int tile_row = (int)((share.first_row + first) / EWX_TILE_M);
        ready = waits
                    ? await_epoch(call, word, epoch, {EWX_CUDA_RESULT, owner, tile_row, 0})
                    : has_reached(word, epoch);
    }
#endif
    if (!__syncthreads_and(ready))
        return false;
    if (straight)
        return true;
    const row_warps warps = warps_of<THREADS>(strips);
    const int64_t end = ewx_min64(first + strips.rows, share.num_rows);
    for (int64_t row = first + (warps.count == 1 ? threadIdx.x / WARP : 0); row < end;
         row += THREADS / WARP)
        copy_row(call, slots_of_row(call, epoch, share, row), strips.normed,
                 row_of_call(call, share, row), warps);
    __syncthreads(); /* no store is under way when something is published */
    return true;
}

/* ---- The kernel ---- */

template <class T, int THREADS, int W, int SOURCES, int ROWS>
__global__ void __launch_bounds__(THREADS, CTAS_PER_SM<THREADS>)
    row_allreducer(const __grid_constant__ ewx_cuda_output output,
                   const __grid_constant__ ewx_cuda_call call,
                   const __grid_constant__ ewx_cuda_epilogue epilogue,
                   const __grid_constant__ ewx_cuda_strips strips)
{
    const uint32_t epoch = call.counters->epochs[EWX_STAGE_EXCHANGE] + 1;
    const int tiles = (int)strips.mine.count;
    const int others = strips.count * (call.num_ranks - 1);
    if (output.announce && blockIdx.x == 0 && threadIdx.x == 0)
        announce_output(call, epoch);
    int collected = blockIdx.x;
    bool straight = false;
    bool going = strips.count == 0 ||
                 meet_with_outputs(call, epoch, strips.symmetric.place, &straight);
#pragma unroll 1
    for (int index = blockIdx.x; going && index < tiles; index += gridDim.x) {
        going = finish_own_tile<T, THREADS, W, SOURCES, ROWS>(output, call, epoch, epilogue,
                                                              strips, index) &&
                share_strips<T, THREADS, W>(call, epoch, epilogue, strips, straight, false);
        if (going && !straight && collected < others &&
            collect_strip<THREADS>(call, epoch, strips, collected, straight, false))
            collected += gridDim.x;
    }
    going =
        going && share_strips<T, THREADS, W>(call, epoch, epilogue, strips, straight, true);
#pragma unroll 1
    for (; going && collected < others; collected += gridDim.x)
        going = collect_strip<THREADS>(call, epoch, strips, collected, straight, true);
    let_next_kernel_start();
    __syncthreads();
    if (threadIdx.x == 0) {
        close_epilogue(epilogue, call);
        close_reducer(call, epoch, output.closes);
    }
}

/* As the fused reducer of reducer.cu. */
struct row_allreducers {
    static constexpr int FEWEST = 2, MOST_THREADS = 256;

    template <class T, int THREADS, int W>
    static const void *kernel()
    {
        constexpr int SOURCES = W == 0 ? 4 : W;
        constexpr int ROWS = W == 2 ? 2 : 1;
        return (const void *)row_allreducer<T, THREADS, W, SOURCES, ROWS>;
    }
};

} // namespace

ewx_cuda_entry ewx_cuda_row_allreducer(ew_dtype dtype, int num_ranks, int threads)
{
    return entry_of<row_allreducers>(dtype, num_ranks, threads);
}
