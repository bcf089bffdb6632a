/* The movers of AllGather-GEMM: x CTAs beside the GEMM that push the rank's rows of A into
 * the slices of all others, and the small kernels around copies by copy engines
 * (transport=copy) and around a GEMM that is not ours.
 *
 * A unit is one chunk of a panel, pushed to one rank, which is told at once
 * (op_ag_gemm.cuh).  The CTAs take units in turn, in the order of plan/walk.h: all of them
 * work on the few panels that their receivers need next, and every rank receives from as
 * few others at a time.  They wait for nothing but the readers of call e-2.
 *
 * Registers are capped as the reducer's are, so that a CTA fits beside one of the GEMM. */
#include "backend/cuda/kernels/op_ag_gemm.cuh"
#include "backend/cuda/kernels/pieces.cuh"

namespace
{

constexpr int PIECES_ACROSS = EWX_CHUNK_COLS / PIECE;

/* What caps the registers at 64, and at 32 for 512 threads. */
template <int THREADS>
constexpr int CTAS_PER_SM = THREADS == 512 ? 4 : 1024 / THREADS;

/* How many pieces a thread has in flight. */
template <int THREADS>
constexpr int BATCH = THREADS == 512 ? 1 : 8;

/* A unit's place in the rank's rows and in the slice it goes to, and its size. */
struct unit_place {
    const unsigned char *from;
    unsigned char *to;
    int64_t row_bytes; /* of A */
    int height, pieces;
};

__device__ __forceinline__ unit_place place_of(const ewx_cuda_rows &rows,
                                               const ewx_cuda_call &call, uint32_t epoch,
                                               const ewx_push &unit)
{
    const int64_t row = unit.row * EWX_TILE_M, col = (int64_t)unit.chunk * EWX_CHUNK_COLS;
    const int64_t slice_row = ewx_part_first_row(&call.grid, call.rank) + row;
    const ewx_tile tile = {unit.row, 0};
    unit_place place;
    place.row_bytes = rows.k * 2;
    place.from = (const unsigned char *)rows.a + row * place.row_bytes + col * 2;
    place.to = call.heaps[unit.dst] + call.slice_offset[epoch & 1] +
               slice_row * place.row_bytes + col * 2;
    place.height = (int)ewx_tile_height(&call.grid, call.rank, tile);
    place.pieces = (int)(ewx_min64(rows.k - col, EWX_CHUNK_COLS) / PIECE);
    return place;
}

/* A thread has the same piece of every ROWS-th row. */
template <int THREADS>
__device__ __forceinline__ void push_unit(const unit_place &place)
{
    constexpr int ROWS = THREADS / PIECES_ACROSS;
    const uint64_t policy = l2_evict_normal(); /* the rows are multiplied soon */
    const int column = threadIdx.x % PIECES_ACROSS;
    if (column >= place.pieces)
        return;
    const int first = threadIdx.x / PIECES_ACROSS;
    const int64_t next_row = ROWS * place.row_bytes;
    const unsigned char *from = place.from + first * place.row_bytes + column * 16;
    unsigned char *to = place.to + first * place.row_bytes + column * 16;
#pragma unroll 1
    for (int row = first; row < place.height; row += ROWS * BATCH<THREADS>) {
        uint4 v[BATCH<THREADS>];
#pragma unroll
        for (int i = 0; i < BATCH<THREADS>; i++, from += next_row)
            if (row + i * ROWS < place.height)
                v[i] = ld_16(from, policy);
#pragma unroll
        for (int i = 0; i < BATCH<THREADS>; i++, to += next_row)
            if (row + i * ROWS < place.height)
                st_16(to, v[i], policy);
    }
}

template <int THREADS>
__global__ void __launch_bounds__(THREADS, CTAS_PER_SM<THREADS>)
    mover(const __grid_constant__ ewx_cuda_rows rows,
          const __grid_constant__ ewx_cuda_call call)
{
    const uint32_t epoch = call.counters->epochs[EWX_STAGE_EXCHANGE] + 1;
    const int lane = threadIdx.x;
    const int times = call.num_ranks - !rows.keeps_own;
    const int64_t num_units =
        ewx_part_tile_rows(&call.grid, call.rank) * times * call.num_chunks;
    if (threadIdx.x == 0)
        note_start(call);
    bool may_store = true;
    if (threadIdx.x < 32) /* without rows too, or this rank could be calls ahead */
        may_store = await_readers(call, epoch, lane);
    may_store = __syncthreads_and(may_store);
    for (int64_t index = blockIdx.x; may_store && index < num_units; index += gridDim.x) {
        const ewx_push unit =
            rows.spanning
                ? ewx_gather_push_spanning(&call.grid, call.rank, call.num_chunks, index)
                : ewx_gather_push(&call.grid, call.rank, times, call.num_chunks, index);
        const unit_place place = place_of(rows, call, epoch, unit);
#if EW_MUTANT == 61 /* planted bug: the flag before the rows */
        if (threadIdx.x == 0)
            publish_chunk(call, epoch, unit.dst, unit.row, unit.chunk);
#endif
        push_unit<THREADS>(place);
        /* All stores of the CTA precede its release, below. */
        if (__syncthreads_or(threadIdx.x == 0 && has_stopped(call)))
            break;
        if (threadIdx.x == 0) {
            await_push(call, unit.dst, (int64_t)place.height * place.pieces * 16);
#if EW_MUTANT != 61
            publish_chunk(call, epoch, unit.dst, unit.row, unit.chunk);
#endif
        }
    }
    __syncthreads();
    if (threadIdx.x == 0)
        close_movers(call, epoch);
}

/* ---- Copy engines in their place ---- */

/* One thread, between two copies.  The second takes its turn on the emulated link when the
 * first has left it, and the first is there a latency later. */
__device__ __forceinline__ void pace_copies(const ewx_cuda_call &call,
                                            const ewx_cuda_parcel &before,
                                            const ewx_cuda_parcel &next)
{
    const unsigned long long there_ns = call.counters->copied_ns;
    if (before.dst >= 0)
        await_time(there_ns - call.link.latency_ns);
    if (next.dst >= 0)
        call.counters->copied_ns = book_push(call, next.dst, next.bytes);
    if (before.dst >= 0)
        await_time(there_ns);
}

/* One warp, in front of a call's first copy, between two of them, and behind the last: the
 * stream says that the copy before has ended, and its rows are published.  The cap keeps
 * registers at 32 a thread: so many are left beside a CTA of 384 threads with 168 each, as
 * cuBLAS has them on Hopper, and a GEMM that is not ours does not hold up the copies. */
__global__ void __launch_bounds__(1024, 2)
    between_copies(const __grid_constant__ ewx_cuda_call call,
                   const __grid_constant__ ewx_cuda_parcel before,
                   const __grid_constant__ ewx_cuda_parcel next)
{
    const uint32_t epoch = call.counters->epochs[EWX_STAGE_EXCHANGE] + 1;
    const int lane = threadIdx.x;
    if (before.dst < 0) {
        if (lane == 0)
            note_start(call);
        (void)await_readers(call, epoch, lane); /* a failure stops the call */
    }
    if (lane == 0 && is_paced(call))
        pace_copies(call, before, next);
    __syncwarp();
#if EW_MUTANT == 85 /* planted bug: the flags of rows that are yet to be copied */
    const ewx_cuda_parcel &there = next;
#else
    const ewx_cuda_parcel &there = before;
#endif
    const int64_t chunks = (there.end - there.first) * call.num_chunks;
    for (int64_t i = lane; there.dst >= 0 && i < chunks && !has_stopped(call); i += 32)
        publish_chunk(call, epoch, there.dst, there.first + i / call.num_chunks,
                      (int)(i % call.num_chunks));
    __syncwarp();
    if (lane == 0 && next.dst < 0)
        call.counters->epochs[EWX_STAGE_EXCHANGE] = epoch;
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

/* One warp.  Where the GEMM multiplies the rows of all ranks at once, it waits for them. */
__global__ void open_gathered_kernel(const __grid_constant__ ewx_cuda_call call)
{
    uint32_t epoch = 0;
    if (threadIdx.x == 0)
        epoch = open_gathered(call);
    epoch = __shfl_sync(~0u, epoch, 0);
    if (call.grid.rows > 0 && !calls_agree(call, epoch, threadIdx.x))
        return;
    const bool all = call.release.size == EW_RELEASE_OUTPUT;
    if ((!all || await_all_rows(call, epoch, threadIdx.x)) && threadIdx.x == 0)
        note_first_block(call);
}

/* One warp, in front of the GEMM of a rank's rows. */
__global__ void await_rows_kernel(const __grid_constant__ ewx_cuda_call call, int src)
{
    (void)await_rows_of(call, call.counters->epochs[EWX_STAGE_GEMM] + 1, src, threadIdx.x);
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

ewx_cuda_entry ewx_cuda_between_copies(void)
{
    return {(const void *)between_copies, 32, 0, 0};
}

ewx_cuda_entry ewx_cuda_await_rows(void)
{
    return {(const void *)await_rows_kernel, 32, 0, 0};
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
