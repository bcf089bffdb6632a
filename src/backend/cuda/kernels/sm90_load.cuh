/* The loader of gemm_sm90.cuh: one thread, which fills stages with columns of A and B as
 * the multipliers empty them. */
#ifndef EWX_CUDA_SM90_LOAD_CUH
#define EWX_CUDA_SM90_LOAD_CUH

#include "backend/cuda/kernels/op_ag_gemm.cuh"
#include "backend/cuda/kernels/sm90_schedule.cuh"

namespace
{

/* Rows of A, and where a block's begin there. */
struct a_rows {
    const CUtensorMap *map;
    int first;
};

constexpr int STEPS_PER_CHUNK = EWX_CHUNK_COLS / DEPTH;
constexpr int STEPS_TO_TAKE = 6 * STEPS_PER_CHUNK; /* while the next block is taken */

/* Rows of B, a load of ROWS at a time: COUNT loads fill a stage, of which a CTA makes SHARE
 * where its cluster shares them. */
template <class OP, int TILES, int CLUSTER>
struct b_rows {
    static constexpr int ROWS = HAS_PRODUCTS<OP>            ? EWX_STRIPE_COLS
                                : GATHERS<OP> || TILES == 1 ? TILES * EWX_TILE_N / CLUSTER
                                                            : EWX_TILE_N;
    static constexpr int BYTES = ROWS * DEPTH * 2;
    static constexpr int COUNT = TILES * EWX_TILE_N / ROWS;
    static constexpr int SHARE = COUNT / CLUSTER;
    using products = products_of<OP, ewx_cuda_product_maps>;

    const CUtensorMap *maps;
    int first;             /* load of those that this CTA makes */
    int b_row;             /* of the first load */
    int whose_rows[COUNT]; /* with several weights: row * EW_MAX_PRODUCTS + product */

    __device__ __forceinline__ b_rows(const ewx_cuda_maps &plain, const products &weights,
                                      const work &item, uint32_t cta)
    {
        first = CLUSTER > 1 && shares_b<OP>(item) && !is_split<OP, TILES>(item)
                    ? cta * SHARE
                    : 0;
        b_row = item.b_row + first * ROWS;
        if constexpr (HAS_PRODUCTS<OP>) {
            maps = weights.b;
#pragma unroll
            for (int i = 0; i < COUNT; i++) {
                const ewx_stripe stripe = stripe_at(weights.all, b_row, 0, i);
                whose_rows[i] = stripe.first * EW_MAX_PRODUCTS + stripe.product;
            }
        } else {
            maps = &plain.b;
        }
    }

    __device__ __forceinline__ const CUtensorMap *map(int i) const
    {
        return HAS_PRODUCTS<OP> ? maps + whose_rows[i] % EW_MAX_PRODUCTS : maps;
    }

