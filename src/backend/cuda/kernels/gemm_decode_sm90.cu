/* The GEMM for Hopper in a call of few rows, as when tokens are decoded: at most 128
 * rows of A, one row of tiles.  Then nothing but reading the weight takes time, so a CTA
 * keeps many stages of it on their way, through one tile after the other.
 *
 * The weight is the left operand, 128 rows of it at a time, and the rows of A, here tokens,
 * are the right one: they are padded to 8, 16, 32, 64 or 128, not to a multiple of the 64
 * that the left one needs.  Every element is the same sum in the same order as in
 * gemm_sm90.cu, so its bits are the same, and which kernel runs may depend on m.
 *
 *     warp 4 (loader)  --full stages--> warps 0 to 3 (multipliers) --empty stages-->
 *     multipliers      --full image of a tile--> warp 5 (storer) --empty image-->
 *
 * The CTA takes no more of an SM than one of gemm_sm90.cu with blocks of 128 x 256, so what
 * fits beside those fits beside these. */
#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/op_gemm_ar.cuh"
#include "backend/cuda/kernels/op_gemm_rs.cuh"

namespace
{

constexpr int WARPGROUP = 128;
constexpr int THREADS = WARPGROUP + 64;
constexpr int DEPTH = 64; /* columns of A and B in one stage: a 128-byte row */
constexpr int WEIGHT_BYTES = EWX_TILE_N * DEPTH * 2;
constexpr int HALF_ROWS = 64; /* of one wgmma */
constexpr int HALF_TILE_DESCRIPTOR =
    HALF_ROWS * DEPTH * 2 / 16; /* so far down the weight */
constexpr int SLOT_ROW_BYTES = EWX_TILE_N * 2;
constexpr int MOST_BYTES = 212 * 1024; /* of stages and image */

enum { LOADER_WARP = WARPGROUP / 32, STORER_WARP };
enum { IMAGE_FULL = 1, IMAGE_EMPTY };
constexpr int IMAGE_THREADS = WARPGROUP + 32; /* multipliers and the storer */

template <int TOKENS>
struct shape {
    static constexpr int TOKEN_BYTES = TOKENS * DEPTH * 2;
    static constexpr int STAGE_BYTES = WEIGHT_BYTES + TOKEN_BYTES;
    static constexpr int IMAGE_BYTES = TOKENS * SLOT_ROW_BYTES;
    static constexpr int STAGES = (MOST_BYTES - IMAGE_BYTES) / STAGE_BYTES;
    static constexpr int SHARED_BYTES =
        STAGES * STAGE_BYTES + IMAGE_BYTES + 2 * STAGES * 8 + 16;
};

/* Addresses in shared memory. */
template <int TOKENS>
struct arena {
    using S = shape<TOKENS>;
    uint32_t base;

    __device__ uint32_t weight(int stage) const
    {
        return base + stage * S::STAGE_BYTES;
    }
    __device__ uint32_t tokens(int stage) const
    {
        return weight(stage) + WEIGHT_BYTES;
    }
    __device__ uint32_t image() const
    {
        return weight(S::STAGES);
    }
    __device__ uint32_t full(int stage) const
    {
        return image() + S::IMAGE_BYTES + 8 * stage;
    }
    __device__ uint32_t empty(int stage) const
    {
        return full(S::STAGES + stage);
    }
    __device__ uint32_t epoch() const
    {
        return full(2 * S::STAGES);
    }
};

/* A place that moves round the stages. */
template <int STAGES>
struct ring {
    int at = 0;
    uint32_t parity = 0;

