/* A block as the GEMM kernels need it, whatever the operation and the architecture. */
#ifndef EWX_CUDA_GEMM_BLOCK_CUH
#define EWX_CUDA_GEMM_BLOCK_CUH

#include <type_traits>

#include "backend/cuda/kernels/protocol.cuh"

struct gemm_block {
    int64_t a_row, b_row; /* first row of A and of B */
    int64_t task;         /* of the first tile; the second is the next */
    ewx_tile tile;        /* the first */
    int part;
    int rows, cols; /* that exist, at most a block of them */
    int16_t num_tiles;
    bool is_split; /* it is a tile of a block that is split */
};

__device__ __forceinline__ gemm_block describe_block(const ewx_grid &grid,
                                                     const ewx_block &block)
{
    const ewx_tile tile = {block.row, block.col * grid.block_cols};
    gemm_block described;
    described.a_row = ewx_part_first_row(&grid, block.part) + tile.row * EWX_TILE_M;
    described.b_row = tile.col * EWX_TILE_N;
    described.task = ewx_tile_task(&grid, block.part, tile);
    described.tile = tile;
    described.part = block.part;
    described.rows = (int)ewx_tile_height(&grid, block.part, tile);
    described.cols =
        (int)ewx_min64(grid.cols - described.b_row, grid.block_cols * EWX_TILE_N);
    described.num_tiles = (int16_t)ewx_div_up(described.cols, EWX_TILE_N);
    described.is_split = false;
    return described;
}

/* One of the two tiles of a block; the second may not exist. */
__device__ __forceinline__ gemm_block tile_of_block(const gemm_block &block, int tile)
{
    gemm_block described = block;
    described.b_row += tile * EWX_TILE_N;
    described.task += tile;
    described.tile.col += tile;
    described.cols = min(max(block.cols - tile * EWX_TILE_N, 0), EWX_TILE_N);
    described.num_tiles = described.cols > 0;
    described.is_split = true;
    return described;
}

/* Where an operation's GEMM waits for the rows that it multiplies, and stores C where it
 * belongs. */
template <class OP>
constexpr bool GATHERS = false;

/* Where it multiplies them with several weights, and where an activation follows. */
template <class OP>
constexpr bool HAS_PRODUCTS = false;
template <class OP>
constexpr bool ACTIVATES = false;

/* How tiles reach their places: they are stored there, or added to what is there by
 * ordinary instructions or by bulk copies. */
enum class placing { STORED, ADDED, BULK_ADDED };
template <class OP>
constexpr placing PLACING = placing::STORED;

/* A parameter of the kernels that have several weights; the others have an empty one. */
struct no_products {
};
template <class OP, class PRODUCTS>
using products_of = std::conditional_t<HAS_PRODUCTS<OP>, PRODUCTS, no_products>;

/* The stripe that a tile of a block has on one of its sides. */
__device__ __forceinline__ ewx_stripe stripe_at(const ewx_cuda_products &products,
                                                int64_t b_row, int tile, int side)
{
    return ewx_columns_stripe(&products.columns,
                              b_row / EWX_STRIPE_COLS + tile * EWX_TILE_STRIPES + side);
}

/* An operation whose ranks have several pieces of K, each a contribution of its own
 * (config invariant). */
template <class OP>
struct in_pieces : OP {
};

template <class OP>
constexpr bool PIECES = false;
template <class OP>
constexpr bool PIECES<in_pieces<OP>> = true;

template <class OP>
__device__ __forceinline__ int num_pieces(const ewx_cuda_call &call)
{
    return PIECES<OP> ? call.num_pieces : 1;
}

/* What hands out blocks: one thread of a CTA or cluster. */
template <class OP>
struct block_source {
    ewx_taken taken; /* last */

    /* Takes the next `count` blocks, or a tile of each; false: none is left. */
    __device__ __forceinline__ bool take(const ewx_cuda_operands &operands,
                                         const ewx_cuda_call &call, uint32_t,
                                         uint32_t count)
    {
        const int64_t index =
            operands.first_position + (operands.persistent
                                           ? atomicAdd(&call.counters->next_position, count)
                                           : blockIdx.x);
        taken = ewx_take(operands.split_position, count, index);
        return taken.position < operands.end_position;
    }

    /* Whether there is an i-th one of those taken. */
    __device__ __forceinline__ bool has(const ewx_cuda_operands &operands,
                                        const ewx_cuda_call &, int i) const
    {
        return taken.position + i < operands.end_position;
    }

    __device__ __forceinline__ gemm_block at(const ewx_cuda_call &call, int i) const
    {
        const int64_t position = taken.position + i;
        const gemm_block block = describe_block(
            call.grid,
            GATHERS<OP> ? ewx_gather_block(&call.grid, call.num_ranks, call.rank, position)
                        : ewx_order_block(&call.grid, position));
        return HAS_PRODUCTS<OP> || taken.tile < 0 ? block
                                                  : tile_of_block(block, taken.tile);
    }
};

#endif
