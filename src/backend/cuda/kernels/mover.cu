/* The movers of AllGather-GEMM: x CTAs beside the GEMM that push the rank's rows of A into
 * the slices of all others, and the small kernels around a GEMM that is not ours.
 *
 * A unit is 128 rows by 512 columns, read once and stored to every other rank.  The CTAs
 * take the units of a panel in turn, so that all of them work on the panel that peers need
 * next; whoever completes it publishes it (op_ag_gemm.cuh).  They wait for nothing but the
 * readers of call e-2.
 *
 * Registers are capped as the reducer's are, so that a CTA fits beside one of the GEMM. */
#include "backend/cuda/kernels/op_ag_gemm.cuh"
#include "backend/cuda/kernels/pieces.cuh"

namespace
{

constexpr int UNIT_COLS = 512;
constexpr int PIECES_ACROSS = UNIT_COLS / PIECE;

/* What caps the registers at 64, and at 32 for 512 threads. */
template <int THREADS>
constexpr int CTAS_PER_SM = THREADS == 512 ? 4 : 1024 / THREADS;

/* How many pieces a thread has in flight. */
template <int THREADS>
constexpr int BATCH = THREADS == 512 ? 1 : 4;

/* A unit's place in the rank's rows and in a slice, and its size. */
struct unit_place {
    const unsigned char *from;
    int64_t to;        /* bytes into every segment */
    int64_t row_bytes; /* of A */
    int height, pieces;
};

__device__ __forceinline__ int64_t units_per_panel(const ewx_cuda_rows &rows)
{
    return ewx_div_up(rows.k, UNIT_COLS);
}

__device__ __forceinline__ unit_place place_of(const ewx_cuda_rows &rows,
                                               const ewx_cuda_call &call, uint32_t epoch,
                                               int64_t unit)
{
    const int64_t panel = unit / units_per_panel(rows);
    const int64_t col = unit % units_per_panel(rows) * UNIT_COLS;
    const ewx_tile tile = {panel, 0};
    unit_place place;
    place.row_bytes = rows.k * 2;
    place.from =
        (const unsigned char *)rows.a + panel * EWX_TILE_M * place.row_bytes + col * 2;
    place.to =
        call.slice_offset[epoch & 1] +
        (ewx_part_first_row(&call.grid, call.rank) + panel * EWX_TILE_M) * place.row_bytes +
        col * 2;
    place.height = (int)ewx_tile_height(&call.grid, call.rank, tile);
    place.pieces = (int)(ewx_min64(rows.k - col, UNIT_COLS) / PIECE);
    return place;
}

/* To every other rank, from the next one on, so that not all push to one at a time. */
template <int THREADS>
__device__ __forceinline__ void push_unit(const ewx_cuda_call &call,
                                          const unit_place &place, bool keeps_own)
{
    const uint64_t policy = l2_evict_normal(); /* the rows are multiplied soon */
    const int end = place.height * PIECES_ACROSS;
    const int others = call.num_ranks - !keeps_own;
#pragma unroll 1
    for (int first = threadIdx.x; first < end; first += THREADS * BATCH<THREADS>) {
        uint4 v[BATCH<THREADS>];
        int64_t offset[BATCH<THREADS>];
#pragma unroll
        for (int i = 0; i < BATCH<THREADS>; i++) {
            const int piece = first + i * THREADS;
            const int column = piece % PIECES_ACROSS;
            offset[i] = piece < end && column < place.pieces
                            ? piece / PIECES_ACROSS * place.row_bytes + column * 16
                            : -1;
            if (offset[i] >= 0)
                v[i] = ld_16(place.from + offset[i], policy);
        }
        int rank = call.rank;
#pragma unroll 1
        for (int count = 0; count < others; count++) {
            rank = rank + 1 < call.num_ranks ? rank + 1 : 0;
            unsigned char *to = call.heaps[rank] + place.to;
#pragma unroll
            for (int i = 0; i < BATCH<THREADS>; i++)
                if (offset[i] >= 0)
                    st_16(to + offset[i], v[i], policy);
        }
    }
}

template <int THREADS>
__global__ void __launch_bounds__(THREADS, CTAS_PER_SM<THREADS>)
    mover(const __grid_constant__ ewx_cuda_rows rows,
          const __grid_constant__ ewx_cuda_call call)
{
    const uint32_t epoch = call.counters->epochs[EWX_STAGE_EXCHANGE] + 1;
    const int lane = threadIdx.x;
    const int64_t num_units =
        call.num_ranks > 1 || rows.keeps_own
            ? ewx_part_tile_rows(&call.grid, call.rank) * units_per_panel(rows)
            : 0;
    if (threadIdx.x == 0)
        open_movers(call, epoch);
    __syncthreads(); /* nobody pushes before the gate */
    bool may_store = true;
    if (threadIdx.x < 32) /* without rows too, or this rank could be calls ahead */
        may_store = await_readers(call, epoch, lane);
    may_store = __syncthreads_and(may_store);
    for (int64_t unit = blockIdx.x; may_store && unit < num_units; unit += gridDim.x) {
        const unit_place place = place_of(rows, call, epoch, unit);
        const int64_t panel = unit / units_per_panel(rows);
#if EW_MUTANT == 61 /* planted bug: the flag before the rows */
        if (threadIdx.x == 0)
            publish_panel(call, epoch, panel, units_per_panel(rows));
#endif
        push_unit<THREADS>(call, place, rows.keeps_own);
        /* All stores of the CTA precede its release, below. */
        if (__syncthreads_or(threadIdx.x == 0 && has_stopped(call)))
            break;
        if (threadIdx.x < 32)
            await_push_to_all(call, (int64_t)place.height * place.pieces * 16, lane);
#if EW_MUTANT != 61
        if (threadIdx.x == 0)
            publish_panel(call, epoch, panel, units_per_panel(rows));
#endif
    }
    __syncthreads();
    if (threadIdx.x == 0)
        close_movers(call, epoch);
}

/* ---- All rows, for the caller ---- */

constexpr int COPY_THREADS = 256;

/* Behind the GEMM in its stream, which has seen all rows and counted the call. */
__global__ void __launch_bounds__(COPY_THREADS)
    hand_out(const __grid_constant__ ewx_cuda_rows rows,
             const __grid_constant__ ewx_cuda_call call)
{
    const uint32_t epoch = call.counters->epochs[EWX_STAGE_GEMM];
    const unsigned char *slice = call.heaps[call.rank] + call.slice_offset[epoch & 1];
    const int64_t row_bytes = rows.k * 2, first = ewx_part_first_row(&call.grid, call.rank);
    const int64_t own = first * row_bytes;
    const int64_t own_end = own + ewx_part_rows(&call.grid, call.rank) * row_bytes;
    const int64_t end = call.grid.rows * row_bytes;
    const uint64_t once = l2_evict_first();
    for (int64_t at = ((int64_t)blockIdx.x * COPY_THREADS + threadIdx.x) * 16; at < end;
         at += (int64_t)gridDim.x * COPY_THREADS * 16) {
        const bool is_own = at >= own && at < own_end;
        const unsigned char *from =
            is_own ? (const unsigned char *)rows.a + (at - own) : slice + at;
        st_16((unsigned char *)rows.gathered + at, ld_16(from, once), once);
    }
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    __threadfence(); /* this CTA's reads, before its ticket */
    if (atomicAdd(&call.counters->exits[EWX_STAGE_COPY], 1u) + 1 != gridDim.x)
        return;
    call.counters->exits[EWX_STAGE_COPY] = 0;
    call.report->end_ns = global_timer_ns();
    let_peers_overwrite(call, epoch);
}

/* ---- Around a GEMM that is not ours ---- */

/* One warp. */
__global__ void open_gathered_kernel(const __grid_constant__ ewx_cuda_call call)
{
    uint32_t epoch = 0;
    if (threadIdx.x == 0)
        epoch = open_gathered(call);
    epoch = __shfl_sync(~0u, epoch, 0);
    if (call.grid.rows > 0 && !calls_agree(call, epoch, threadIdx.x))
        return;
    if (threadIdx.x == 0 && await_all_panels(call, epoch))
        note_first_block(call);
}

__global__ void close_gathered_kernel(const __grid_constant__ ewx_cuda_call call,
                                      int frees_slice)
{
    end_gathered(call, call.counters->epochs[EWX_STAGE_GEMM] + 1, frees_slice);
}

} // namespace

ewx_cuda_entry ewx_cuda_mover(int threads)
{
    switch (threads) {
    case 128:
        return {(const void *)mover<128>, 128, 0, 0};
    case 256:
        return {(const void *)mover<256>, 256, 0, 0};
    case 512:
        return {(const void *)mover<512>, 512, 0, 0};
    }
    return {};
}

ewx_cuda_entry ewx_cuda_hand_out(void)
{
    return {(const void *)hand_out, COPY_THREADS, 0, 0};
}

ewx_cuda_entry ewx_cuda_open_gathered(void)
{
    return {(const void *)open_gathered_kernel, 32, 0, 0};
}

ewx_cuda_entry ewx_cuda_close_gathered(void)
{
    return {(const void *)close_gathered_kernel, 1, 0, 0};
}