    __device__ __forceinline__ void advance()
    {
        if (++at == STAGES) {
            at = 0;
            parity ^= 1;
        }
    }
};

/* ---- Which tiles: every gridDim-th, so that no warp has to ask ---- */

__device__ __forceinline__ int first_tile(const ewx_cuda_operands &operands)
{
    return (int)operands.first_position + blockIdx.x;
}

/* As the operations know it. */
__device__ __forceinline__ gemm_block describe_tile(const ewx_grid &grid, int col)
{
    gemm_block block = {};
    block.tile = {0, col};
    block.b_row = (int64_t)col * EWX_TILE_N;
    block.task = ewx_tile_task(&grid, 0, block.tile);
    block.rows = (int)grid.rows;
    block.num_tiles = 1;
    return block;
}

/* ---- Loader: one thread ---- */

template <int TOKENS>
__device__ void load(const ewx_cuda_maps &maps, const ewx_cuda_operands &operands,
                     int num_steps, const arena<TOKENS> &memory)
{
    using S = shape<TOKENS>;
    /* A call reads the weight once, and the tokens with every tile. */
    const uint64_t once = l2_evict_first(), keep = l2_evict_last();
    ring<S::STAGES> stage;
    for (int col = first_tile(operands); col < operands.end_position; col += gridDim.x)
        for (int step = 0; step < num_steps; step++, stage.advance()) {
            const uint32_t full = memory.full(stage.at);
            mbarrier_wait(memory.empty(stage.at), stage.parity ^ 1);
            mbarrier_expect(full, S::STAGE_BYTES);
            tensor_load(memory.weight(stage.at), &maps.b, full, step * DEPTH,
                        col * EWX_TILE_N, once);
            tensor_load(memory.tokens(stage.at), &maps.a, full, step * DEPTH, 0, keep);
        }
}

/* ---- Multipliers: one warpgroup ---- */

#define WGMMA_TOKENS(n, list, a_at, b_at, scale_at, type, ...)                            \
    asm volatile("{\n"                                                                    \
                 ".reg .pred accumulate;\n"                                               \
                 "setp.ne.b32 accumulate, %" scale_at ", 0;\n"                            \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32." type "." type " {" list \
                 "}, %" a_at ", %" b_at ", accumulate, 1, 1, 0, 0;\n"                     \
                 "}"                                                                      \
                 : __VA_ARGS__                                                            \
                 : "l"(a), "l"(b), "r"(accumulate))
#define REGISTERS_4 "%0,%1,%2,%3"
#define REGISTERS_8 REGISTERS_4 ",%4,%5,%6,%7"
#define REGISTERS_16 REGISTERS_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define REGISTERS_32 \
    REGISTERS_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"

/* 64 rows of the weight by 8, 16, 32, 64 or 128 tokens: twice as many as `acc` has
 * elements. */
template <class T>
struct wgmma_tokens;

#define DEFINE_WGMMA_TOKENS(T, type)                                                    \
    template <>                                                                         \
    struct wgmma_tokens<T> {                                                            \
        static __device__ __forceinline__ void step(float (&acc)[4], uint64_t a,        \
                                                    uint64_t b, int accumulate)         \
        {                                                                               \
            WGMMA_TOKENS("8", REGISTERS_4, "4", "5", "6", type, WGMMA_4(acc, 0));       \
        }                                                                               \
        static __device__ __forceinline__ void step(float (&acc)[8], uint64_t a,        \
                                                    uint64_t b, int accumulate)         \
        {                                                                               \
            WGMMA_TOKENS("16", REGISTERS_8, "8", "9", "10", type, WGMMA_4(acc, 0),      \
                         WGMMA_4(acc, 4));                                              \
        }                                                                               \
        static __device__ __forceinline__ void step(float (&acc)[16], uint64_t a,       \
                                                    uint64_t b, int accumulate)         \
        {                                                                               \
            WGMMA_TOKENS("32", REGISTERS_16, "16", "17", "18", type, WGMMA_16(acc, 0)); \
        }                                                                               \
        static __device__ __forceinline__ void step(float (&acc)[32], uint64_t a,       \
                                                    uint64_t b, int accumulate)         \
        {                                                                               \
            WGMMA_TOKENS("64", REGISTERS_32, "32", "33", "34", type, WGMMA_16(acc, 0),  \
                         WGMMA_16(acc, 16));                                            \
        }                                                                               \
        static __device__ __forceinline__ void step(float (&acc)[64], uint64_t a,       \
                                                    uint64_t b, int accumulate)         \
        {                                                                               \
            wgmma_m64n128k16<T>(acc, a, b, accumulate);                                 \
        }                                                                               \
    }
DEFINE_WGMMA_TOKENS(__half, "f16");
DEFINE_WGMMA_TOKENS(__nv_bfloat16, "bf16");

template <class T, int TOKENS>
__device__ __forceinline__ void multiply_tile(float (&acc)[2][TOKENS / 2], int num_steps,
                                              int thread, const arena<TOKENS> &memory,
                                              ring<shape<TOKENS>::STAGES> &stage)
{
    int previous = 0;
#pragma unroll 1
    for (int step = 0; step < num_steps; step++) {
        mbarrier_wait(memory.full(stage.at), stage.parity);
        const uint64_t weight = wgmma_descriptor(memory.weight(stage.at));
        const uint64_t tokens = wgmma_descriptor(memory.tokens(stage.at));
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++) { /* 16 elements are 2 units of 16 bytes */
            const int accumulate = (step | k) != 0;
#pragma unroll
            for (int half = 0; half < 2; half++)
                wgmma_tokens<T>::step(acc[half],
                                      weight + half * HALF_TILE_DESCRIPTOR + 2 * k,
                                      tokens + 2 * k, accumulate);
        }
        wgmma_commit();
        wgmma_wait<1>(); /* one step stays in flight; the one before is over */
        if (step > 0 && thread == 0)
            mbarrier_arrive(memory.empty(previous));
        previous = stage.at;
        stage.advance();
    }
    wgmma_wait<0>();
    if (thread == 0)
        mbarrier_arrive(memory.empty(previous));
}

