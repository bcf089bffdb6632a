/* The reducer: x CTAs, each with every x-th of the rank's tiles, in the order in which
 * producers compute them.  A CTA waits until all ranks have published a tile, pulls their
 * contributions in 16-byte pieces, adds them in fp32 in the order of the ranks, and writes
 * the rounded sum into the caller's matrix.
 *
 * Registers are capped so that a CTA fits beside a producer CTA (16384 are left there). */
#include "backend/cuda/kernels/link.cuh"

namespace
{

constexpr int PIECE = 8;                           /* elements of 16 bytes */
constexpr int PIECES_PER_ROW = EWX_TILE_N / PIECE; /* of a tile */
constexpr int PIECES = EWX_TILE_M * PIECES_PER_ROW;

/* What caps the registers at 64, and at 32 for 512 threads. */
template <int THREADS>
constexpr int CTAS_PER_SM = THREADS == 512 ? 4 : 1024 / THREADS;

/* Where the contributions to a tile, and their sum, lie.  Offsets inside a tile fit 32
 * bits: the plan keeps N below 2^23. */
struct tile_place {
    int64_t source; /* bytes into every segment */
    unsigned char *out;
    uint32_t source_stride, out_stride; /* bytes from row to row */
    int height, pieces;                 /* rows, and pieces per row, that hold output */
};

__device__ tile_place place_of(const ewx_cuda_output &output, const ewx_cuda_call &call,
                               uint32_t epoch, ewx_tile tile)
{
    const ewx_grid *grid = &call.grid;
    const int64_t row = tile.row * EWX_TILE_M, col = tile.col * EWX_TILE_N;
#if EW_MUTANT == 3 /* planted bug: the neighbour's tile */
    const int64_t tile_col = (tile.col + 1) % grid->tile_cols;
#else
    const int64_t tile_col = tile.col;
#endif
    const int64_t slot =
        (call.rank * (int64_t)call.tile_rows + tile.row) * grid->tile_cols + tile_col;
    const int64_t matrix_row = ewx_partition_first_row(grid, call.rank) + row;
    tile_place place;
    place.out_stride = (uint32_t)grid->cols * 2;
    place.out = (unsigned char *)output.c + (row * grid->cols + col) * 2;
    place.source_stride = call.row_major ? place.out_stride : EWX_TILE_N * 2;
    place.source =
        call.slice_offset[epoch & 1] +
        (call.row_major ? (matrix_row * grid->cols + col) * 2 : slot * EWX_CUDA_TILE_BYTES);
    place.height = (int)ewx_min64(EWX_TILE_M, ewx_partition_rows(grid, call.rank) - row);
    place.pieces = (int)(ewx_min64(EWX_TILE_N, grid->cols - col) / PIECE);
    return place;
}

/* ---- Arithmetic ---- */

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

/* Adds the contributions of ranks first..first+SOURCES-1, all in flight at once, to ROWS
 * pieces of a thread. */
template <class T, int THREADS, int SOURCES, int ROWS>
__device__ __forceinline__ void add_sources(float (&sum)[ROWS][PIECE],
                                            const tile_place &place,
                                            const ewx_cuda_call &call, int first_rank,
                                            int num_sources, int first_piece)
{
    const uint64_t once = l2_evict_first(); /* leave the L2 to A and B */
    uint4 v[SOURCES][ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int piece = first_piece + i * THREADS;
        const int row = piece / PIECES_PER_ROW, column = piece % PIECES_PER_ROW;
        const bool exists = row < place.height && column < place.pieces;
        const int64_t offset = place.source + row * place.source_stride + column * 16;
#pragma unroll
        for (int s = 0; s < SOURCES; s++) {
            v[s][i] = make_uint4(0, 0, 0, 0);
#if EW_MUTANT == 4 /* planted bug: the owner's contribution first */
            const int source = (first_rank + s + call.rank) % call.grid.num_ranks;
#else
            const int source = first_rank + s;
#endif
            if (exists && s < num_sources)
                v[s][i] = ld_16(call.sources[source] + offset, once);
        }
    }
#pragma unroll
    for (int s = 0; s < SOURCES; s++)
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (s < num_sources)
                add<T>(sum[i], v[s][i]);
}

/* W is the number of ranks, or 0 when it is known at run time only. */
template <class T, int THREADS, int W, int SOURCES, int ROWS>
__device__ void reduce_tile(const tile_place &place, const ewx_cuda_call &call)
{
    const uint64_t once = l2_evict_first();
#pragma unroll 1
    for (int first = threadIdx.x; first < PIECES; first += THREADS * ROWS) {
        float sum[ROWS][PIECE] = {};
        const int num_ranks = W ? W : call.grid.num_ranks;
#pragma unroll
        for (int rank = 0; rank < (W ? W : 1); rank += SOURCES)
            add_sources<T, THREADS, SOURCES, ROWS>(sum, place, call, rank,
                                                   W ? W - rank : num_ranks, first);
#pragma unroll 1
        for (int rank = SOURCES; !W && rank < num_ranks; rank += SOURCES)
            add_sources<T, THREADS, SOURCES, ROWS>(sum, place, call, rank, num_ranks - rank,
                                                   first);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int piece = first + i * THREADS;
            const int row = piece / PIECES_PER_ROW, column = piece % PIECES_PER_ROW;
            if (row < place.height && column < place.pieces)
                st_16(place.out + (size_t)row * place.out_stride + column * 16,
                      rounded<T>(sum[i]), once);
        }
    }
}

