/* What the two reducers have in common: where the contributions to a tile and its sum lie,
 * and how they are awaited, pulled in 16-byte pieces and added, in fp32 and in the order of
 * the sources: by rank and, of each, by piece of K. */
#ifndef EWX_CUDA_REDUCE_TILE_CUH
#define EWX_CUDA_REDUCE_TILE_CUH

#include "backend/cuda/kernels/link.cuh"
#include "backend/cuda/kernels/pieces.cuh"

namespace
{

constexpr int PIECES = EWX_TILE_M * PIECES_PER_ROW;

/* What caps the registers at 64, and at 32 for 512 threads. */
template <int THREADS>
constexpr int CTAS_PER_SM = THREADS == 512 ? 4 : 1024 / THREADS;

/* Where the contributions to a tile, and their sum, lie.  Offsets inside a tile fit 32
 * bits: the plan keeps N below 2^23. */
struct tile_place {
    int64_t source; /* bytes into every segment */
    unsigned char *out;
    uint32_t source_stride, out_stride; /* bytes from row to row */
    int height, pieces;                 /* rows, and pieces per row, that hold output */
};

__device__ tile_place place_of(const ewx_cuda_output &output, const ewx_cuda_call &call,
                               uint32_t epoch, ewx_tile tile)
{
    const ewx_grid *grid = &call.grid;
    const int64_t row = tile.row * EWX_TILE_M, col = tile.col * EWX_TILE_N;
#if EW_MUTANT == 3 /* planted bug: the neighbour's tile */
    const ewx_tile from = {tile.row, (tile.col + 1) % grid->tile_cols};
#else
    const ewx_tile from = tile;
#endif
    tile_place place;
    place.out_stride = (uint32_t)grid->cols * 2;
#if EW_MUTANT == 15 /* planted bug: offsets of 32 bits */
    place.out = (unsigned char *)output.c + (uint32_t)((row * grid->cols + col) * 2);
#else
    place.out = (unsigned char *)output.c + (row * grid->cols + col) * 2;
#endif
    place.source_stride = call.row_major ? place.out_stride : EWX_TILE_N * 2;
    place.source = call.slice_offset[epoch & 1] +
                   (call.row_major ? ewx_matrix_element(grid, call.part, from) * 2
                                   : slot_offset(call, slot_of(call, call.part, from)));
    place.height = (int)ewx_tile_height(grid, call.part, tile);
    place.pieces = (int)(ewx_tile_width(grid, tile) / PIECE);
    return place;
}

/* The rows of the tile that are in a share, whose output is `output.c`. */
__device__ tile_place own_place(const ewx_cuda_output &output, const ewx_cuda_call &call,
                                uint32_t epoch, const ewx_share &mine, ewx_tile tile,
                                ewx_tile_rows rows)
{
    tile_place place = place_of(output, call, epoch, tile);
    place.out += (rows.first - mine.first_row) * (int64_t)place.out_stride;
#if EW_MUTANT != 72 /* planted bug: the tile's first rows, whoever owns them */
    place.source += rows.first * place.source_stride;
#endif
    place.height = (int)(rows.end - rows.first);
    return place;
}

/* ---- Arithmetic ---- */

/* Adds the contributions first..first+SOURCES-1, all in flight at once, to ROWS pieces of a
 * thread. */
template <class T, int THREADS, int SOURCES, int ROWS>
__device__ __forceinline__ void add_sources(float (&sum)[ROWS][PIECE],
                                            const tile_place &place,
                                            const ewx_cuda_call &call, int first_source,
                                            int num_sources, int first_piece)
{
    const uint64_t once = l2_evict_first(); /* leave the L2 to A and B */
    uint4 v[SOURCES][ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const int piece = first_piece + i * THREADS;
        const int row = piece / PIECES_PER_ROW, column = piece % PIECES_PER_ROW;
        const bool exists = row < place.height && column < place.pieces;
        const int64_t offset = place.source + row * place.source_stride + column * 16;
#pragma unroll
        for (int s = 0; s < SOURCES; s++) {
            v[s][i] = make_uint4(0, 0, 0, 0);
#if EW_MUTANT == 4 /* planted bug: the owner's contribution first */
            const int source = (first_source + s + call.rank) % call.num_sources;
#else
            const int source = first_source + s;
#endif
            if (exists && s < num_sources)
                v[s][i] = ld_16(call.sources[source] + offset, once);
        }
    }
#pragma unroll
    for (int s = 0; s < SOURCES; s++)
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (s < num_sources)
                add<T>(sum[i], v[s][i]);
}

/* W is the number of sources, or 0 when it is known at run time only. */
template <class T, int THREADS, int W, int SOURCES, int ROWS>
__device__ __forceinline__ void add_all(float (&sum)[ROWS][PIECE], const tile_place &place,
                                        const ewx_cuda_call &call, int first)
{
    const int count = W ? W : call.num_sources;
#pragma unroll
    for (int source = 0; source < (W ? W : 1); source += SOURCES)
        add_sources<T, THREADS, SOURCES, ROWS>(sum, place, call, source,
                                               W ? W - source : count, first);
#pragma unroll 1
    for (int source = SOURCES; !W && source < count; source += SOURCES)
        add_sources<T, THREADS, SOURCES, ROWS>(sum, place, call, source, count - source,
                                               first);
}

/* Gives a piece of a sum to all others, in place of their contributions to it: of several,
 * the first.  W is the number of ranks, or 0. */
template <int W>
__device__ __forceinline__ void push_piece(const ewx_cuda_call &call, int64_t offset,
                                           uint4 v)
{
    const int num_ranks = W ? W : call.num_ranks;
    const uint64_t soon = l2_evict_normal(); /* read */
#pragma unroll(W ? W : 1)
    for (int rank = 0; rank < num_ranks; rank++)
        if (rank != call.rank)
            st_16(call.heaps[rank] + offset, v, soon);
}

/* Likewise into their outputs; `mine` is the piece's place in this rank's. */
template <int W>
__device__ __forceinline__ void push_straight(const ewx_cuda_call &call,
                                              const ewx_cuda_symmetric &symmetric,
                                              unsigned char *mine, uint4 v)
{
    const int num_ranks = W ? W : call.num_ranks;
    const uint64_t once = l2_evict_first();
#pragma unroll(W ? W : 1)
    for (int rank = 0; rank < num_ranks; rank++)
        if (rank != call.rank)
            st_16(mine + symmetric.apart[rank], v, once);
}

/* Where a sum goes besides this rank's output: into the slots if `pushes`. */
enum class beyond { NOTHING, SLOTS, OUTPUTS };

template <class T, int THREADS, int W, int SOURCES, int ROWS, beyond BEYOND>
__device__ void reduce_tile(const tile_place &place, const ewx_cuda_call &call, bool pushes,
                            const ewx_cuda_symmetric &symmetric)
{
    const uint64_t once = l2_evict_first();
    const int pieces = place.height * PIECES_PER_ROW;
#pragma unroll 1
    for (int first = threadIdx.x; first < pieces; first += THREADS * ROWS) {
        float sum[ROWS][PIECE] = {};
        add_all<T, THREADS, W, SOURCES, ROWS>(sum, place, call, first);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int piece = first + i * THREADS;
            const int row = piece / PIECES_PER_ROW, column = piece % PIECES_PER_ROW;
            if (row < place.height && column < place.pieces) {
                const uint4 v = rounded<T>(sum[i]);
                unsigned char *out =
                    place.out + (size_t)row * place.out_stride + column * 16;
                st_16(out, v, once);
                if (BEYOND == beyond::SLOTS && pushes)
                    push_piece<W>(
                        call, place.source + row * place.source_stride + column * 16, v);
                if (BEYOND == beyond::OUTPUTS)
                    push_straight<W>(call, symmetric, out, v);
            }
        }
    }
}

/* ---- What is awaited ---- */

/* One warp, of a task of the rank's part: false when the call is given up. */
__device__ bool await_tile(const ewx_cuda_call &call, uint32_t epoch, int64_t task,
                           ewx_tile tile, int lane)
{
    const int64_t unit = release_unit_of(call, call.part, task);
    bool ok = true;
    for (int rank = lane; rank < call.num_ranks && ok; rank += 32)
        ok = await_epoch(call, flag_of(call, call.rank, unit, rank), epoch,
                         {EWX_CUDA_TILE, rank, (int)tile.row, (int)tile.col});
    return __all_sync(~0u, ok);
}

/* The GEMM before this kernel in its stream was not ours: publishes that it is over. */
__device__ void announce_output(const ewx_cuda_call &call, uint32_t epoch)
{
    call.report->gemm_end_ns = global_timer_ns();
    publish_to_all(call, epoch, 0);
}

} // namespace

#endif