__device__ __forceinline__ void stmatrix_x4_transposed(uint32_t address, uint32_t m0,
                                                       uint32_t m1, uint32_t m2,
                                                       uint32_t m3)
{
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
            address),
        "r"(m0), "r"(m1), "r"(m2), "r"(m3)
        : "memory");
}

/* Row by row as in the slot, whose rows are the tokens. */
template <class T, int TOKENS>
__device__ __forceinline__ void fill_image(uint32_t image,
                                           const float (&acc)[2][TOKENS / 2], int warp,
                                           int lane)
{
    const int col = (lane >> 4) * HALF_ROWS + warp * 16 + (lane >> 3 & 1) * 8;
#pragma unroll
    for (int j = 0; j < TOKENS / 8; j++) {
        const float *low = acc[0] + j * 4, *high = acc[1] + j * 4;
        stmatrix_x4_transposed(
            image + (j * 8 + (lane & 7)) * SLOT_ROW_BYTES + col * 2,
            element<T>::pack(low[0], low[1]), element<T>::pack(low[2], low[3]),
            element<T>::pack(high[0], high[1]), element<T>::pack(high[2], high[3]));
    }
}

template <class T, int TOKENS>
__device__ void multiply(const ewx_cuda_operands &operands, const ewx_cuda_call &call,
                         int num_steps, int thread, const arena<TOKENS> &memory)
{
    ring<shape<TOKENS>::STAGES> stage;
    bool image_used = false;
    for (int col = first_tile(operands); col < operands.end_position; col += gridDim.x) {
        const int64_t at = produced_at(call, 0, describe_tile(call.grid, col).task);
        float acc[2][TOKENS / 2];
        if (thread == 0)
            stamp_begin(call.trace.produced, at);
        multiply_tile<T, TOKENS>(acc, num_steps, thread, memory, stage);
        if (image_used)
            named_sync(IMAGE_EMPTY, IMAGE_THREADS);
        image_used = true;
        fill_image<T, TOKENS>(memory.image(), acc, thread >> 5, thread & 31);
        writes_before_bulk();
        named_arrive(IMAGE_FULL, IMAGE_THREADS);
        if (thread == 0)
            stamp_end(call.trace.produced, at);
    }
    if (image_used) /* take the storer's last arrival */
        named_sync(IMAGE_EMPTY, IMAGE_THREADS);
}

/* ---- Storer: one warp ---- */

__device__ __forceinline__ void bulk_store(unsigned char *to, uint32_t from, int bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                     __cvta_generic_to_global(to)),
                 "r"(from), "r"(bytes)
                 : "memory");
    commit_stores();
}

