/* The sum of a tile with an epilogue: what reduce_tile is without. */
#ifndef EWX_CUDA_FINISH_TILE_CUH
#define EWX_CUDA_FINISH_TILE_CUH

#include "backend/cuda/kernels/epilogue.cuh"
#include "backend/cuda/kernels/reduce_tile.cuh"

namespace
{

/* `first_row` is where the tile's first one is among the owned rows.  The residual is asked
 * for first, so that it is there with the sum. */
template <class T, int THREADS, int W, int SOURCES, int ROWS>
__device__ void finish_tile(const tile_place &place, const ewx_cuda_call &call,
                            const ewx_cuda_epilogue &epilogue, int64_t first_row,
                            int tile_col)
{
    const uint64_t once = l2_evict_first();
    const int64_t origin = place.out - (unsigned char *)epilogue.h;
    const int tile_cols = (int)call.grid.tile_cols;
    float *squares_out = squares_at(epilogue, call.grid, first_row) + tile_col;
#pragma unroll 1
    for (int first = threadIdx.x; first < PIECES; first += THREADS * ROWS) {
        float sum[ROWS][PIECE] = {};
        uint4 residual[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int piece = first + i * THREADS;
            const int row = piece / PIECES_PER_ROW, column = piece % PIECES_PER_ROW;
            residual[i] = make_uint4(0, 0, 0, 0);
            if (epilogue.has_residual && row < place.height && column < place.pieces)
                residual[i] =
                    ld_16(place.out + (size_t)row * place.out_stride + column * 16, once);
        }
        add_all<T, THREADS, W, SOURCES, ROWS>(sum, place, call, first);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int piece = first + i * THREADS;
            const int row = piece / PIECES_PER_ROW, column = piece % PIECES_PER_ROW;
            float squares = 0;
            if (row < place.height && column < place.pieces)
                squares = squares_of_piece<T>(
                    finish_piece<T>(epilogue, rounded<T>(sum[i]), residual[i],
                                    origin + (int64_t)row * place.out_stride + column * 16,
                                    tile_col * EWX_TILE_N * 2 + column * 16));
            squares = squares_of_tile(squares);
            if (epilogue.normed && column == 0 && row < place.height)
                squares_out[row * tile_cols] = squares;
        }
    }
}

} // namespace

#endif
