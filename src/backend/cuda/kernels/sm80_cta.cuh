/* What the threads of a CTA of gemm_sm80.cu share: the shape of its blocks and k-tiles, and
 * what they are told of a block. */
#ifndef EWX_CUDA_SM80_CTA_CUH
#define EWX_CUDA_SM80_CTA_CUH

#include "backend/cuda/kernels/gemm_block.cuh"

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

} // namespace
#endif