/* Rows that no token has are not stored: nobody reads them. */
template <class OP, int TOKENS>
__device__ void store(const ewx_cuda_operands &operands, const ewx_cuda_call &call,
                      uint32_t epoch, int lane, const arena<TOKENS> &memory)
{
    bool may_store = true, asked = false;
    for (int col = first_tile(operands); col < operands.end_position; col += gridDim.x) {
        const gemm_block tile = describe_tile(call.grid, col);
        if (!asked)
            may_store = OP::may_store(operands, call, epoch, lane);
        asked = true;
        const bool stores = may_store && lane == 0;
#if EW_MUTANT == 70 /* planted bug: the flag before the tile */
        if (stores)
            OP::deliver(operands, call, epoch, 0, tile.task);
#endif
        named_sync(IMAGE_FULL, IMAGE_THREADS);
        if (stores)
            bulk_store(call.heaps[OP::home(operands, call, 0)] +
                           call.slice_offset[epoch & 1] +
                           OP::slot(operands, call, tile) * EWX_CUDA_TILE_BYTES,
                       memory.image(), tile.rows * SLOT_ROW_BYTES);
        stores_have_read<0>();
        __syncwarp();
        named_arrive(IMAGE_EMPTY, IMAGE_THREADS);
        if (stores) {
            stores_are_complete();
#if EW_MUTANT != 70
            OP::deliver(operands, call, epoch, 0, tile.task);
#endif
        }
        __syncwarp();
    }
}

/* ---- The kernel ---- */

template <int TOKENS>
__device__ void prepare(const arena<TOKENS> &memory)
{
    for (int stage = 0; stage < shape<TOKENS>::STAGES; stage++) {
        mbarrier_init(memory.full(stage), 1);
        mbarrier_init(memory.empty(stage), 1);
    }
    mbarrier_init_done();
}

template <class OP, class T, int TOKENS>
__global__ void __launch_bounds__(THREADS, 1)
    decode(const __grid_constant__ ewx_cuda_maps maps,
           const __grid_constant__ ewx_cuda_operands operands,
           const __grid_constant__ ewx_cuda_call call)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    const arena<TOKENS> memory = {shared_address(shared)};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int num_steps = (int)ewx_div_up(operands.k, DEPTH);
    if (threadIdx.x == 0) {
        if (first_tile(operands) < operands.end_position) { /* else there may be no maps */
            tensor_prefetch(&maps.a);
            tensor_prefetch(&maps.b);
        }
        prepare(memory);
        st_shared(memory.epoch(), open_producer(call, operands.opens));
    }
    __syncthreads();
    const uint32_t epoch = ld_shared(memory.epoch());
    if (warp < LOADER_WARP)
        multiply<T, TOKENS>(operands, call, num_steps, threadIdx.x, memory);
    else if (warp == LOADER_WARP && lane == 0)
        load<TOKENS>(maps, operands, num_steps, memory);
    else if (warp == STORER_WARP)
        store<OP, TOKENS>(operands, call, epoch, lane, memory);
    __syncwarp(); /* lanes that had nothing to do have gone ahead */
    __syncthreads();
    if (threadIdx.x == 0)
        close_producer(call, epoch, operands.closes);
}

template <class OP, class T, int TOKENS>
ewx_cuda_entry entry()
{
    return {(const void *)decode<OP, T, TOKENS>, THREADS, shape<TOKENS>::SHARED_BYTES,
            EWX_TILE_N, TOKENS};
}

template <class OP, class T>
ewx_cuda_entry entry_of(int tokens)
{
    return tokens == 8     ? entry<OP, T, 8>()
           : tokens == 16  ? entry<OP, T, 16>()
           : tokens == 32  ? entry<OP, T, 32>()
           : tokens == 64  ? entry<OP, T, 64>()
           : tokens == 128 ? entry<OP, T, 128>()
                           : ewx_cuda_entry{};
}

template <class OP>
ewx_cuda_entry entry_of(ew_dtype dtype, int tokens)
{
    return dtype == EW_BF16   ? entry_of<OP, __nv_bfloat16>(tokens)
           : dtype == EW_FP16 ? entry_of<OP, __half>(tokens)
                              : ewx_cuda_entry{};
}

} // namespace

ewx_cuda_entry ewx_cuda_gemm_decode_sm90(ew_op op, ew_dtype dtype, int tokens)
{
    switch (op) {
    case EW_OP_GEMM_RS:
        return entry_of<op_gemm_rs>(dtype, tokens);
    case EW_OP_GEMM_AR:
        return entry_of<op_gemm_ar>(dtype, tokens);
    default:
        return {};
    }
}
