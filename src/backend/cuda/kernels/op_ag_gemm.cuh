/* AllGather-GEMM as the GEMM kernels see it, and how its rows are published.
 *
 * What is exchanged are rows of A.  Movers (mover.cu) push a rank's own rows into the
 * slices of all others, and one flag of each other rank says that a panel of 128 rows is
 * there. The GEMM waits for the panel of a block before it loads it; blocks of the rank's
 * own rows, which it reads where the caller has them, fill the time until then.  Tiles go
 * straight into C, so nothing is published.
 *
 * Why a load finds the rows.  Every thread of a mover stores its 16-byte pieces (generic
 * proxy); the CTA's barrier and thread 0's system fence put these stores before its
 * addition to the panel's count (publish_panel).  The CTA that counts the last unit has
 * then observed all other counts, and its system fence puts all units before its flags.  A
 * thread of the GEMM sees the flag and acquires it at system scope; what passes its block
 * on to the threads that load is a barrier of the CTA, or in a cluster an mbarrier with
 * release and acquire. So the stores happen before the loads, on sm80 without more.  TMA
 * reads through another proxy, and for it the loading thread has a proxy fence in between
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

/* One thread of every mover: the gate, which the GEMM waits at too, and the start. */
__device__ __forceinline__ void open_movers(const ewx_cuda_call &call, uint32_t epoch)
{
    if (call.gate)
        meet_gate(call, epoch);
    if (blockIdx.x == 0)
        call.report->start_ns = global_timer_ns();
}

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
    if (call.gate)
        await_gate(call, epoch);
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
    counters->next_position = counters->next_filler = 0;
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

/* ---- Panels ---- */

/* One thread of a mover, behind a barrier of its CTA that all stores of a unit have passed.
 * The CTA that completes the panel publishes it to all others.  The counter is private and
 * goes back to zero with the last unit, so that the next call finds it so. */
__device__ __forceinline__ void publish_panel(const ewx_cuda_call &call, uint32_t epoch,
                                              int64_t panel, int64_t num_units)
{
    uint32_t *count = &call.counters->unit_tiles[panel];
    fence_release_sys(); /* this unit, before its count */
    if (atomicAdd(count, 1u) + 1 != num_units)
        return;
    *count = 0;
    fence_release_sys(); /* all counted units, before the flags */
    for (int rank = 0; rank < call.num_ranks; rank++)
        if (rank != call.rank)
            st_relaxed_sys(flag_of(call, rank, panel, call.rank), epoch);
}

__device__ __forceinline__ bool has_arrived(const ewx_cuda_call &call, uint32_t epoch,
                                            int src, int64_t panel)
{
    return src == call.rank ||
           ewx_epoch_reached(ld_relaxed_sys(flag_of(call, call.rank, panel, src)), epoch);
}

/* One thread; false: the call is given up. */
__device__ __forceinline__ bool await_panels(const ewx_cuda_call &call, uint32_t epoch,
                                             int src, int64_t first, int64_t end)
{
    for (int64_t panel = first; panel < end && src != call.rank; panel++)
        if (!await_epoch(call, flag_of(call, call.rank, panel, src), epoch,
                         {EWX_CUDA_PANEL, src, (int)panel, 0}))
            return false;
    return true;
}

/* All rows of all others. */
__device__ __forceinline__ bool await_all_panels(const ewx_cuda_call &call, uint32_t epoch)
{
    bool ok = true;
    for (int src = 0; src < call.num_ranks && ok; src++)
        ok = await_panels(call, epoch, src, 0, ewx_part_tile_rows(&call.grid, src));
    return ok;
}

/* ---- For the GEMM kernels ---- */

struct op_ag_gemm {
    /* One thread, before the block is given to whoever loads it; false: the call is given
     * up.  `release` puts so many panels together. */
    static __device__ __forceinline__ bool await(const ewx_cuda_call &call, uint32_t epoch,
                                                 const gemm_block &block)
    {
#if EW_MUTANT == 62 /* planted bug: rows are loaded before they are there */
        return true;
#endif
        const int64_t all = ewx_part_tile_rows(&call.grid, block.part);
        if (call.release == 1)
            return await_panels(call, epoch, block.part, block.tile.row,
                                block.tile.row + 1);
        if (call.release < 1) /* all rows: see await_first */
            return call.release == EW_RELEASE_OUTPUT ||
                   await_panels(call, epoch, block.part, 0, all);
        const int64_t first = block.tile.row / call.release * call.release;
        return await_panels(call, epoch, block.part, first,
                            ewx_min64(first + call.release, all));
    }

    /* One thread, before the first block; likewise. */
    static __device__ __forceinline__ bool await_first(const ewx_cuda_call &call,
                                                       uint32_t epoch)
    {
        return call.release != EW_RELEASE_OUTPUT || await_all_panels(call, epoch);
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

/* A block whose rows have arrived, else one of the rank's own rows, else the next that will
 * have its rows.  Both lists are handed out by counters; whatever the order, the result is
 * the same. */
template <>
struct block_source<op_ag_gemm> {
    int64_t position;
    bool is_filler;

    /* Of the next block in the other list, so far as can be seen now. */
    static __device__ __forceinline__ bool next_has_arrived(
        const ewx_cuda_operands &operands, const ewx_cuda_call &call, uint32_t epoch)
    {
        const int64_t next = *(volatile uint32_t *)&call.counters->next_position;
        if (next >= operands.end_position)
            return false;
        const ewx_block block = ewx_gather_block(&call.grid, call.rank, next);
        return has_arrived(call, epoch, block.part, block.row);
    }

    __device__ __forceinline__ bool take_filler(const ewx_cuda_operands &operands,
                                                const ewx_cuda_call &call, uint32_t count)
    {
        is_filler = true;
        position = atomicAdd(&call.counters->next_filler, count);
        return position < operands.num_fillers;
    }

    __device__ __forceinline__ bool take(const ewx_cuda_operands &operands,
                                         const ewx_cuda_call &call, uint32_t epoch,
                                         uint32_t count)
    {
        if (!next_has_arrived(operands, call, epoch) && take_filler(operands, call, count))
            return true;
        is_filler = false;
        position = atomicAdd(&call.counters->next_position, count);
        return position < operands.end_position || take_filler(operands, call, count);
    }

    __device__ __forceinline__ bool has(const ewx_cuda_operands &operands,
                                        const ewx_cuda_call &, int i) const
    {
        return position + i < (is_filler ? operands.num_fillers : operands.end_position);
    }

    __device__ __forceinline__ gemm_block at(const ewx_cuda_call &call, int i) const
    {
        return describe_block(
            call.grid, is_filler ? ewx_part_walk(&call.grid, call.rank, position + i)
                                 : ewx_gather_block(&call.grid, call.rank, position + i));
    }
};

#endif
