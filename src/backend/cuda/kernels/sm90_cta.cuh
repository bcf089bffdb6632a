/* What the warps of a CTA of gemm_sm90.cuh share: the shape of its blocks, what they are
 * told of one, their places in shared memory, and the barriers between them. */
#ifndef EWX_CUDA_SM90_CTA_CUH
#define EWX_CUDA_SM90_CTA_CUH

#include "backend/cuda/kernels/gemm_block.cuh"
#include "backend/cuda/kernels/hopper.cuh"

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

} // namespace
#endif
