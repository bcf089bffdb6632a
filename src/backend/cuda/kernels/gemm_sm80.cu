/* The GEMM for Ampere and later: blocks of 128 rows by 128 or 256 columns, in the order
 * of the plan, each tile published as soon as it is in memory.
 *
 * All eight warps load, multiply and store together.  cp.async brings a k-tile of A and B
 * into a ring of stages while earlier ones are multiplied; within a k-tile, ldmatrix brings
 * the next step's fragments while mma.sync works on this one's.  A finished block goes
 * through the same shared memory, so that it leaves in rows of 16-byte stores.  With
 * several pieces of K all this is done for each, and a tile is published with the last. */
#include "backend/cuda/kernels/activate.cuh"
#include "backend/cuda/kernels/ampere.cuh"
#include "backend/cuda/kernels/op_ag_gemm.cuh"
#include "backend/cuda/kernels/op_gemm_ar.cuh"
#include "backend/cuda/kernels/op_gemm_rs.cuh"

namespace
{

constexpr int THREADS = 256;
constexpr int DEPTH = 32;            /* columns of A and B in a k-tile */
constexpr int ROW_BYTES = DEPTH * 2; /* two rows fill the 32 banks once */
constexpr int CHUNK_BYTES = 16;      /* what one cp.async and one ldmatrix row move */
constexpr int CHUNKS = ROW_BYTES / CHUNK_BYTES;
constexpr int ROWS_PER_PASS = THREADS / CHUNKS; /* loaded when every thread loads a chunk */
constexpr int A_PASSES = EWX_TILE_M / ROWS_PER_PASS;
constexpr int STEPS = DEPTH / 16; /* an mma is 16 rows x 8 columns x 16 deep */
constexpr int WARPS_DOWN = 2, WARPS_ACROSS = 4;
constexpr int WARP_ROWS = EWX_TILE_M / WARPS_DOWN;
constexpr int MMAS_DOWN = WARP_ROWS / 16;
constexpr int TILE_ROW_BYTES = EWX_TILE_N * 2;
constexpr int TILE_ROW_CHUNKS = TILE_ROW_BYTES / CHUNK_BYTES;
constexpr int TILE_CHUNKS = EWX_TILE_M * TILE_ROW_CHUNKS;

constexpr int STRIPE_CHUNKS = EWX_STRIPE_COLS * 2 / CHUNK_BYTES; /* of a row */
constexpr int MOST_STRIPES = 256 / EWX_STRIPE_COLS;              /* of a block */

static_assert(STEPS == 2, "multiply() alternates between two sets of fragments");
static_assert(ROWS_PER_PASS == EWX_STRIPE_COLS, "a pass loads rows of one weight");

template <int BLOCK_N>
struct shape {
    /* Two narrow CTAs share an SM and hide each other's latency: three stages each fit in
     * the 100 KB of the smaller GPUs.  So do four of one wide CTA. */
    static constexpr int CTAS_PER_SM = BLOCK_N == 128 ? 2 : 1;
    static constexpr int STAGES = BLOCK_N == 128 ? 3 : 4;
    static constexpr int PASSES = A_PASSES + BLOCK_N / ROWS_PER_PASS;
    static constexpr int STAGE_BYTES = (EWX_TILE_M + BLOCK_N) * ROW_BYTES; /* A, then B */
    static constexpr int RING_BYTES = STAGES * STAGE_BYTES;
    static constexpr int WARP_COLS = BLOCK_N / WARPS_ACROSS;
    static constexpr int MMAS_ACROSS = WARP_COLS / 8;
    static_assert(MMAS_ACROSS / 2 <= MMAS_DOWN,
                  "multiply_step() loads a pair of columns with every row");
    static_assert(BLOCK_N / EWX_TILE_N * EWX_CUDA_TILE_BYTES <= RING_BYTES,
                  "the block leaves through the stages");
};

/* With several weights: the first row of each stripe of a block, and how many it has. */
struct stripe_rows {
    const unsigned char *first[MOST_STRIPES];
    int8_t counts[MOST_STRIPES];
};

/* What the CTA does next; thread 0's answer to a position. */
template <class OP>
struct work {
    gemm_block block;       /* of no tiles: no more work */
    const unsigned char *a; /* the block's rows */
    unsigned char *out;     /* place of the first tile; the second is behind it */
    products_of<OP, stripe_rows> b;
    int piece; /* of K: a block's pieces come one after the other */
};

/* What thread 0, or warp 0, passes to the others. */
template <class OP>
struct notices {
    work<OP> items[2]; /* one block in hand and the next, in turn */
    uint32_t epoch;
    int may_store;
};

/* ---- Which block: thread 0 ---- */

template <class OP>
__device__ __forceinline__ unsigned char *place_of(const ewx_cuda_operands &operands,
                                                   const ewx_cuda_call &call,
                                                   uint32_t epoch, const gemm_block &block)
{
    if constexpr (HAS_PRODUCTS<OP>) {
        return nullptr; /* each stripe has its own */
    } else if constexpr (GATHERS<OP>) {
        return (unsigned char *)operands.c +
               (block.a_row * call.grid.cols + block.b_row) * 2;
    } else {
        unsigned char *slice = operands.outbox
                                   ? operands.outbox
                                   : call.heaps[OP::home(operands, call, block.part)] +
                                         call.slice_offset[epoch & 1];
        return slice + slot_offset(call, OP::slot(operands, call, block));
    }
}

template <class OP>
__device__ __forceinline__ const unsigned char *rows_of(const ewx_cuda_operands &operands,
                                                        const ewx_cuda_call &call,
                                                        uint32_t epoch,
                                                        const gemm_block &block)
{
    const unsigned char *mine = (const unsigned char *)operands.a;
    if constexpr (GATHERS<OP>) {
        if (block.part == call.rank && !spans_owners(call))
            return mine + OP::slot(operands, call, block) * operands.k * 2;
        return call.heaps[call.rank] + call.slice_offset[epoch & 1] +
               block.a_row * operands.k * 2;
    } else {
        return mine + block.a_row * operands.k * 2;
    }
}

__device__ __forceinline__ void find_stripes(stripe_rows &rows,
                                             const ewx_cuda_products &products, int64_t k,
                                             int64_t b_row)
{
    for (int i = 0; i < MOST_STRIPES; i++) {
        const ewx_stripe stripe = stripe_at(products, b_row, 0, i);
        rows.first[i] =
            (const unsigned char *)products.b[stripe.product] + stripe.first * k * 2;
        rows.counts[i] = (int8_t)max(stripe.count, 0);
    }
}

/* The block taken last.  Of a GEMM that gathers the walk is long, and what nvcc keeps of it
 * across the main loop would, with several weights, be registers that movers need: from a
 * call that it cannot recognise it keeps nothing. */
template <class OP>
__device__ __forceinline__ gemm_block block_of(const ewx_cuda_call &call,
                                               const block_source<OP> &blocks)
{
    const ewx_cuda_call *same = &call;
    if constexpr (GATHERS<OP>)
        asm volatile("" : "+l"(same));
    return blocks.at(*same, 0);
}

template <class OP>
__device__ __forceinline__ work<OP> next_work(
    const ewx_cuda_operands &operands, const ewx_cuda_call &call,
    const products_of<OP, ewx_cuda_products> &products, uint32_t epoch,
    const block_source<OP> &blocks, bool is_taken)
{
    work<OP> item = {};
    if (!is_taken || has_stopped(call))
        return item;
    item.block = block_of<OP>(call, blocks);
    if (OP::await(call, epoch, item.block)) {
        item.a = rows_of<OP>(operands, call, epoch, item.block);
        item.out = place_of<OP>(operands, call, epoch, item.block);
        if constexpr (HAS_PRODUCTS<OP>)
            find_stripes(item.b, products, operands.k, item.block.b_row);
    } else {
        item.block.num_tiles = 0;
    }
    return item;
}

/* The same block's next piece. */
template <class OP>
__device__ __forceinline__ work<OP> next_piece(const work<OP> &item)
{
    work<OP> next = item;
    next.piece++;
    next.out += EWX_CUDA_TILE_BYTES;
    return next;
}

template <class OP>
__device__ __forceinline__ bool is_last_piece(const ewx_cuda_call &call,
                                              const work<OP> &item)
{
    return GATHERS<OP> || item.piece + 1 == call.num_pieces;
}

/* ---- Loads ---- */

/* Where a chunk of a row lies in a k-tile.  Eight lanes at a time, ldmatrix reads the same
 * chunk of eight rows and cp.async writes all chunks of two: neither meets a bank twice. */
__device__ __forceinline__ uint32_t swizzled(int row, int chunk)
{
    return row * ROW_BYTES + (chunk ^ (row >> 1 & 3)) * CHUNK_BYTES;
}

/* What one thread loads: a chunk of every ROWS_PER_PASS-th row of A, then of B. */
struct sources {
    /* The first row's chunk, in the next k-tile to load; with several weights, of B its
     * distance from a stripe's first row. */
    const unsigned char *a, *b;
    int left;                 /* k-tiles to load; below 0: turns since there was none */
    uint32_t to;              /* place of the first row's chunk in a stage */
    uint32_t rows, last_rows; /* a bit for each pass: this chunk exists */
};

template <class OP, int BLOCK_N>
__device__ __forceinline__ sources find_sources(const ewx_cuda_operands &operands,
                                                const work<OP> &item)
{
    const int row = thread_index() / CHUNKS;
    const int k = thread_index() % CHUNKS * (CHUNK_BYTES / 2);
    sources from;
    const int64_t first = item.piece * operands.piece_k + k;
    from.a = item.a + (row * operands.k + first) * 2;
    from.b = HAS_PRODUCTS<OP> ? (const unsigned char *)((row * operands.k + first) * 2)
                              : (const unsigned char *)operands.b +
                                    ((item.block.b_row + row) * operands.k + first) * 2;
    from.left = (int)ewx_div_up(operands.piece_k, DEPTH);
    from.to = swizzled(row, thread_index() % CHUNKS);
    from.rows = 0;
#pragma unroll
    for (int pass = 0; pass < shape<BLOCK_N>::PASSES; pass++) {
        bool exists = row + pass * ROWS_PER_PASS < item.block.rows;
        if (pass >= A_PASSES) {
            if constexpr (HAS_PRODUCTS<OP>)
                exists = row < item.b.counts[pass - A_PASSES];
            else
                exists = row + (pass - A_PASSES) * ROWS_PER_PASS < item.block.cols;
        }
        from.rows |= exists << pass;
    }
#if EW_MUTANT == 82 /* planted bug: columns of the next piece */
    from.last_rows = first < operands.k - (from.left - 1) * (int64_t)DEPTH ? from.rows : 0;
#else
    from.last_rows =
        k < operands.piece_k - (from.left - 1) * (int64_t)DEPTH ? from.rows : 0;
#endif
    return from;
}

/* Always commits a group, if need be an empty one: waits count them.  What does not exist
 * is not read, wherever its address may point, and becomes zero. */
template <class OP, int BLOCK_N>
__device__ __forceinline__ void load_k_tile(uint32_t stage, sources &from,
                                            const work<OP> &item, int64_t depth)
{
    if (from.left > 0) {
        const uint32_t rows = from.left > 1 ? from.rows : from.last_rows;
#pragma unroll
        for (int pass = 0; pass < shape<BLOCK_N>::PASSES; pass++) {
            const int row = (pass < A_PASSES ? pass : pass - A_PASSES) * ROWS_PER_PASS;
            const unsigned char *first = pass < A_PASSES ? from.a : from.b;
            first += row * depth * 2;
            if constexpr (HAS_PRODUCTS<OP>)
                if (pass >= A_PASSES)
                    first = item.b.first[pass - A_PASSES] + (intptr_t)from.b;
            cp_async_16(stage + from.to + pass * ROWS_PER_PASS * ROW_BYTES, first,
                        rows >> pass & 1 ? CHUNK_BYTES : 0);
        }
        from.a += ROW_BYTES;
        from.b += ROW_BYTES;
    }
    from.left--;
    cp_async_commit();
}

/* Fills all stages but one, which the first turn of the main loop fills. */
template <class OP, int BLOCK_N>
__device__ __forceinline__ void start_loads(sources &from, uint32_t ring,
                                            const ewx_cuda_operands &operands,
                                            const work<OP> &item)
{
    if (item.block.num_tiles == 0)
        return;
    from = find_sources<OP, BLOCK_N>(operands, item);
    for (int stage = 0; stage < shape<BLOCK_N>::STAGES - 1; stage++)
        load_k_tile<OP, BLOCK_N>(ring + stage * shape<BLOCK_N>::STAGE_BYTES, from, item,
                                 operands.k);
}

/* ---- Multiplication ---- */

template <int BLOCK_N>
struct accumulators {
    float c[MMAS_DOWN][shape<BLOCK_N>::MMAS_ACROSS][4];
};

struct a_fragments {
    uint32_t rows[MMAS_DOWN][4];
};

template <int BLOCK_N>
struct b_fragments {
    uint32_t pairs[shape<BLOCK_N>::MMAS_ACROSS / 2][4]; /* of two mmas side by side */
};

/* The first rows of A and B whose addresses this lane gives to ldmatrix, in a stage, at one
 * step.  The others follow at multiples of 16 rows, over which the swizzle repeats. */
struct addresses {
    uint32_t a, b;
};

template <int BLOCK_N>
__device__ __forceinline__ addresses find_addresses(uint32_t ring)
{
    const int warp = thread_index() / 32, lane = thread_index() % 32;
    const int a_row = warp % WARPS_DOWN * WARP_ROWS;
    const int b_row = EWX_TILE_M + warp / WARPS_DOWN * shape<BLOCK_N>::WARP_COLS;
    /* The four matrices of A: rows 0-7 and 8-15 at depth 0-7, then both at 8-15.  Of B:
     * depth 0-7 and 8-15 of columns 0-7, then of 8-15. */
    return {ring + swizzled(a_row + lane % 16, lane / 16),
            ring + swizzled(b_row + lane / 16 * 8 + lane % 8, lane / 8 % 2)};
}

__device__ __forceinline__ addresses at(const addresses &first, uint32_t stage, int step)
{
    /* Two chunks on, under the swizzle: stages and rows begin at multiples of 64 bytes. */
    const uint32_t flip = step * 2 * CHUNK_BYTES;
    return {(first.a + stage) ^ flip, (first.b + stage) ^ flip};
}

/* Row i of A and, if there are as many, pair i of B. */
template <int BLOCK_N>
__device__ __forceinline__ void load_fragments(a_fragments &a, b_fragments<BLOCK_N> &b,
                                               int i, const addresses &from)
{
    if (i < shape<BLOCK_N>::MMAS_ACROSS / 2)
        ldmatrix_x4(b.pairs[i], from.b + i * 16 * ROW_BYTES);
    ldmatrix_x4(a.rows[i], from.a + i * 16 * ROW_BYTES);
}

/* Loads the next step's fragments meanwhile: of B into registers of their own, of A into
 * those of the row that has just been used. */
template <class T, int BLOCK_N>
__device__ __forceinline__ void multiply_step(accumulators<BLOCK_N> &sum, a_fragments &a,
                                              const b_fragments<BLOCK_N> &b,
                                              b_fragments<BLOCK_N> &next_b,
                                              const addresses &next)
{
    constexpr int ACROSS = shape<BLOCK_N>::MMAS_ACROSS;
#pragma unroll
    for (int i = 0; i < MMAS_DOWN; i++) {
#pragma unroll
        for (int there = 0; there < ACROSS; there++) {
            /* and back again, so that neighbours in time share a fragment */
            const int j = i % 2 == 0 ? there : ACROSS - 1 - there;
            const uint32_t *column = &b.pairs[j / 2][j % 2 * 2];
            mma<T>(sum.c[i][j], a.rows[i], column[0], column[1]);
        }
        load_fragments<BLOCK_N>(a, next_b, i, next);
    }
}

/* Expects start_loads; leaves no cp.async in flight.  At the top of a turn, this k-tile has
 * arrived and the fragments of its first step are in registers.  The stage that the turn
 * refills is the previous turn's, whose fragments all warps had loaded before they passed
 * the barrier in its middle.  The last turn ends by loading fragments from a stage that was
 * not filled; they are not used. */
template <class OP, class T, int BLOCK_N>
__device__ __forceinline__ void multiply(accumulators<BLOCK_N> &sum, uint32_t ring,
                                         sources &from, const work<OP> &item, int64_t depth)
{
    using S = shape<BLOCK_N>;
    const addresses first = find_addresses<BLOCK_N>(ring);
    uint32_t stage = 0;
    a_fragments a;
    b_fragments<BLOCK_N> b, b_too;
    sum = {};
    cp_async_wait<S::STAGES - 2>();
    __syncthreads();
#pragma unroll
    for (int i = 0; i < MMAS_DOWN; i++)
        load_fragments<BLOCK_N>(a, b, i, first);
#pragma unroll 1
    while (from.left > 1 - S::STAGES) { /* that far ahead are the loads */
        const uint32_t refill = (stage == 0 ? S::RING_BYTES : stage) - S::STAGE_BYTES;
        load_k_tile<OP, BLOCK_N>(ring + refill, from, item, depth);
        multiply_step<T, BLOCK_N>(sum, a, b, b_too, at(first, stage, 1));
        stage = stage + S::STAGE_BYTES == S::RING_BYTES ? 0 : stage + S::STAGE_BYTES;
        cp_async_wait<S::STAGES - 2>();
        __syncthreads();
        multiply_step<T, BLOCK_N>(sum, a, b_too, b, at(first, stage, 0));
    }
}

/* ---- Output ---- */

/* Where a chunk of a row lies in the image of a tile.  A warp writes a quarter of the same
 * chunk of eight rows, and reads whole rows: neither meets a bank twice. */
__device__ __forceinline__ int in_image(int row, int chunk)
{
    return row * TILE_ROW_BYTES + (chunk ^ (row & 7)) * CHUNK_BYTES;
}

/* Rounds the block, once, into images of its tiles. */
template <class T, int BLOCK_N>
__device__ __forceinline__ void fill_images(unsigned char *images,
                                            const accumulators<BLOCK_N> &sum)
{
    const int warp = thread_index() / 32, lane = thread_index() % 32;
    const int first_row = warp % WARPS_DOWN * WARP_ROWS + lane / 4;
    const int first_col = warp / WARPS_DOWN * shape<BLOCK_N>::WARP_COLS;
    unsigned char *image =
        images + first_col / EWX_TILE_N * EWX_CUDA_TILE_BYTES + lane % 4 * 4;
#pragma unroll
    for (int i = 0; i < MMAS_DOWN; i++)
#pragma unroll
        for (int j = 0; j < shape<BLOCK_N>::MMAS_ACROSS; j++) {
            const int row = first_row + i * 16, chunk = first_col % EWX_TILE_N / 8 + j;
            const float(&c)[4] = sum.c[i][j];
            *(uint32_t *)(image + in_image(row, chunk)) = element<T>::pack(c[0], c[1]);
            *(uint32_t *)(image + in_image(row + 8, chunk)) = element<T>::pack(c[2], c[3]);
        }
}

__device__ __forceinline__ void store_tile(unsigned char *slot, const unsigned char *image)
{
    const int thread = thread_index();
#pragma unroll
    for (int i = 0; i < TILE_CHUNKS / THREADS; i++) {
        const int chunk = i * THREADS + thread;
        const int place = in_image(chunk / TILE_ROW_CHUNKS, chunk % TILE_ROW_CHUNKS);
        ((uint4 *)slot)[chunk] = *(const uint4 *)(image + place);
    }
}

/* Adds the rows of a tile that exist to those in the slot. */
template <class T>
__device__ __forceinline__ void add_tile(unsigned char *slot, const unsigned char *image,
                                         int rows)
{
    for (int chunk = thread_index(); chunk < rows * TILE_ROW_CHUNKS; chunk += THREADS)
        red_add_16<T>((uint4 *)slot + chunk,
                      *(const uint4 *)(image + in_image(chunk / TILE_ROW_CHUNKS,
                                                        chunk % TILE_ROW_CHUNKS)));
}

/* Into C; what lies outside of the block's part or of C is left out. */
__device__ __forceinline__ void store_in_c(unsigned char *to, int64_t row_bytes,
                                           const unsigned char *image, int rows, int cols)
{
    const int thread = thread_index();
#pragma unroll 2
    for (int i = 0; i < TILE_CHUNKS / THREADS; i++) {
        const int chunk = i * THREADS + thread;
        const int row = chunk / TILE_ROW_CHUNKS, column = chunk % TILE_ROW_CHUNKS;
        if (row < rows && column * (CHUNK_BYTES / 2) < cols)
            *(uint4 *)(to + row * row_bytes + column * CHUNK_BYTES) =
                *(const uint4 *)(image + in_image(row, column));
    }
}

/* A side of a tile's image, as it is or with its activation, into columns of a matrix. */
template <class T, bool ACTIVATED>
__device__ __forceinline__ void store_stripe(const ewx_cuda_products &products, int result,
                                             const gemm_block &block,
                                             const ewx_stripe &stripe,
                                             const unsigned char *image, int side)
{
    const int64_t row_bytes = (int64_t)products.columns.n[stripe.product] * 2;
    unsigned char *to =
        (unsigned char *)products.c[result] + block.a_row * row_bytes + stripe.first * 2;
#if EW_MUTANT == 65 /* planted bug: the last stripe of a weight is stored whole */
    const int cols = EWX_STRIPE_COLS;
#else
    const int cols = stripe.count;
#endif
    if (!products.c[result])
        return;
#pragma unroll 1
    for (int i = thread_index(); i < block.rows * STRIPE_CHUNKS; i += THREADS) {
        const int row = i / STRIPE_CHUNKS, chunk = i % STRIPE_CHUNKS;
        if (chunk * PIECE >= cols)
            continue;
        uint4 piece = *(const uint4 *)(image + in_image(row, side * STRIPE_CHUNKS + chunk));
        if constexpr (ACTIVATED) {
            const uint4 beside =
                *(const uint4 *)(image + in_image(row, STRIPE_CHUNKS + chunk));
            piece = activated_piece<T>(products.activation, products.columns.paired, piece,
                                       beside);
        }
        *(uint4 *)(to + row * row_bytes + chunk * CHUNK_BYTES) = piece;
    }
}

/* A gate and its up are the two sides of a tile, or each side is a gate. */
template <class OP, class T>
__device__ __forceinline__ void store_products(const ewx_cuda_products &products,
                                               const gemm_block &block,
                                               const unsigned char *images)
{
    for (int i = 0; i < block.num_tiles * EWX_TILE_STRIPES; i++) {
        const int tile = i / EWX_TILE_STRIPES, side = i % EWX_TILE_STRIPES;
        const unsigned char *image = images + tile * EWX_CUDA_TILE_BYTES;
        const ewx_stripe stripe = stripe_at(products, block.b_row, tile, side);
        store_stripe<T, false>(products, stripe.product, block, stripe, image, side);
        if constexpr (ACTIVATES<OP>)
            if (stripe.product == 0)
                store_stripe<T, true>(products, EWX_CUDA_ACTIVATED, block, stripe, image,
                                      side);
    }
}

template <class OP, class T>
__device__ __forceinline__ void store_block(const ewx_cuda_call &call, const work<OP> &item,
                                            const unsigned char *images)
{
    for (int tile = 0; tile < item.block.num_tiles; tile++) {
        const unsigned char *image = images + tile * EWX_CUDA_TILE_BYTES;
        if constexpr (GATHERS<OP>)
            store_in_c(item.out + tile * TILE_ROW_BYTES, call.grid.cols * 2, image,
                       item.block.rows, item.block.cols - tile * EWX_TILE_N);
        else if constexpr (PLACING<OP> == placing::ADDED)
            add_tile<T>(item.out + slot_offset(call, tile), image, item.block.rows);
        else
            store_tile(item.out + slot_offset(call, tile), image);
    }
}

/* ---- The kernel ---- */

template <class OP, class T, int BLOCK_N>
__global__ void __launch_bounds__(THREADS, shape<BLOCK_N>::CTAS_PER_SM)
    gemm(const __grid_constant__ ewx_cuda_operands operands,
         const __grid_constant__ ewx_cuda_call call,
         const __grid_constant__ products_of<OP, ewx_cuda_products> products)
{
    extern __shared__ __align__(128) unsigned char stages[];
    __shared__ notices<OP> notice;
    const uint32_t ring = shared_address(stages);
    /* Thread 0's; in shared memory where the main loop would lack the registers. */
    __shared__ block_source<OP> kept;
    block_source<OP> held, &blocks = GATHERS<OP> ? kept : held;
    if constexpr (GATHERS<OP>) {
        if (thread_index() == 0)
            notice.epoch = open_gathered(call);
        __syncthreads();
        /* At once: rows of another call may never come. */
        if (thread_index() < 32)
            notice.may_store =
                OP::may_store(operands, call, notice.epoch, thread_index()) &&
                OP::await_first(call, notice.epoch, thread_index());
    } else if (thread_index() == 0) {
        notice.epoch = open_producer(call, operands.opens);
    }
    if (thread_index() == 0) {
        bool is_taken = true;
        if constexpr (GATHERS<OP>)
            is_taken = notice.may_store;
        is_taken = is_taken && blocks.take(operands, call, notice.epoch, 1);
        notice.items[0] =
            next_work<OP>(operands, call, products, notice.epoch, blocks, is_taken);
        if constexpr (GATHERS<OP>)
            note_first_block(call);
    }
    __syncthreads();
    sources from;
    start_loads<OP, BLOCK_N>(from, ring, operands, notice.items[0]);

    for (int turn = 0; notice.items[turn & 1].block.num_tiles > 0; turn++) {
        const work<OP> &item = notice.items[turn & 1];
        work<OP> &next = notice.items[~turn & 1];
        accumulators<BLOCK_N> sum;
        if (thread_index() < item.block.num_tiles && item.piece == 0)
            stamp_begin(call.trace.produced, produced_at(call, item.block.part,
                                                         item.block.task + thread_index()));
        multiply<OP, T, BLOCK_N>(sum, ring, from, item, operands.k);
        __syncthreads(); /* no thread reads the stages any more, not even unused parts */
        fill_images<T, BLOCK_N>(stages, sum);
        if (thread_index() < item.block.num_tiles)
            stamp_end(call.trace.produced,
                      produced_at(call, item.block.part, item.block.task + thread_index()));
        if (!GATHERS<OP> && turn == 0 && thread_index() < 32)
            notice.may_store = OP::may_store(operands, call, notice.epoch, thread_index());
        __syncthreads(); /* the images are full, the readers' word is everyone's */
        if (!notice.may_store)
            break;
        const bool is_last = is_last_piece<OP>(call, item);
        bool is_taken = false;
        if (thread_index() == 0 && operands.persistent && is_last)
            is_taken = blocks.take(operands, call, notice.epoch, 1); /* during the stores */
        if constexpr (HAS_PRODUCTS<OP>)
            store_products<OP, T>(products, item.block, stages);
        else
            store_block<OP, T>(call, item, stages);
        if (thread_index() == 0)
            next = is_last ? next_work<OP>(operands, call, products, notice.epoch, blocks,
                                           is_taken)
                           : next_piece<OP>(item);
        __syncthreads(); /* all stores of the CTA precede its releases, below */
        /* Before the releases, so that these loads fly while those wait. */
        start_loads<OP, BLOCK_N>(from, ring, operands, next);
#if EW_MUTANT == 81 /* planted bug: published with its first piece */
        const bool is_whole = item.piece == 0;
#else
        const bool is_whole = is_last;
#endif
        if constexpr (!GATHERS<OP>)
            if (thread_index() < item.block.num_tiles && is_whole)
                in_pieces<OP>::deliver(operands, call, notice.epoch, item.block.part,
                                       item.block.task + thread_index());
    }
    __syncthreads();
    if (thread_index() != 0)
        return;
    if constexpr (GATHERS<OP>)
        close_gathered(call, notice.epoch, operands.frees_slice);
    else
        close_producer(call, notice.epoch, operands.closes);
}

template <class OP, class T, int BLOCK_N>
ewx_cuda_entry entry()
{
    return {(const void *)gemm<OP, T, BLOCK_N>, THREADS, shape<BLOCK_N>::RING_BYTES, 0};
}

template <class OP, class T>
ewx_cuda_entry entry_of(int block_n)
{
    return block_n == 256 ? entry<OP, T, 256>() : entry<OP, T, 128>();
}

template <class OP>
ewx_cuda_entry entry_of(ew_dtype dtype, int block_n)
{
    return dtype == EW_BF16 ? entry_of<OP, __nv_bfloat16>(block_n)
                            : entry_of<OP, __half>(block_n);
}

} // namespace

ewx_cuda_entry ewx_cuda_gemm_sm80(ew_op op, ewx_cuda_form form, ew_dtype dtype, int block_n)
{
    if (dtype == EW_FP32 || (block_n != 128 && block_n != 256))
        return {};
    if (form != EWX_CUDA_ONE_WEIGHT && op != EW_OP_AG_GEMM)
        return {};
    if (form == EWX_CUDA_WEIGHTS)
        return entry_of<op_ag_gemm_multi>(dtype, block_n);
    if (form == EWX_CUDA_ACTIVATES)
        return entry_of<op_ag_gemm_act>(dtype, block_n);
    switch (op) {
    case EW_OP_GEMM_RS:
        return entry_of<op_gemm_rs>(dtype, block_n);
    case EW_OP_GEMM_AR:
        return entry_of<op_gemm_ar>(dtype, block_n);
    case EW_OP_AG_GEMM:
        return entry_of<op_ag_gemm>(dtype, block_n);
    }
    return {};
}

ewx_cuda_entry ewx_cuda_gemm_sm80_adding(ew_dtype dtype, int block_n)
{
    if (dtype != EW_FP16 || (block_n != 128 && block_n != 256))
        return {};
    return entry_of<op_gemm_rs_add, __half>(block_n);
}
