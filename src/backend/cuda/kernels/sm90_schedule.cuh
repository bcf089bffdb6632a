/* Which block comes next: the scheduler of gemm_sm90.cuh takes it and gives it to the warps
 * of its CTA, or of both CTAs of a cluster, which read it in their shared memory. */
#ifndef EWX_CUDA_SM90_SCHEDULE_CUH
#define EWX_CUDA_SM90_SCHEDULE_CUH

#include "backend/cuda/kernels/op_ag_gemm.cuh"
#include "backend/cuda/kernels/sm90_cta.cuh"

namespace
{

template <class OP>
__device__ __forceinline__ work work_of(const ewx_cuda_operands &operands,
                                        const ewx_cuda_call &call, const gemm_block &block)
{
    work w;
    if constexpr (!GATHERS<OP>)
        w.a_row = (int)block.a_row;
    w.b_row = (int)block.b_row;
    w.slot = (int)OP::slot(operands, call, block);
    w.part = block.part;
    w.task = (int)block.task;
    w.num_stored = block.num_tiles;
    w.shares_b = 0;
    w.halves = (block.rows > HALF_ROWS ? 2 : 1) | (block.is_split ? SPLIT : 0);
    return w;
}

/* One thread; false: the call is given up. */
template <class OP>
__device__ __forceinline__ bool prepare_work(const ewx_cuda_operands &operands,
                                             const ewx_cuda_call &call, uint32_t epoch,
                                             const gemm_block &block, uint64_t complete,
                                             work &item)
{
    item = work_of<OP>(operands, call, block);
    if constexpr (GATHERS<OP>) {
        item.num_arrived = OP::num_arrived(call, epoch, block, complete);
        return item.num_arrived >= 0;
    }
    return true;
}

template <int TILES, int CLUSTER>
class work_giver
{
  public:
    __device__ work_giver(const arena<TILES> &memory) : memory(memory)
    {
    }

    __device__ void give(const work *items)
    {
        mbarrier_wait_cluster(memory.work_empty(slot.at), slot.parity ^ 1);
        for (int cta = 0; cta < CLUSTER; cta++) {
            const int4 *halves = reinterpret_cast<const int4 *>(&items[cta]);
            const uint32_t to = in_cta(memory.work_item(slot.at), cta);
            st_cluster_16(to, halves[0]);
            st_cluster_16(to + 16, halves[1]);
            mbarrier_arrive_release(in_cta(memory.work_full(slot.at), cta));
        }
        slot.advance();
    }

