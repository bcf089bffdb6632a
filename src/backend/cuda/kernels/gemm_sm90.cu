/* The GEMM for Hopper: blocks of 128 rows by 128 or 256 columns, in the order of the
 * plan, each tile published as soon as it is in memory.
 *
 * Warpgroup 0 moves data, the others multiply, one 128 x 128 tile each:
 *
 *     warp 3 (scheduler) --work--> loader, storers, multipliers
 *     warp 0 (loader)    --full stages of A and B--> multipliers --empty stages--> loader
 *     multipliers        --full boxes of output--> warps 1, 2 (storers) --empty boxes-->
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
#include "backend/cuda/kernels/activate.cuh"
#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/op_ag_gemm.cuh"
#include "backend/cuda/kernels/op_gemm_ar.cuh"
#include "backend/cuda/kernels/op_gemm_rs.cuh"

namespace
{

constexpr int WARPGROUP = 128;
constexpr int DEPTH = 64; /* columns of A and B in one stage: a 128-byte row */
constexpr int BOX = 64;   /* rows and columns of one store */
constexpr int BOX_BYTES = BOX * BOX * 2;
constexpr int BOXES_PER_TILE = 4;
constexpr int WORK_SLOTS = 2; /* one block in hand and the next: more would be unfair */
constexpr int A_BYTES = EWX_TILE_M * DEPTH * 2;
constexpr int TILE_B_BYTES = EWX_TILE_N * DEPTH * 2;
constexpr int HALF_ROWS = 64;                                    /* of one wgmma */
constexpr int HALF_TILE_DESCRIPTOR = HALF_ROWS * DEPTH * 2 / 16; /* so far down A */

enum { LOADER_WARP, FIRST_STORER_WARP, SCHEDULER_WARP = 3 };

/* What one CTA does next; the scheduler's answer to a position. */
struct work {
    union {
        int a_row;       /* first row of A */
        int num_arrived; /* where the GEMM waits: chunks of the rows, from the first on */
    };
    int b_row; /* first row of B */
    int slot;  /* of the first tile, in the slice */
    int part;
    int task;       /* of the first tile; the second is the next */
    int num_stored; /* tiles that exist; 0 for a block that only keeps a cluster in step */
    int shares_b;   /* both CTAs of the cluster need the same rows of B; with several pieces
                       of K (PIECES) that is bit 0, and above it is the piece */
    int halves;     /* of 64 rows that hold output: 1 or 2; 0: no more work; with SPLIT the
                       item is one tile, of which each multiplier has a half */
};

constexpr int SPLIT = 4;

/* Blocks of two tiles of one weight can be split: the multipliers share a tile. */
template <class OP, int TILES>
__device__ __forceinline__ bool is_split(const work &item)
{
    return TILES == 2 && !HAS_PRODUCTS<OP> && (item.halves & SPLIT);
}

__device__ __forceinline__ int halves_of(const work &item)
{
    return item.halves & ~SPLIT;
}

/* Those of a block come one after the other, and the last one publishes its tiles. */
template <class OP>
__device__ __forceinline__ int piece_of(const work &item)
{
    return PIECES<OP> ? item.shares_b >> 1 : 0;
}

template <class OP>
__device__ __forceinline__ bool shares_b(const work &item)
{
    return PIECES<OP> ? item.shares_b & 1 : item.shares_b;
}

template <int TILES>
struct shape {
    static constexpr int THREADS = WARPGROUP * (1 + TILES);
    static constexpr int STAGES = TILES == 2 ? 4 : 3;
    static constexpr int STAGE_BYTES = A_BYTES + TILES * TILE_B_BYTES;
    static constexpr int BOXES = 2 * TILES; /* two per storer, in turn */
    static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES + BOXES * BOX_BYTES +
                                        2 * (STAGES + WORK_SLOTS) * 8 +
                                        WORK_SLOTS * (int)sizeof(work) + 32;
    /* What makes room for a reducing CTA: 384 x 128 or, twice per SM, 256 x 96 registers
     * at launch, shared out unevenly afterwards. */
    static constexpr int LAUNCH_BOUND = TILES == 2 ? 512 : 640;
};

/* In the loops of loader and multipliers nothing may lie in local memory: whoever acquires
 * something on the SM empties the cache of it. */
template <class OP, int TILES>
struct registers {
    static constexpr bool MULTIPLIES_ONLY = !ACTIVATES<OP>;
    static constexpr int MOVER = TILES == 1 ? 32 : MULTIPLIES_ONLY ? 64 : 48;
    static constexpr int MULTIPLIER = TILES == 1 || MULTIPLIES_ONLY ? 160 : 168;
};

/* Addresses in shared memory. */
template <int TILES>
struct arena {
    using S = shape<TILES>;
    uint32_t base;

    __device__ uint32_t a(int stage) const
    {
        return base + stage * S::STAGE_BYTES;
    }
    __device__ uint32_t b(int stage) const
    {
        return a(stage) + A_BYTES;
    }
    __device__ uint32_t box(int tile, int which) const
    {
        return base + S::STAGES * S::STAGE_BYTES + (2 * tile + which) * BOX_BYTES;
    }
    __device__ uint32_t full(int stage) const
    {
        return box(TILES, 0) + 8 * stage;
    }
    __device__ uint32_t empty(int stage) const
    {
        return full(S::STAGES + stage);
    }
    __device__ uint32_t work_full(int slot) const
    {
        return full(2 * S::STAGES + slot);
    }
    __device__ uint32_t work_empty(int slot) const
    {
        return work_full(WORK_SLOTS + slot);
    }
    __device__ uint32_t work_item(int slot) const
    {
        return ((work_full(2 * WORK_SLOTS) + 15) & ~15u) + slot * (int)sizeof(work);
    }
    __device__ uint32_t epoch() const
    {
        return work_item(WORK_SLOTS);
    }
    __device__ uint32_t arrived() const /* where the GEMM waits: see announce_rows */
    {
        return epoch() + 4;
    }
    __device__ uint32_t nearly_loaded() const
    {
        return epoch() + 8;
    }
};

