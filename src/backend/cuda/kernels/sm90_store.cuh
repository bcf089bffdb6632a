/* The storers of gemm_sm90.cuh: a warp per tile, which brings full boxes to where the
 * operation wants them, and publishes the tile when all of it is there. */
#ifndef EWX_CUDA_SM90_STORE_CUH
#define EWX_CUDA_SM90_STORE_CUH

#include "backend/cuda/kernels/sm90_activate.cuh"
#include "backend/cuda/kernels/sm90_schedule.cuh"

namespace
{

/* Where a box of a tile goes in C: half of the tile's rows, and columns of a matrix. */
struct box_place {
    const CUtensorMap *large, *small;
    int half, col;
    bool exists; /* that column */
};

__device__ __forceinline__ box_place place_in(const ewx_cuda_product_maps &products,
                                              int result, int half,
                                              const ewx_stripe &stripe)
{
    return {&products.c_large[result], &products.c_small[result], half, stripe.first,
            stripe.count > 0 && products.all.c[result]};
}

template <class OP>
__device__ __forceinline__ box_place
place_of(const ewx_cuda_maps &maps, const products_of<OP, ewx_cuda_product_maps> &products,
         const ewx_grid &grid, const work &item, int tile, int i)
{
    if constexpr (HAS_PRODUCTS<OP>) {
        const ewx_stripe stripe = stripe_at(products.all, item.b_row, tile, i & 1);
        return place_in(products, stripe.product, i >> 1, stripe);
    } else {
        const int col = item.b_row + tile * EWX_TILE_N + (i & 1) * BOX;
        return {&maps.c_large, &maps.c_small, i >> 1, col, col < grid.cols};
    }
}

/* What lies outside of its part or of C is left out. */
__device__ __forceinline__ void store_in_c(const box_place &place, const ewx_grid &grid,
                                           const work &item, uint32_t box)
{
    const bool is_large = item.part < grid.num_large;
    const int row = item.slot + place.half * BOX;
    if (row < ewx_part_rows(&grid, item.part) && place.exists)
        tensor_store_3d(is_large ? place.large : place.small, box, place.col, row,
                        is_large ? item.part : item.part - grid.num_large);
    commit_stores();
}

/* One warp: a tile of products and their activation.  A multiplier gives the products of
 * each half, if any is wanted, and then the results; where the storer is to compute those,
 * the products alone. */
template <class T, int TILES>
__device__ __forceinline__ void store_activated(const ewx_cuda_product_maps &products,
                                                const ewx_grid &grid, const work &item,
                                                int num_steps, bool is_stored, int tile,
                                                int lane, const arena<TILES> &memory)
{
    const auto store = [&](int half, bool activated) {
        for (int side = 0; side < 2 && is_stored && lane == 0; side++) {
            const ewx_stripe stripe = stripe_at(products.all, item.b_row, tile, side);
            if (!activated || side == 0 || !products.all.columns.paired)
                store_in_c(place_in(products,
                                    activated ? EWX_CUDA_ACTIVATED : stripe.product, half,
                                    stripe),
                           grid, item, memory.box(tile, side));
        }
        stores_have_read<0>();
        __syncwarp();
    };
    const auto take = [&] {
        for (int which = 0; which < 2; which++)
            named_sync(box_full(tile, which), BOX_THREADS);
    };
    const auto let_go = [&] {
        for (int which = 0; which < 2; which++)
            named_arrive(box_empty(tile, which), BOX_THREADS);
    };
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        const bool activates = storer_activates(half, num_steps);
        take();
        if (products.all.keeps) {
            store(half, false);
            if (!activates) {
                let_go();
                take();
            }
        }
#if EW_MUTANT == 64 /* planted bug: boxes are let go of before they are activated */
        if (activates) {
            let_go();
            __nanosleep(100000);
        }
#endif
        if (activates && is_stored && half < item.halves) {
            activate_boxes<T>(products.all, memory, tile, 0, BOX_PIECES, lane);
            writes_before_bulk();
            __syncwarp();
        }
        store(half, true);
#if EW_MUTANT == 64
        if (!activates)
#endif
            let_go();
    }
}

/* The first row of a piece's tile among those of all slots. */
template <class OP>
__device__ __forceinline__ int row_of(const ewx_cuda_call &call, int slot, const work &item)
{
    return (slot * num_pieces<OP>(call) + piece_of<OP>(item)) * EWX_TILE_M;
}

template <class OP>
__device__ __forceinline__ bool completes_tile(const ewx_cuda_call &call, const work &item)
{
#if EW_MUTANT == 81 /* planted bug: published with its first piece */
    return piece_of<OP>(item) == 0;
#endif
    return piece_of<OP>(item) + 1 == num_pieces<OP>(call);
}

/* Where a box goes in the slices of all ranks: the owner's of its tile, and its place among
 * the rows of tiles there. */
struct slot_place {
    int home, col, row;
};