  private:
    const arena<TILES> &memory;
    ring<WORK_SLOTS> slot;
};

/* One thread: what the CTAs do next; false: nothing.  A cluster that takes the odd last
 * block computes it twice and stores it once: its CTAs must stay in step. */
template <class OP, int CLUSTER>
__device__ __forceinline__ bool take_work(const ewx_cuda_operands &operands,
                                          const ewx_cuda_call &call, uint32_t epoch,
                                          uint64_t complete, block_source<OP> &blocks,
                                          work *items)
{
    /* blockIdx is that of the cluster's first CTA, which is this one */
    if (!blocks.take(operands, call, epoch, CLUSTER) || has_stopped(call))
        return false;
    if (!prepare_work<OP>(operands, call, epoch, blocks.at(call, 0), complete, items[0]))
        return false;
    if (CLUSTER == 2) {
        work &second = items[CLUSTER - 1];
        const bool odd_end = !blocks.has(operands, call, 1);
        second = items[0];
        if (!odd_end &&
            !prepare_work<OP>(operands, call, epoch, blocks.at(call, 1), complete, second))
            return false;
        if (odd_end)
            second.num_stored = 0;
        items[0].shares_b = second.shares_b = items[0].b_row == second.b_row;
    }
    return true;
}

/* One warp: tells the loaders which chunks of their rows are there, as they come, until all
 * are.  `arrived` counts those of all blocks so far, of which earlier ones had `before`.
 * When the call is given up, it tells them so of all, since they must come to their end,
 * and returns false. */
template <class OP, int TILES, int CLUSTER>
__device__ __forceinline__ bool announce_rows(const ewx_cuda_call &call, uint32_t epoch,
                                              const work *items, uint32_t before,
                                              const arena<TILES> &memory, int lane,
                                              uint64_t &complete)
{
    int part[CLUSTER], tile_row[CLUSTER], there[CLUSTER];
    int least = call.num_chunks;
#pragma unroll
    for (int cta = 0; cta < CLUSTER; cta++) {
        part[cta] = __shfl_sync(~0u, items[cta].part, 0);
        tile_row[cta] = __shfl_sync(~0u, items[cta].slot, 0) / EWX_TILE_M;
        there[cta] = __shfl_sync(~0u, items[cta].num_arrived, 0);
        least = min(least, there[cta]);
    }
    bool ok = true;
    while (least < call.num_chunks) {
        const int at = least;
        least = call.num_chunks;
#pragma unroll
        for (int cta = 0; cta < CLUSTER; cta++) {
            if (ok && there[cta] == at)
                there[cta] =
                    OP::await_more(call, epoch, part[cta], tile_row[cta], at, lane);
            ok = ok && there[cta] >= 0;
            least = ok ? min(least, there[cta]) : call.num_chunks;
        }
        for (int cta = 0; lane == 0 && cta < CLUSTER; cta++)
            st_release_cluster(in_cta(memory.arrived(), cta), before + least);
    }
#pragma unroll
    for (int cta = 0; cta < CLUSTER; cta++)
        complete |= ok ? OP::bit_of(tile_row[cta]) : 0;
    return ok;
}

/* One thread of the cluster; where the GEMM waits for rows, one warp.  There no block is
 * taken before the one in hand is nearly loaded: others may be idle. */
template <class OP, int TILES, int CLUSTER>
__device__ void schedule(const ewx_cuda_operands &operands, const ewx_cuda_call &call,
                         uint32_t epoch, bool may_start, const arena<TILES> &memory,
                         int lane)
{
    work_giver<TILES, CLUSTER> giver(memory);
    block_source<OP> blocks;
    work items[CLUSTER];
    uint64_t complete = 0;
    uint32_t num_given = 0;
    ring<1> block;
    for (bool first = true; may_start && (first || operands.persistent); first = false) {
        bool has_work = false;
        if (lane == 0) {
            if (GATHERS<OP> && !first) {
                mbarrier_wait_cluster(memory.nearly_loaded(), block.parity);
                block.advance();
            }
            has_work =
                take_work<OP, CLUSTER>(operands, call, epoch, complete, blocks, items);
        }
        if constexpr (GATHERS<OP>)
            has_work = __shfl_sync(~0u, has_work, 0);
        if (!has_work)
            break;
        if (GATHERS<OP> && first && lane == 0)
            note_first_block(call);
        for (int piece = 0; lane == 0 && piece < num_pieces<OP>(call); piece++) {
            giver.give(items);
            for (int cta = 0; PIECES<OP> && cta < CLUSTER; cta++)
                items[cta].shares_b += 2;
        }
        if constexpr (GATHERS<OP>) {
            const uint32_t before = num_given++ * call.num_chunks;
            if (!announce_rows<OP, TILES, CLUSTER>(call, epoch, items, before, memory, lane,
                                                   complete))
                break;
        }
    }
    for (int cta = 0; cta < CLUSTER; cta++)
        items[cta].halves = 0;
    if (lane == 0)
        giver.give(items);
}

/* How a warp or warpgroup learns of its work.  Every reader must let go of an item before
 * the scheduler fills its slot again. */
template <int TILES>
class work_taker
{
  public:
    __device__ work_taker(const arena<TILES> &memory, bool lets_go)
        : memory(memory), lets_go(lets_go)
    {
    }

    __device__ work take()
    {
        mbarrier_wait_cluster(memory.work_full(slot.at), slot.parity);
        union {
            uint4 halves[2];
            work item;
        } read;
        const uint32_t from = memory.work_item(slot.at);
        read.halves[0] = ld_shared_16(from);
        read.halves[1] = ld_shared_16(from + 16);
        return read.item;
    }

    /* After all threads that share this taker's role have read the item. */
    __device__ void let_go()
    {
        if (lets_go)
            mbarrier_arrive_release(in_cta(memory.work_empty(slot.at), 0));
        slot.advance();
    }

  private:
    const arena<TILES> &memory;
    const bool lets_go;
    ring<WORK_SLOTS> slot;
};

} // namespace
#endif
