/* AllGather-GEMM as the GEMM kernels see it, and how its rows are published.
 *
 * What is exchanged are rows of A.  Movers (mover.cu) push a rank's own rows into the
 * slices of all others, in the order of plan/walk.h, and one flag says that a chunk, 128
 * rows by EWX_CHUNK_COLS columns, is there.  The GEMM begins with the rank's own rows,
 * which it reads where the caller has them, and waits for each chunk of other rows before
 * it loads it, so that the last rows are multiplied while they arrive.  Tiles go straight
 * into C, so nothing is published.
 *
 * Why a load finds the rows.  Every thread of a mover stores its 16-byte pieces (generic
 * proxy); the CTA's barrier and thread 0's system fence put these stores before the chunk's
 * flag (publish_chunk).  A thread of the GEMM sees the flag and acquires it at system
 * scope, by a load (await_chunk) or a fence (count_arrived).  What passes that on to the
 * threads that load is a barrier of the CTA (sm80), or, with release and acquire at the
 * cluster's scope, the mbarrier of the block or the word `arrived` (announce_rows, sm90).
 * So the stores happen before the loads, on sm80 without more.  TMA reads through another
 * proxy, and for it the loading thread has a proxy fence behind every acquire
 * (arrived_before_bulk).
 *
 * Why a slice may be overwritten.  Movers of call e wait until every rank's `done` has
 * reached e-2 (await_readers), which is sent when that rank's GEMM, and the kernel that
 * copies all rows out, have ended: TMA's reads have ended by then, since their data was
 * multiplied. */
#ifndef EWX_CUDA_OP_AG_GEMM_CUH
#define EWX_CUDA_OP_AG_GEMM_CUH

#include "backend/cuda/kernels/gemm_block.cuh"
#include "backend/cuda/kernels/link.cuh"

/* ---- A call begins and ends ---- */

/* One thread, when a first block has its rows. */
__device__ __forceinline__ void note_first_block(const ewx_cuda_call &call)
{
    if (blockIdx.x == 0)
        call.report->gemm_begin_ns = global_timer_ns();
}

/* One thread of every CTA of the GEMM.  It is the GEMM that announces the call, because the
 * GEMMs of a rank's plans run one after the other and count its calls. */
__device__ __forceinline__ uint32_t open_gathered(const ewx_cuda_call &call)
{
    const uint32_t epoch = call.counters->epochs[EWX_STAGE_GEMM] + 1;
    if (blockIdx.x == 0)
        note_call(call, epoch);
    note_first_block(call); /* in case there is none */
#if EW_MUTANT == 63         /* planted bug: the slice is free before it was read */
    if (blockIdx.x == 0)
        let_peers_overwrite(call, epoch);
#endif
    return epoch;
}

__device__ __forceinline__ void end_gathered(const ewx_cuda_call &call, uint32_t epoch,
                                             bool frees_slice)
{
    count_call(call, epoch);
    call.report->gemm_end_ns = call.report->end_ns = global_timer_ns();
    if (frees_slice)
        let_peers_overwrite(call, epoch);
}

/* One thread of every CTA of the GEMM, when the CTA has done everything. */
__device__ __forceinline__ void close_gathered(const ewx_cuda_call &call, uint32_t epoch,
                                               bool frees_slice)
{
    ewx_cuda_counters *counters = call.counters;
    __threadfence(); /* this CTA's reads, before its ticket */
    if (atomicAdd(&counters->exits[EWX_STAGE_GEMM], 1u) + 1 != gridDim.x)
        return;
    counters->exits[EWX_STAGE_GEMM] = 0;
    counters->next_position = 0;
    end_gathered(call, epoch, frees_slice);
}

__device__ __forceinline__ void close_movers(const ewx_cuda_call &call, uint32_t epoch)
{
    ewx_cuda_counters *counters = call.counters;
    __threadfence();
    if (atomicAdd(&counters->exits[EWX_STAGE_EXCHANGE], 1u) + 1 != gridDim.x)
        return;
    counters->exits[EWX_STAGE_EXCHANGE] = 0;
    counters->epochs[EWX_STAGE_EXCHANGE] = epoch;
}

