/* How a finished block of gemm_sm80.cu leaves: rounded into images of its tiles in shared
 * memory, and from there to where the operation wants it. */
#ifndef EWX_CUDA_SM80_STORE_CUH
#define EWX_CUDA_SM80_STORE_CUH

#include "backend/cuda/kernels/activate.cuh"
#include "backend/cuda/kernels/sm80_multiply.cuh"

namespace
{

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

} // namespace
#endif
