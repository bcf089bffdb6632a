/* The multipliers of gemm_sm90.cuh: a warpgroup per tile, which multiplies what is in full
 * stages and puts the rounded products into boxes for its storer. */
#ifndef EWX_CUDA_SM90_MULTIPLY_CUH
#define EWX_CUDA_SM90_MULTIPLY_CUH

#include "backend/cuda/kernels/sm90_activate.cuh"
#include "backend/cuda/kernels/sm90_schedule.cuh"

namespace
{

/* HALVES of a tile's rows, from `half` on.  Small partitions fill the upper half of a tile
 * only; the lower one is not computed then. */
template <class T, int TILES, int CLUSTER, int HALVES>
__device__ void multiply_tile(float (&acc)[2][64], int num_steps, int tile, int half,
                              int thread, const arena<TILES> &memory,
                              ring<shape<TILES>::STAGES> &stage)
{
    int previous = 0;
    /* A stage is free when every CTA's multipliers are done with it: the loads of one CTA
     * fill the stages of all. */
    const auto release = [&](int which) {
        if (thread < CLUSTER)
            mbarrier_arrive(in_cta(memory.empty(which), thread));
    };
#pragma unroll 1
    for (int step = 0; step < num_steps; step++) {
        mbarrier_wait(memory.full(stage.at), stage.parity);
        const uint64_t a =
            wgmma_descriptor(memory.a(stage.at)) + half * HALF_TILE_DESCRIPTOR;
        const uint64_t b = wgmma_descriptor(memory.b(stage.at) + tile * TILE_B_BYTES);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++) { /* 16 elements are 2 units of 16 bytes */
            const int accumulate = (step | k) != 0;
            wgmma_m64n128k16<T>(acc[0], a + 2 * k, b + 2 * k, accumulate);
            if (HALVES == 2)
                wgmma_m64n128k16<T>(acc[1], a + HALF_TILE_DESCRIPTOR + 2 * k, b + 2 * k,
                                    accumulate);
        }
        wgmma_commit();
        wgmma_wait<1>(); /* one step stays in flight; the one before is over */
        if (step > 0)
            release(previous);
        previous = stage.at;
        stage.advance();
    }
    wgmma_wait<0>();
    release(previous);
}

/* 64 x 64 elements into a box, of which a thread has 32, under the swizzle that its store
 * undoes. */
template <class T>
__device__ __forceinline__ void fill_box(uint32_t box, const float *acc, int thread)
{
    const int warp = thread >> 5, lane = thread & 31;
    const int row = warp * 16 + (lane >> 3 & 1) * 8 + (lane & 7);
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const int chunk = (j * 2 + (lane >> 4)) ^ (row & 7);
        const float *v = acc + j * 8;
        stmatrix_x4(box + row * 128 + chunk * 16,
                    make_uint4(element<T>::pack(v[0], v[1]), element<T>::pack(v[2], v[3]),
                               element<T>::pack(v[4], v[5]), element<T>::pack(v[6], v[7])));
    }
}

/* The boxes of a multiplier and its storer, of which it has two in turn.  All threads of
 * the multiplier: a box may be written when the storer has let go of it, and is the
 * storer's again when it is full.  What does not exist only keeps the two in step. */
template <int TILES>
struct box_pair {
    const arena<TILES> &memory;
    const int tile;
    bool used = false; /* both have been the storer's */

    __device__ __forceinline__ uint32_t take(int which) const
    {
        if (used)
            named_sync(box_empty(tile, which), BOX_THREADS);
        return memory.box(tile, which);
    }

    __device__ __forceinline__ void give(int which)
    {
        writes_before_bulk();
        named_arrive(box_full(tile, which), BOX_THREADS);
        used |= which == 1;
    }
};

template <class T, int TILES>
__device__ __forceinline__ void give_products(const float (&acc)[64], bool exists,
                                              int thread, box_pair<TILES> &boxes)
{
#pragma unroll
    for (int which = 0; which < 2; which++) {
        const uint32_t box = boxes.take(which);
        if (exists)
            fill_box<T>(box, acc + which * 32, thread);
        boxes.give(which);
    }
}

/* Half a tile of products, as results; before them the products themselves if any is
 * wanted: they are still in the boxes when those have been stored. */
template <class T, int TILES>
__device__ __forceinline__ void give_activated(const ewx_cuda_products &products,
                                               const float (&acc)[64], bool exists,
                                               int thread, box_pair<TILES> &boxes)
{
    if (products.keeps) {
        give_products<T>(acc, exists, thread, boxes);
        boxes.take(0);
        boxes.take(1);
    } else {
#pragma unroll
        for (int which = 0; which < 2; which++) {
            const uint32_t box = boxes.take(which);
            if (exists)
                fill_box<T>(box, acc + which * 32, thread);
        }
        __syncwarp(); /* a warp's rows are its own */
    }
    const int warp = thread / 32, pieces = BOX_PIECES / (WARPGROUP / 32);
    if (exists)
        activate_boxes<T>(products, boxes.memory, boxes.tile, warp * pieces,
                          (warp + 1) * pieces, thread % 32);
    boxes.give(0);
    boxes.give(1);
}

template <class OP, class T, int TILES, int CLUSTER>
__device__ void multiply(const products_of<OP, ewx_cuda_product_maps> &products,
                         const ewx_cuda_call &call, int num_steps, int tile, int thread,
                         const arena<TILES> &memory)
{
    work_taker<TILES> taker(memory, thread == 0);
    ring<shape<TILES>::STAGES> stage;
    box_pair<TILES> boxes = {memory, tile};
    for (;;) {
        const work item = taker.take();
        if (item.halves == 0)
            break;
        if (thread == 0 && tile < item.num_stored && piece_of<OP>(item) == 0)
            stamp_begin(call.trace.produced,
                        produced_at(call, item.part, item.task + tile));
        float acc[2][64];
        const bool split = is_split<OP, TILES>(item);
        if (item.halves == 2)
            multiply_tile<T, TILES, CLUSTER, 2>(acc, num_steps, tile, 0, thread, memory,
                                                stage);
        else
            multiply_tile<T, TILES, CLUSTER, 1>(acc, num_steps, split ? 0 : tile,
                                                split ? tile : 0, thread, memory, stage);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const bool exists = (split ? tile : half) < halves_of(item);
            if constexpr (ACTIVATES<OP>) {
                if (storer_activates(half, num_steps))
                    give_products<T>(acc[half], exists, thread, boxes);
                else
                    give_activated<T>(products.all, acc[half], exists, thread, boxes);
            } else if (half == 0 || !split) {
                give_products<T>(acc[half], exists, thread, boxes);
            }
        }
        if (thread == 0 && tile < item.num_stored)
            stamp_end(call.trace.produced, produced_at(call, item.part, item.task + tile));
        taker.let_go(); /* the barriers above: everyone has read the item */
    }
    for (int which = 0; which < 2; which++) /* the storer's last two arrivals */
        boxes.take(which);
}

} // namespace
#endif