/* ---- Rows ---- */

/* The flag of a chunk of a panel of the source's rows. */
__device__ __forceinline__ uint32_t *chunk_flag(const ewx_cuda_call &call, int reader,
                                                int src, int64_t panel, int chunk)
{
    return flag_of(call, reader, panel * call.num_chunks + chunk, src);
}

/* One thread of a mover, behind a barrier of its CTA that all stores of the chunk have
 * passed. */
__device__ __forceinline__ void publish_chunk(const ewx_cuda_call &call, uint32_t epoch,
                                              int dst, int64_t panel, int chunk)
{
    fence_release_sys();
    st_relaxed_sys(chunk_flag(call, dst, call.rank, panel, chunk), epoch);
}

/* One thread; false: the call is given up. */
__device__ __forceinline__ bool await_chunk(const ewx_cuda_call &call, uint32_t epoch,
                                            int src, int64_t panel, int chunk)
{
    return await_epoch(call, chunk_flag(call, call.rank, src, panel, chunk), epoch,
                       {EWX_CUDA_PANEL, src, (int)panel, 0});
}

/* One thread: how many chunks of a panel are there, when the first `count` are; acquires
 * the others.  Several flags are on their way at a time. */
__device__ __forceinline__ int count_arrived(const ewx_cuda_call &call, uint32_t epoch,
                                             int src, int64_t panel, int count)
{
#if EW_MUTANT == 62 /* planted bug: rows are loaded before they are there */
    return call.num_chunks;
#endif
    constexpr int BATCH = 4;
    const uint32_t *flag = chunk_flag(call, call.rank, src, panel, 0);
    int seen = BATCH;
    for (; count < call.num_chunks && seen == BATCH; count += seen) {
        uint32_t words[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++)
            words[i] = count + i < call.num_chunks
                           ? ld_relaxed_sys(flag + (count + i) * call.num_ranks)
                           : epoch - 1;
        bool all = true;
        seen = 0;
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            all = all && ewx_epoch_reached(words[i], epoch);
            seen += all;
        }
    }
    fence_acquire_sys();
    return count;
}

/* Whether the GEMM's tiles have rows of several ranks.  Then all rows come through the
 * slice, this rank's too. */
__device__ __forceinline__ bool spans_owners(const ewx_cuda_call &call)
{
    return call.grid.num_parts < call.num_ranks;
}

/* A rank's panels that hold rows of such a tile. */
__device__ __forceinline__ ewx_panels panels_in_tile(const ewx_cuda_call &call, int src,
                                                     int tile_row)
{
    const ewx_panels panels = ewx_panels_in_tile(&call.grid, call.num_ranks, src, tile_row);
#if EW_MUTANT == 86 /* planted bug: rows of a tile's first owner are enough */
    if (src > ewx_row_owner(&call.grid, call.num_ranks, tile_row * EWX_TILE_M))
        return {0, 0};
#endif
    return panels;
}

/* One warp, each lane the rows of other ranks: as await_chunk, of all rows of such a
 * tile. */
__device__ __forceinline__ bool await_chunk_of_tile(const ewx_cuda_call &call,
                                                    uint32_t epoch, int tile_row, int chunk,
                                                    int lane)
{
    bool ok = true;
    for (int src = lane; src < call.num_ranks && ok; src += 32) {
        const ewx_panels panels = panels_in_tile(call, src, tile_row);
        for (int panel = panels.first; panel < panels.end && ok; panel++)
            ok = await_chunk(call, epoch, src, panel, chunk);
    }
    ok = __all_sync(~0u, ok);
    __syncwarp(); /* what every lane has acquired is acquired by all */
    return ok;
}

/* One warp, each lane a chunk of its own: how many chunks of all rows of such a tile are
 * there, when the first `count` are; acquires the others. */
