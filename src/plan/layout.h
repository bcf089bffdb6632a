/* The heap's layout: where a rank's contributions and flags lie in its segment. */
#ifndef EWX_PLAN_LAYOUT_H
#define EWX_PLAN_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>

#include "plan/grid.h"

#define EWX_FLAG_BYTES 64 /* one cache line per flag: no false sharing between tiles */
#define EWX_CUDA_HEADER_BYTES 16384                       /* room for an ewx_cuda_segment */
#define EWX_CUDA_TILE_BYTES (EWX_TILE_M * EWX_TILE_N * 2) /* two-byte elements only */
#define EWX_CUDA_MAX_SOURCES 72                           /* contributions to a tile */
#define EWX_CHUNK_COLS \
    512 /* cuda: columns of a panel of rows that are published together */

/* Where contributions and flags lie in every rank's heap segment.  A slot belongs to a
 * tile and does not move when m changes from call to call.  Slices alternate by epoch.
 *
 * cpu: flags[num_slots], EWX_FLAG_BYTES each, of the contributions in this segment; where
 * the GEMM waits, of the panels of rows in it, and a slice is a matrix of these rows.
 * cuda: uint32_t flags[num_parts * slots_per_part][W], of the tiles this segment's rank
 * owns (a tile that several ranks own rows of is numbered among those of all parts), then,
 * of an AllReduce, uint32_t results[slots_per_part] and row_results[W][rows_per_rank];
 * packed slots are whole tiles, one for each piece of K, and the second slice follows the
 * first without a gap. Where the GEMM waits, flags[max_tile_rows][num_chunks][W], of every
 * rank's panels in chunks of columns, and a slice is the matrix of all rows. */
typedef struct ewx_layout {
    bool row_major; /* one matrix (BLAS, rows of A), else tile-packed contributions */
    int32_t num_parts;
    int64_t max_tile_rows;  /* tile rows of the largest part */
    int64_t tile_cols;      /* of the output */
    int64_t slots_per_part; /* output tiles of one part, and its slots where it has any */
    int64_t num_slots;
    int64_t num_chunks;  /* that a slot is published in, each with flags of its own */
    int64_t tile_stride; /* elements between rows of what crosses */
    int32_t num_pieces;  /* contributions of a rank to a tile, one after the other */
    size_t piece_bytes;  /* from one to the next */
    size_t slot_bytes;   /* of a packed tile, all pieces */
    size_t flags_offset;
    size_t results_offset;     /* cuda: flags of other ranks' sums; 0: there are none */
    size_t row_results_offset; /* ... and of the rows that they have normalised */
    int64_t rows_per_rank;     /* at most */
    size_t slice_offset[2];
    size_t segment_bytes;
} ewx_layout;

/* A tile's slot, of parts with room for tile_rows x tile_cols of them. */
EW_HD static inline int64_t ewx_slot(int64_t tile_rows, int64_t tile_cols, int part,
                                     ewx_tile tile)
{
    return (part * tile_rows + tile.row) * tile_cols + tile.col;
}

static inline int64_t ewx_layout_slot(const ewx_layout *layout, int part, ewx_tile tile)
{
    return ewx_slot(layout->max_tile_rows, layout->tile_cols, part, tile);
}

/* Row-major contributions: elements before a tile's first one in the whole matrix. */
EW_HD static inline int64_t ewx_matrix_element(const ewx_grid *grid, int part,
                                               ewx_tile tile)
{
    const int64_t row = ewx_part_first_row(grid, part) + tile.row * EWX_TILE_M;
    return row * grid->cols + tile.col * EWX_TILE_N;
}

#endif
