/* A block as the GEMM kernels need it, whatever the operation and the architecture. */
#ifndef EWX_CUDA_GEMM_BLOCK_CUH
#define EWX_CUDA_GEMM_BLOCK_CUH

#include "backend/cuda/kernels/kernels.h"

struct gemm_block {
    int64_t a_row, b_row; /* first row of A and of B */
    int64_t task;         /* of the first tile; the second is the next */
    ewx_tile tile;        /* the first */
    int part;
    int rows, cols; /* that exist, at most a block of them */
    int num_tiles;
};

__device__ __forceinline__ gemm_block describe_block(const ewx_grid &grid, int64_t position)
{
    const ewx_block block = ewx_order_block(&grid, position);
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
    described.num_tiles = (int)ewx_div_up(described.cols, EWX_TILE_N);
    return described;
}

#endif