__device__ __forceinline__ int count_arrived_of_tile(const ewx_cuda_call &call,
                                                     uint32_t epoch, int tile_row,
                                                     int count, int lane)
{
    const int chunk = count + lane;
    bool there = chunk < call.num_chunks;
    for (int src = ewx_row_owner(&call.grid, call.num_ranks, tile_row * EWX_TILE_M);
         src < call.num_ranks; src++) {
        const ewx_panels panels = panels_in_tile(call, src, tile_row);
        if (panels.first == panels.end)
            break;
        for (int panel = panels.first; panel < panels.end && there; panel++)
            there = ewx_epoch_reached(
                ld_relaxed_sys(chunk_flag(call, call.rank, src, panel, chunk)), epoch);
    }
    fence_acquire_sys();
    const int missing = __ffs(~__ballot_sync(~0u, there)); /* 0: none */
    __syncwarp(); /* what every lane has acquired is acquired by all */
    return count + (missing ? missing - 1 : 32);
}

/* As await_chunk. */
__device__ __forceinline__ bool await_panels(const ewx_cuda_call &call, uint32_t epoch,
                                             int src, int64_t first, int64_t end)
{
    for (int64_t panel = first; panel < end; panel++)
        for (int there = 0;
             (there = count_arrived(call, epoch, src, panel, there)) < call.num_chunks;)
            if (!await_chunk(call, epoch, src, panel, there))
                return false;
    return true;
}

/* As await_chunk, of all rows of a tile that spans owners. */
__device__ __forceinline__ bool await_tile(const ewx_cuda_call &call, uint32_t epoch,
                                           int tile_row)
{
    for (int src = 0; src < call.num_ranks; src++) {
        const ewx_panels panels = panels_in_tile(call, src, tile_row);
        if (!await_panels(call, epoch, src, panels.first, panels.end))
            return false;
    }
    return true;
}

/* One warp: all rows of another rank. */
__device__ __forceinline__ bool await_rows_of(const ewx_cuda_call &call, uint32_t epoch,
                                              int src, int lane)
{
    const int64_t rows = ewx_share_rows(&call.grid, call.num_ranks, src).num_rows;
    const int64_t end = ewx_div_up(rows, EWX_TILE_M) * call.num_chunks;
    bool ok = true;
    for (int64_t i = lane; i < end && ok; i += 32)
        ok = await_chunk(call, epoch, src, i / call.num_chunks, (int)(i % call.num_chunks));
    ok = __all_sync(~0u, ok);
    __syncwarp(); /* what every lane has acquired is acquired by all */
    return ok;
}

/* One warp: all rows of all others, and of its own where it reads them in the slice. */
__device__ __forceinline__ bool await_all_rows(const ewx_cuda_call &call, uint32_t epoch,
                                               int lane)
{
    if (spans_owners(call)) {
        for (int src = 0; src < call.num_ranks; src++)
            if (!await_rows_of(call, epoch, src, lane))
                return false;
        return true;
    }
    const int64_t end = ewx_gather_panels(&call.grid, call.rank) * call.num_chunks;
    bool ok = true;
    for (int64_t i = lane; i < end && ok; i += 32) {
        const ewx_block panel =
            ewx_gather_panel(&call.grid, call.rank, i / call.num_chunks);
        ok = await_chunk(call, epoch, panel.part, panel.row, (int)(i % call.num_chunks));
    }
    ok = __all_sync(~0u, ok);
    __syncwarp(); /* what every lane has acquired is acquired by all */
    return ok;
}

/* ---- For the GEMM kernels ---- */