/* A place that moves round a ring. */
template <int SIZE>
struct ring {
    int at = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ void advance()
    {
        if (++at == SIZE) {
            at = 0;
            parity ^= 1;
        }
    }
};

__device__ __forceinline__ int box_full(int tile, int which)
{
    return 1 + tile * 4 + which * 2;
}

__device__ __forceinline__ int box_empty(int tile, int which)
{
    return box_full(tile, which) + 1;
}

constexpr int BOX_THREADS = WARPGROUP + 32; /* multipliers and a storer */
constexpr int HALVES_STORED = 9;            /* of a tile of a split block: both storers */
constexpr int HALVES_THREADS = 2 * 32;

/* ---- Scheduler ---- */

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

/* ---- Loader: one thread ---- */

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

/* ---- Activation ----
 *
 * A multiplier activates the upper half of its tile, while the tensor cores wait, and the
 * storer the lower half, while they work on the next block: it has room for no more.  Where
 * blocks are too short for one warp to be done in time, the multiplier does both. */

constexpr int STEPS_TO_ACTIVATE = 24; /* of a block, for a storer to be done in time */

__device__ __forceinline__ bool storer_activates(int half, int num_steps)
{
    return half == 1 && num_steps >= STEPS_TO_ACTIVATE;
}

constexpr int BOX_PIECES = BOX_BYTES / 16;

/* One warp: pieces of a box of gates, and of one of ups where there is one, become results
 * in the place of the gates.  In a loop: code for many pieces, one behind the other, took
 * nearly three times as long. */
template <class T>
__device__ __forceinline__ void activate_box(const ewx_cuda_products &products,
                                             uint32_t gates, uint32_t ups, int first,
                                             int end, int lane)
{
#pragma unroll 1
    for (int i = first + lane; i < end; i += 32) {
        const uint4 gate = ld_shared_16(gates + i * 16), up = ld_shared_16(ups + i * 16);
        st_shared_16(gates + i * 16, activated_piece<T>(products.activation,
                                                        products.columns.paired, gate, up));
    }
}

/* A gate and its up are the two sides of a tile, or each side is a gate. */
template <class T, int TILES>
__device__ __forceinline__ void activate_boxes(const ewx_cuda_products &products,
                                               const arena<TILES> &memory, int tile,
                                               int first, int end, int lane)
{
    const uint32_t right = memory.box(tile, 1);
#pragma unroll 1
    for (int side = 0; side < (products.columns.paired ? 1 : 2); side++)
        activate_box<T>(products, memory.box(tile, side), right, first, end, lane);
}

/* ---- Multipliers: one warpgroup per tile ---- */

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

/* ---- Storers: one warp per tile ---- */

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

/* ---- The kernel ---- */

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

#if defined EWX_SM90_ADDING
ewx_cuda_entry ewx_cuda_gemm_sm90_adding(ew_transport transport, ew_dtype dtype,
                                         int block_n, int cluster)
{
    if (dtype == EW_FP32)
        return {};
    return transport == EW_TRANSPORT_TMA_ADD
               ? entry_of<op_gemm_rs_tma_add>(dtype, block_n, cluster)
               : entry_of<op_gemm_rs_add>(dtype, block_n, cluster);
}
#elif defined EWX_SM90_PIECES
ewx_cuda_entry ewx_cuda_gemm_sm90_pieces(ew_op op, ew_dtype dtype, int block_n, int cluster)
{
    if (dtype == EW_FP32)
        return {};
    switch (op) {
    case EW_OP_GEMM_RS:
        return entry_of<in_pieces<op_gemm_rs>>(dtype, block_n, cluster);
    case EW_OP_GEMM_AR:
        return entry_of<in_pieces<op_gemm_ar>>(dtype, block_n, cluster);
    case EW_OP_AG_GEMM:
        break;
    }
    return {};
}
#else
ewx_cuda_entry ewx_cuda_gemm_sm90(ew_op op, ewx_cuda_form form, ew_dtype dtype, int block_n,
                                  int cluster)
{
    if (dtype == EW_FP32 || (block_n != 128 && block_n != 256) || cluster < 1 ||
        cluster > 2)
        return {};
    if (form != EWX_CUDA_ONE_WEIGHT && op != EW_OP_AG_GEMM)
        return {};
    if (form == EWX_CUDA_WEIGHTS)
        return entry_of<op_ag_gemm_multi>(dtype, block_n, cluster);
    if (form == EWX_CUDA_ACTIVATES)
        return entry_of<op_ag_gemm_act>(dtype, block_n, cluster);
    switch (op) {
    case EW_OP_GEMM_RS:
        return entry_of<op_gemm_rs>(dtype, block_n, cluster);
    case EW_OP_GEMM_AR:
        return entry_of<op_gemm_ar>(dtype, block_n, cluster);
    case EW_OP_AG_GEMM:
        return entry_of<op_ag_gemm>(dtype, block_n, cluster);
    }
    return {};
}
#endif