    __device__ __forceinline__ int row(int i) const
    {
        return HAS_PRODUCTS<OP> ? whose_rows[i] / EW_MAX_PRODUCTS : b_row + i * ROWS;
    }
};

/* Behind the acquire of what hands out blocks. */
template <class OP>
__device__ __forceinline__ a_rows rows_of(const ewx_cuda_maps &maps,
                                          const ewx_cuda_call &call, uint32_t epoch,
                                          const work &item)
{
    if constexpr (GATHERS<OP>) {
        arrived_before_bulk();
        if (item.part == call.rank && !spans_owners(call))
            return {&maps.a, item.slot};
        const int64_t first = ewx_part_first_row(&call.grid, item.part) + item.slot;
        return {&maps.out[epoch & 1], (int)first};
    } else {
        return {&maps.a, item.a_row};
    }
}

/* Waits until the chunk of a step is there, and returns the first step whose chunk is not.
 * The scheduler announces it (announce_rows), and its wait has a deadline, so this one
 * needs none. */
template <int TILES>
__device__ __forceinline__ int await_step(const arena<TILES> &memory, uint32_t before,
                                          int step)
{
    constexpr unsigned SLEEP_NS = 32;
    const uint32_t enough = before + step / STEPS_PER_CHUNK + 1;
    while ((int32_t)(ld_relaxed_shared(memory.arrived()) - enough) < 0)
        __nanosleep(SLEEP_NS);
    const uint32_t arrived = ld_acquire_shared(memory.arrived());
    arrived_before_bulk();
    return (int)(arrived - before) * STEPS_PER_CHUNK;
}

/* The columns of a step, of A or of B.  Those behind a piece are zero. */
template <class OP>
__device__ __forceinline__ void load_step(uint32_t to, const CUtensorMap *map,
                                          uint32_t full, const work &item, int step,
                                          int row, uint64_t keep)
{
    if constexpr (PIECES<OP>)
        tensor_load_3d(to, map, full, step * DEPTH, row, piece_of<OP>(item), keep);
    else
        tensor_load(to, map, full, step * DEPTH, row, keep);
}

template <class OP>
__device__ __forceinline__ void load_step_for(uint16_t ctas, uint32_t to,
                                              const CUtensorMap *map, uint32_t full,
                                              const work &item, int step, int row,
                                              uint64_t keep)
{
    if constexpr (PIECES<OP>)
        tensor_load_multicast_3d(to, map, full, step * DEPTH, row, piece_of<OP>(item), ctas,
                                 keep);
    else
        tensor_load_multicast(to, map, full, step * DEPTH, row, ctas, keep);
}

/* Of a split block a step has the rows of one tile of B, which one CTA loads for all that
 * share it. */
template <class OP, int CLUSTER, class B>
__device__ __forceinline__ void load_split_step(const B &weight, uint32_t to, uint32_t full,
                                                const work &item, int step, uint32_t cta,
                                                uint64_t keep)
{
    constexpr uint16_t EVERY_CTA = (1 << CLUSTER) - 1;
    if (CLUSTER == 1 || !shares_b<OP>(item))
        load_step<OP>(to, weight.map(0), full, item, step, weight.row(0), keep);
    else if (cta == 0)
        load_step_for<OP>(EVERY_CTA, to, weight.map(0), full, item, step, weight.row(0),
                          keep);
}

template <class OP, int TILES, int CLUSTER>
__device__ void load(const ewx_cuda_maps &maps,
                     const products_of<OP, ewx_cuda_product_maps> &products,
                     const ewx_cuda_call &call, uint32_t epoch, int num_steps,
                     const arena<TILES> &memory, uint32_t cta)
{
    using S = shape<TILES>;
    using B = b_rows<OP, TILES, CLUSTER>;
    constexpr uint16_t EVERY_CTA = (1 << CLUSTER) - 1;
    const uint64_t keep = l2_evict_last();
    work_taker<TILES> taker(memory, true);
    ring<S::STAGES> stage;
    for (uint32_t before = 0;; before += call.num_chunks) {
        const work item = taker.take();
        taker.let_go();
        if (item.halves == 0)
            return;
        const a_rows rows = rows_of<OP>(maps, call, epoch, item);
        const B weight(maps, products, item, cta);
        int first_absent = GATHERS<OP> ? item.num_arrived * STEPS_PER_CHUNK : 0;
        for (int step = 0; step < num_steps; step++, stage.advance()) {
            const uint32_t full = memory.full(stage.at);
            const uint32_t b = memory.b(stage.at) + weight.first * B::BYTES;
            if constexpr (GATHERS<OP>) {
                if (step == first_absent)
                    first_absent = await_step(memory, before, step);
                if (step == max(num_steps - STEPS_TO_TAKE, 0))
                    mbarrier_arrive_release(in_cta(memory.nearly_loaded(), 0));
            }
            mbarrier_wait(memory.empty(stage.at), stage.parity ^ 1);
            const bool split = is_split<OP, TILES>(item);
            mbarrier_expect(full, split ? A_BYTES + TILE_B_BYTES : S::STAGE_BYTES);
            load_step<OP>(memory.a(stage.at), rows.map, full, item, step, rows.first, keep);
            if (split) {
                load_split_step<OP, CLUSTER>(weight, b, full, item, step, cta, keep);
                continue;
            }
            if (CLUSTER > 1 && shares_b<OP>(item)) {
#pragma unroll
                for (int i = 0; i < B::SHARE; i++)
                    load_step_for<OP>(EVERY_CTA, b + i * B::BYTES, weight.map(i), full,
                                      item, step, weight.row(i), keep);
                continue;
            }
#pragma unroll
            for (int i = 0; i < B::COUNT; i++)
                load_step<OP>(b + i * B::BYTES, weight.map(i), full, item, step,
                              weight.row(i), keep);
        }
    }
}

} // namespace
#endif