struct op_ag_gemm {
    /* One thread, before the block is given to whoever loads it: all its rows are there;
     * false: the call is given up.  `release` puts so many panels together. */
    static __device__ __forceinline__ bool await(const ewx_cuda_call &call, uint32_t epoch,
                                                 const gemm_block &block)
    {
        if (spans_owners(call))
            return call.release.size == EW_RELEASE_OUTPUT ||
                   await_tile(call, epoch, (int)block.tile.row);
        if (block.part == call.rank)
            return true;
        const int64_t all = ewx_part_tile_rows(&call.grid, block.part);
        if (call.release.size == 1)
            return await_panels(call, epoch, block.part, block.tile.row,
                                block.tile.row + 1);
        if (call.release.size < 1) /* all rows: see await_first */
            return call.release.size == EW_RELEASE_OUTPUT ||
                   await_panels(call, epoch, block.part, 0, all);
        const int64_t first = block.tile.row / call.release.size * call.release.size;
        return await_panels(call, epoch, block.part, first,
                            ewx_min64(first + call.release.size, all));
    }

    /* One thread, before the block is given to a loader that is told of the rest: how many
     * chunks of its rows are there.  Below 0: the call is given up.  With several owners,
     * whose flags are many, it looks at none: `complete` has a bit for each of the first
     * rows of tiles that the warp has awaited. */
    static __device__ __forceinline__ int num_arrived(const ewx_cuda_call &call,
                                                      uint32_t epoch,
                                                      const gemm_block &block,
                                                      uint64_t complete)
    {
        if (spans_owners(call) && call.release.size == 1)
            return complete & bit_of(block.tile.row) ? call.num_chunks : 0;
        if (call.release.size == 1 && block.part != call.rank)
            return count_arrived(call, epoch, block.part, block.tile.row, 0);
        return await(call, epoch, block) ? call.num_chunks : -1;
    }

    static __device__ __forceinline__ uint64_t bit_of(int64_t tile_row)
    {
        return tile_row < 64 ? 1ull << tile_row : 0;
    }

    /* One warp, when the first `there` chunks are: waits for the next one, and returns how
     * many there are then.  Below 0: the call is given up. */
    static __device__ __forceinline__ int await_more(const ewx_cuda_call &call,
                                                     uint32_t epoch, int part, int tile_row,
                                                     int there, int lane)
    {
        if (spans_owners(call))
            return await_chunk_of_tile(call, epoch, tile_row, there, lane)
                       ? count_arrived_of_tile(call, epoch, tile_row, there + 1, lane)
                       : -1;
        int count = -1;
        if (lane == 0 && await_chunk(call, epoch, part, tile_row, there))
            count = count_arrived(call, epoch, part, tile_row, there + 1);
        return __shfl_sync(~0u, count, 0);
    }

    /* One warp, before the first block; as await. */
    static __device__ __forceinline__ bool await_first(const ewx_cuda_call &call,
                                                       uint32_t epoch, int lane)
    {
        return call.release.size != EW_RELEASE_OUTPUT || await_all_rows(call, epoch, lane);
    }

    /* One warp, before the call's first store: whether all ranks are in this call. */
    static __device__ __forceinline__ bool may_store(const ewx_cuda_operands &,
                                                     const ewx_cuda_call &call,
                                                     uint32_t epoch, int lane)
    {
        return call.grid.rows == 0 || calls_agree(call, epoch, lane);
    }

    /* The first row of a block, inside its part. */
    static __device__ __forceinline__ int64_t slot(const ewx_cuda_operands &,
                                                   const ewx_cuda_call &,
                                                   const gemm_block &block)
    {
        return block.tile.row * EWX_TILE_M;
    }
};

template <>
constexpr bool GATHERS<op_ag_gemm> = true;

/* With several weights, and with an activation behind them. */
struct op_ag_gemm_multi : op_ag_gemm {
};
struct op_ag_gemm_act : op_ag_gemm {
};

template <>
constexpr bool GATHERS<op_ag_gemm_multi> = true;
template <>
constexpr bool GATHERS<op_ag_gemm_act> = true;
template <>
constexpr bool HAS_PRODUCTS<op_ag_gemm_multi> = true;
template <>
constexpr bool HAS_PRODUCTS<op_ag_gemm_act> = true;
template <>
constexpr bool ACTIVATES<op_ag_gemm_act> = true;

#endif