/* One lane, into a slot; what is not there of a tile is not added to one. */
template <class OP>
__device__ __forceinline__ void store_in_slot(const ewx_cuda_maps &maps,
                                              const slot_place &place, uint32_t box,
                                              bool exists)
{
    if constexpr (PLACING<OP> == placing::BULK_ADDED) {
        if (exists)
            tensor_add(&maps.out[place.home], box, place.col, place.row);
        commit_stores();
    } else {
        tensor_store(&maps.out[place.home], box, place.col, place.row);
    }
}

/* One warp: adds a box to a slot of the place's home.  The box is under its swizzle. */
template <class T>
__device__ __forceinline__ void add_box(const ewx_cuda_call &call, const slot_place &place,
                                        uint32_t box, int lane)
{
    constexpr int PIECES_ACROSS = BOX * 2 / 16;
    const int column = lane % PIECES_ACROSS;
    unsigned char *to = call.heaps[place.home] + call.slice_offset[0] +
                        (int64_t)place.row * EWX_TILE_N * 2 + place.col * 2 + column * 16;
#pragma unroll 4
    for (int row = lane / PIECES_ACROSS; row < BOX; row += 32 / PIECES_ACROSS) {
        red_add_16<T>(to + row * EWX_TILE_N * 2,
                      ld_shared_16(box + row * BOX * 2 + (column ^ (row & 7)) * 16));
    }
}

/* Long, but in one piece: with its boxes in another function nvcc makes other code of the
 * kernels that gather. */
template <class OP, class T, int TILES>
__device__ void store(const ewx_cuda_maps &maps,
                      const products_of<OP, ewx_cuda_product_maps> &products,
                      const ewx_cuda_operands &operands, const ewx_cuda_call &call,
                      uint32_t epoch, int num_steps, int tile, int lane,
                      const arena<TILES> &memory)
{
    /* Slices lie one behind the other. */
    const int first_slot = call.num_slices == 2 ? (epoch & 1) * call.num_slots : 0;
    work_taker<TILES> taker(memory, lane == 0);
    bool may_store = true, asked = false;
    if constexpr (GATHERS<OP>) { /* at once: rows of another call may never come */
        may_store = OP::may_store(operands, call, epoch, lane);
        asked = true;
    }
    for (;;) {
        const work item = taker.take();
        __syncwarp();
        taker.let_go();
        if (item.halves == 0)
            return;
        if (!asked)
            may_store = OP::may_store(operands, call, epoch, lane);
        asked = true;
        const bool split = is_split<OP, TILES>(item);
        const int tile_at = split ? 0 : tile, first_half = split ? tile : 0;
        const bool is_stored = may_store && tile_at < item.num_stored;
        const bool stores = is_stored && lane == 0;
        const bool publishes = stores && (!split || tile == 0);
#if EW_MUTANT == 1 || EW_MUTANT == 73 /* planted bug: the flag before the tile */
        if (publishes && !GATHERS<OP> &&
            (EW_MUTANT == 1 || call.ownership == EWX_OWNS_ROWS)) /* ... spanning owners */
            publish(call, epoch, item.part, item.task + tile);
#endif
#if EW_MUTANT == 84 /* planted bug: published when one half is there; the other is late */
        if (split && tile == 1)
            __nanosleep(50000);
#endif
        if constexpr (ACTIVATES<OP>) {
            store_activated<T>(products, call.grid, item, num_steps, is_stored, tile, lane,
                               memory);
        } else {
            for (int i = 0; i < (split ? 2 : BOXES_PER_TILE); i++) {
                const int which = i & 1;
                named_sync(box_full(tile, which), BOX_THREADS);
                if constexpr (GATHERS<OP>) {
                    if (stores)
                        store_in_c(place_of<OP>(maps, products, call.grid, item, tile_at,
                                                2 * first_half + i),
                                   call.grid, item, memory.box(tile, which));
                } else if (is_stored) {
                    const int half = first_half + (i >> 1);
                    const slot_place place = {
                        OP::home(operands, call, item.part), which * BOX,
                        row_of<OP>(call, first_slot + item.slot + tile_at, item) +
                            half * BOX};
                    const bool exists = half < halves_of(item);
                    if constexpr (PLACING<OP> != placing::ADDED) {
                        if (lane == 0)
                            store_in_slot<OP>(maps, place, memory.box(tile, which), exists);
                    } else if (exists) {
                        add_box<T>(call, place, memory.box(tile, which), lane);
                    }
                }
                if (i > 0) { /* while this store reads, the one before it is waited for */
                    stores_have_read<1>();
                    __syncwarp();
                    named_arrive(box_empty(tile, which ^ 1), BOX_THREADS);
                }
            }
            stores_have_read<0>();
            __syncwarp();
            named_arrive(box_empty(tile, 1), BOX_THREADS);
        }
        stores_are_complete(); /* of the one lane that has made any */
        __syncwarp();
        if constexpr (!GATHERS<OP>) {
#if EW_MUTANT != 84
            if (split)
                named_sync(HALVES_STORED, HALVES_THREADS);
#endif
#if EW_MUTANT != 1
            if (publishes && completes_tile<OP>(call, item))
                OP::deliver(operands, call, epoch, item.part, item.task + tile);
#endif
            __syncwarp();
        }
    }
}

} // namespace
#endif