/* ---- The kernel ---- */

/* One warp: false when the call is given up. */
__device__ bool await_tile(const ewx_cuda_call &call, uint32_t epoch, int64_t task,
                           ewx_tile tile, int lane)
{
    const int64_t unit = unit_of_task(call, task);
    bool ok = true;
    for (int rank = lane; rank < call.grid.num_ranks && ok; rank += 32)
        ok = await_epoch(call, flag_of(call, call.rank, unit, rank), epoch,
                         {EWX_CUDA_TILE, rank, (int)tile.row, (int)tile.col});
    return __all_sync(~0u, ok);
}

/* The GEMM before this kernel in its stream was not ours: say that it is over. */
__device__ void announce_output(const ewx_cuda_call &call, uint32_t epoch)
{
    call.report->gemm_end_ns = global_timer_ns();
    for (int owner = 0; owner < call.grid.num_ranks; owner++)
        st_release_sys(flag_of(call, owner, 0, call.rank), epoch);
}

template <class T, int THREADS, int W, int SOURCES, int ROWS>
__global__ void __launch_bounds__(THREADS, CTAS_PER_SM<THREADS>)
    reducer(const __grid_constant__ ewx_cuda_output output,
            const __grid_constant__ ewx_cuda_call call)
{
    const uint32_t epoch = call.counters->reducer_epoch + 1;
    const int64_t first_task = output.first_task + blockIdx.x;
    if (output.announce && blockIdx.x == 0 && threadIdx.x == 0)
        announce_output(call, epoch);
    for (int64_t task = first_task; task < output.end_task; task += gridDim.x) {
        const ewx_tile tile = ewx_task_tile(&call.grid, call.rank, task);
        const tile_place place = place_of(output, call, epoch, tile);
        const bool paced = is_paced(call) && !call.pushed;
        transfer on_link = {0, 0};
        bool ready = true;
        if (threadIdx.x < 32) {
            if (task == first_task)
                ready = rows_agree(call, epoch, threadIdx.x);
            ready = ready && await_tile(call, epoch, task, tile, threadIdx.x);
            if (ready && threadIdx.x == 0)
                stamp_begin(call.trace.reduced, task);
            if (ready && paced) {
                on_link =
                    book_pull(call, tile_bytes(call.grid, call.rank, tile), threadIdx.x);
                await_time(on_link.begin_ns);
            }
        }
        if (!__syncthreads_and(ready))
            break;
        reduce_tile<T, THREADS, W, SOURCES, ROWS>(place, call);
        if (paced && threadIdx.x < 32)
            await_time(on_link.end_ns);
        if (threadIdx.x == 0)
            stamp_end(call.trace.reduced, task);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        close_reducer(call, epoch, output.closes);
}

/* How many contributions of how many pieces a thread has in flight: the product hides the
 * latency of remote loads and must fit the registers. */
template <class T, int THREADS, int W>
const void *function_for()
{
    constexpr int MOST = THREADS == 512 ? 2 : 8;
    constexpr int SOURCES = W == 0 || W > MOST ? MOST : W;
    constexpr int ROWS = THREADS == 512 || W == 0 ? 1 : 8 / SOURCES;
    return (const void *)reducer<T, THREADS, W, SOURCES, ROWS>;
}

template <class T, int THREADS>
const void *function_of(int num_ranks)
{
    switch (num_ranks) {
    case 2:
        return function_for<T, THREADS, 2>();
    case 4:
        return function_for<T, THREADS, 4>();
    case 8:
        return function_for<T, THREADS, 8>();
    }
    return function_for<T, THREADS, 0>();
}

template <class T>
const void *function_of(int num_ranks, int threads)
{
    switch (threads) {
    case 128:
        return function_of<T, 128>(num_ranks);
    case 256:
        return function_of<T, 256>(num_ranks);
    case 512:
        return function_of<T, 512>(num_ranks);
    }
    return nullptr;
}

} // namespace

ewx_cuda_entry ewx_cuda_reducer(ew_dtype dtype, int num_ranks, int threads)
{
    if (dtype == EW_FP32)
        return {};
    return {dtype == EW_BF16 ? function_of<__nv_bfloat16>(num_ranks, threads)
                             : function_of<__half>(num_ranks, threads),
            threads, 0, 0};
}
