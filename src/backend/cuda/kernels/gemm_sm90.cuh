/* The GEMM for Hopper: blocks of 128 rows by 128 or 256 columns, in the order of the
 * plan, each tile published as soon as it is in memory.
 *
 * Warpgroup 0 moves data, the others multiply, one 128 x 128 tile each:
 *
 *     warp 3 (scheduler) --work--> loader, storers, multipliers
 *     warp 0 (loader)    --full stages of A and B--> multipliers --empty stages--> loader
 *     multipliers        --full boxes of output--> warps 1, 2 (storers) --empty boxes-->
 *
 * What each of them does is in sm90_schedule.cuh, sm90_load.cuh, sm90_multiply.cuh and
 * sm90_store.cuh.
 *
 * A storer publishes its tile while the multipliers are already at the next one.  The CTA
 * asks for few enough registers and leaves enough shared memory that a reducing CTA fits
 * beside it on every SM; without that, overlap costs more than it hides.
 *
 * Two CTAs may form a cluster: at neighbouring positions of the interleaved order they
 * need the same columns of B, so each loads half of them for both.
 *
 * Where the last wave would leave half of the SMs without a block, its blocks are split: an
 * item is one tile then, the multipliers have the upper and the lower half of it, and it is
 * published when both storers have stored theirs. */
#ifndef EWX_CUDA_GEMM_SM90_CUH
#define EWX_CUDA_GEMM_SM90_CUH

#include "backend/cuda/kernels/op_ag_gemm.cuh"
#include "backend/cuda/kernels/sm90_load.cuh"
#include "backend/cuda/kernels/sm90_multiply.cuh"
#include "backend/cuda/kernels/sm90_store.cuh"

namespace
{

template <int CLUSTER>
__device__ __forceinline__ void everyone()
{
    if (CLUSTER > 1)
        cluster_sync();
    else
        __syncthreads();
}

template <int TILES, int CLUSTER>
__device__ void prepare(const arena<TILES> &memory)
{
    using S = shape<TILES>;
    constexpr int READERS = 1 + 2 * TILES; /* a loader, storers, multipliers */
    for (int stage = 0; stage < S::STAGES; stage++) {
        mbarrier_init(memory.full(stage), 1);
        mbarrier_init(memory.empty(stage), TILES * CLUSTER);
    }
    for (int slot = 0; slot < WORK_SLOTS; slot++) {
        mbarrier_init(memory.work_full(slot), 1);
        mbarrier_init(memory.work_empty(slot), READERS * CLUSTER);
    }
    mbarrier_init(memory.nearly_loaded(), CLUSTER);
    st_shared(memory.arrived(), 0);
    mbarrier_init_done();
}

/* Each warp computes it for itself: what lives from before the roles part is kept in local
 * memory while others need the registers, and acquires empty the cache of that. */
__device__ __forceinline__ int num_steps_of(const ewx_cuda_operands &operands)
{
    return (int)ewx_div_up(operands.piece_k, DEPTH);
}

template <class OP, class T, int TILES, int CLUSTER>
__global__ void __launch_bounds__(shape<TILES>::LAUNCH_BOUND, 1)
    gemm(const __grid_constant__ ewx_cuda_maps maps,
         const __grid_constant__ ewx_cuda_operands operands,
         const __grid_constant__ ewx_cuda_call call,
         const __grid_constant__ products_of<OP, ewx_cuda_product_maps> products)
{
    using R = registers<OP, TILES>;
    extern __shared__ __align__(1024) uint8_t shared[];
    const arena<TILES> memory = {shared_address(shared)};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t cta = CLUSTER > 1 ? cluster_rank() : 0;
    if (threadIdx.x == 0) {
        tensor_prefetch(&maps.a);
        if constexpr (!HAS_PRODUCTS<OP>)
            tensor_prefetch(&maps.b);
        prepare<TILES, CLUSTER>(memory);
        if constexpr (GATHERS<OP>)
            st_shared(memory.epoch(), open_gathered(call));
        else
            st_shared(memory.epoch(), open_producer(call, operands.opens));
    }
    everyone<CLUSTER>();
    const uint32_t epoch = ld_shared(memory.epoch());
    if (threadIdx.x >= WARPGROUP) {
        take_registers<R::MULTIPLIER>();
        multiply<OP, T, TILES, CLUSTER>(products, call, num_steps_of(operands),
                                        threadIdx.x / WARPGROUP - 1,
                                        threadIdx.x % WARPGROUP, memory);
    } else {
        give_registers<R::MOVER>();
        bool may_start = true;
        if constexpr (GATHERS<OP>)
            if (warp == SCHEDULER_WARP && cta == 0)
                may_start = OP::await_first(call, epoch, lane);
        if (warp == LOADER_WARP && lane == 0)
            load<OP, TILES, CLUSTER>(maps, products, call, epoch, num_steps_of(operands),
                                     memory, cta);
        else if (warp == SCHEDULER_WARP && (GATHERS<OP> || lane == 0) && cta == 0)
            schedule<OP, TILES, CLUSTER>(operands, call, epoch, may_start, memory, lane);
        else if (warp >= FIRST_STORER_WARP && warp < FIRST_STORER_WARP + TILES)
            store<OP, T, TILES>(maps, products, operands, call, epoch,
                                num_steps_of(operands), warp - FIRST_STORER_WARP, lane,
                                memory);
    }
    __syncwarp();        /* lanes that had nothing to do have gone ahead */
    everyone<CLUSTER>(); /* no CTA may leave while another can still reach into it */
    if (threadIdx.x != 0)
        return;
    if constexpr (GATHERS<OP>)
        close_gathered(call, epoch, operands.frees_slice);
    else
        close_producer(call, epoch, operands.closes);
}

template <class OP, class T, int TILES, int CLUSTER>
ewx_cuda_entry entry()
{
    using S = shape<TILES>;
    return {(const void *)gemm<OP, T, TILES, CLUSTER>, S::THREADS, S::SHARED_BYTES,
            b_rows<OP, TILES, CLUSTER>::ROWS, EWX_TILE_M};
}

template <class OP, class T>
ewx_cuda_entry entry_of(int block_n, int cluster)
{
    if (block_n == 256)
        return cluster == 2 ? entry<OP, T, 2, 2>() : entry<OP, T, 2, 1>();
    return cluster == 2 ? entry<OP, T, 1, 2>() : entry<OP, T, 1, 1>();
}

template <class OP>
ewx_cuda_entry entry_of(ew_dtype dtype, int block_n, int cluster)
{
    return dtype == EW_BF16 ? entry_of<OP, __nv_bfloat16>(block_n, cluster)
                            : entry_of<OP, __half>(block_n, cluster);
}

} // namespace
#endif
