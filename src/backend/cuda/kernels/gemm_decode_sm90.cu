/* The GEMM for Hopper in a call of few rows, as when tokens are decoded: at most 208 rows
 * of A, one or two rows of tiles.  Then reading the weight takes most of the time, so a CTA
 * keeps many stages of it on their way, through one column of tiles after the other.
 *
 * The weight is the left operand, 128 rows of it at a time, and the rows of A, here tokens,
 * are the right one: they are padded to 8, 16, 32, 64, 128, 160 or 208, not to a multiple
 * of the 64 that the left one needs.  Every element is the same sum in the same order as in
 * gemm_sm90.cuh, so its bits are the same, and which kernel runs may depend on m.
 *
 *     loader       --full stages--> multipliers --empty stages-->
 *     multipliers  --full image of a tile--> storer --empty image-->
 *
 * One warpgroup multiplies both halves of the 128 rows of the weight, or two have one each.
 * The CTA takes no more of an SM than one of gemm_sm90.cuh with blocks of 128 x 256, so
 * what fits beside those fits beside these. */
#include "backend/cuda/kernels/hopper.cuh"
#include "backend/cuda/kernels/op_gemm_ar.cuh"
#include "backend/cuda/kernels/op_gemm_rs.cuh"

namespace
{

constexpr int WARPGROUP = 128;
constexpr int DEPTH = 64; /* columns of A and B in one stage: a 128-byte row */
constexpr int WEIGHT_BYTES = EWX_TILE_N * DEPTH * 2;
constexpr int HALF_ROWS = 64; /* of one wgmma */
constexpr int HALF_TILE_DESCRIPTOR =
    HALF_ROWS * DEPTH * 2 / 16; /* so far down the weight */
constexpr int SLOT_ROW_BYTES = EWX_TILE_N * 2;
constexpr int MOST_BYTES = 212 * 1024; /* of stages and image */

enum { IMAGE_FULL = 1, IMAGE_EMPTY };

template <int TOKENS>
struct shape {
    static constexpr int TILE_ROWS = TOKENS > EWX_TILE_M ? 2 : 1;
    static constexpr int WARPGROUPS = TILE_ROWS;
    static constexpr int MULTIPLIERS = WARPGROUPS * WARPGROUP;
    /* Registers are shared out among warpgroups: where two multiply, the loader and the
     * storer are in a third. */
    static constexpr int THREADS = MULTIPLIERS + (WARPGROUPS == 2 ? WARPGROUP : 64);
    static constexpr int LOADER_WARP = MULTIPLIERS / 32, STORER_WARP = LOADER_WARP + 1;
    static constexpr int IMAGE_THREADS = MULTIPLIERS + 32; /* and the storer */
    static constexpr int LAUNCH_BOUND = WARPGROUPS == 2 ? 512 : THREADS;
    enum { MULTIPLIER_REGISTERS = 152, OTHER_REGISTERS = 80 };
    static constexpr int TOKEN_BYTES = TOKENS * DEPTH * 2;
    static constexpr int STAGE_BYTES = WEIGHT_BYTES + TOKEN_BYTES;
    static constexpr int IMAGE_BYTES =
        (TOKENS < EWX_TILE_M ? TOKENS : EWX_TILE_M) * SLOT_ROW_BYTES;
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

/* ---- Which tiles: every gridDim-th column, so that no warp has to ask ---- */

template <int TOKENS>
__device__ __forceinline__ int end_col(const ewx_cuda_operands &operands)
{
    return (int)operands.end_position / shape<TOKENS>::TILE_ROWS;
}

/* As the operations know it. */
__device__ __forceinline__ gemm_block describe_tile(const ewx_grid &grid, int row, int col)
{
    gemm_block block = {};
    block.tile = {row, col};
    block.b_row = (int64_t)col * EWX_TILE_N;
    block.task = ewx_tile_task(&grid, 0, block.tile);
    block.rows = (int)ewx_tile_height(&grid, 0, block.tile);
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
    for (int col = blockIdx.x; col < end_col<TOKENS>(operands); col += gridDim.x)
        for (int step = 0; step < num_steps; step++, stage.advance()) {
            const uint32_t full = memory.full(stage.at);
            mbarrier_wait(memory.empty(stage.at), stage.parity ^ 1);
            mbarrier_expect(full, S::STAGE_BYTES);
            tensor_load(memory.weight(stage.at), &maps.b, full, step * DEPTH,
                        col * EWX_TILE_N, once);
            tensor_load(memory.tokens(stage.at), &maps.a, full, step * DEPTH, 0, keep);
        }
}

/* ---- Multipliers ---- */

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
#define REGISTERS_40 REGISTERS_32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define REGISTERS_52 REGISTERS_40 ",%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51"
#define WGMMA_40(acc) \
    WGMMA_16(acc, 0), WGMMA_16(acc, 16), WGMMA_4(acc, 32), WGMMA_4(acc, 36)

/* 64 rows of the weight by twice as many tokens as `acc` has elements. */
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
        static __device__ __forceinline__ void step(float (&acc)[40], uint64_t a,       \
                                                    uint64_t b, int accumulate)         \
        {                                                                               \
            WGMMA_TOKENS("80", REGISTERS_40, "40", "41", "42", type, WGMMA_40(acc));    \
        }                                                                               \
        static __device__ __forceinline__ void step(float (&acc)[52], uint64_t a,       \
                                                    uint64_t b, int accumulate)         \
        {                                                                               \
            WGMMA_TOKENS("104", REGISTERS_52, "52", "53", "54", type, WGMMA_40(acc),    \
                         WGMMA_4(acc, 40), WGMMA_4(acc, 44), WGMMA_4(acc, 48));         \
        }                                                                               \
    }
DEFINE_WGMMA_TOKENS(__half, "f16");
DEFINE_WGMMA_TOKENS(__nv_bfloat16, "bf16");

/* Of a warpgroup's two wgmmas, which have the two halves of the weight's rows, or, where
 * another warpgroup has the other rows, the two halves of the tokens: more tokens in one
 * need more registers than a CTA may start with. */
template <int TOKENS>
using accumulators = float[2][TOKENS / 2 / shape<TOKENS>::WARPGROUPS];

/* From the `half` of the weight's rows on. */
template <class T, int TOKENS>
__device__ __forceinline__ void multiply_tile(accumulators<TOKENS> &acc, int num_steps,
                                              int half, int thread,
                                              const arena<TOKENS> &memory,
                                              ring<shape<TOKENS>::STAGES> &stage)
{
    using S = shape<TOKENS>;
    constexpr int NEXT_WEIGHT = S::WARPGROUPS == 1 ? HALF_TILE_DESCRIPTOR : 0;
    constexpr int NEXT_TOKENS = S::WARPGROUPS == 1 ? 0 : S::TOKEN_BYTES / 2 / 16;
    int previous = 0;
#pragma unroll 1
    for (int step = 0; step < num_steps; step++) {
        mbarrier_wait(memory.full(stage.at), stage.parity);
        const uint64_t weight =
            wgmma_descriptor(memory.weight(stage.at)) + half * HALF_TILE_DESCRIPTOR;
        const uint64_t tokens = wgmma_descriptor(memory.tokens(stage.at));
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < DEPTH / 16; k++) { /* 16 elements are 2 units of 16 bytes */
            const int accumulate = (step | k) != 0;
#pragma unroll
            for (int i = 0; i < 2; i++)
                wgmma_tokens<T>::step(acc[i], weight + i * NEXT_WEIGHT + 2 * k,
                                      tokens + i * NEXT_TOKENS + 2 * k, accumulate);
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

/* Of 8 tokens, where two warpgroups multiply. */
template <int TOKENS>
__device__ __forceinline__ const float *group_of(const accumulators<TOKENS> &acc, int group)
{
    constexpr int GROUPS = TOKENS / 16; /* in a half */
    return acc[group / GROUPS] + group % GROUPS * 4;
}

/* A row of tiles, row by row as in the slot, whose rows are the tokens: 8 of them and 8
 * columns are a matrix.  Of four one warpgroup writes two in each half of the columns, and
 * of two warpgroups each writes those of 16 tokens in its own half. */
template <class T, int TOKENS>
__device__ __forceinline__ void fill_image(uint32_t image, const accumulators<TOKENS> &acc,
                                           int row, int half, int warp, int lane)
{
    constexpr int GROUPS = EWX_TILE_M / 8;
    const int col = warp * 16 + (lane >> 3 & 1) * 8;
    if constexpr (shape<TOKENS>::WARPGROUPS == 1) {
#pragma unroll
        for (int j = 0; j < TOKENS / 8; j++) {
            const float *low = acc[0] + j * 4, *high = acc[1] + j * 4;
            stmatrix_x4_transposed(
                image + (j * 8 + (lane & 7)) * SLOT_ROW_BYTES +
                    ((lane >> 4) * HALF_ROWS + col) * 2,
                element<T>::pack(low[0], low[1]), element<T>::pack(low[2], low[3]),
                element<T>::pack(high[0], high[1]), element<T>::pack(high[2], high[3]));
        }
    } else {
#pragma unroll
        for (int j = 0; j < TOKENS / 8; j += 2) {
            if (j / GROUPS != row)
                continue;
            const float *v = group_of<TOKENS>(acc, j), *w = group_of<TOKENS>(acc, j + 1);
            stmatrix_x4_transposed(
                image + ((j % GROUPS + (lane >> 4)) * 8 + (lane & 7)) * SLOT_ROW_BYTES +
                    (half * HALF_ROWS + col) * 2,
                element<T>::pack(v[0], v[1]), element<T>::pack(v[2], v[3]),
                element<T>::pack(w[0], w[1]), element<T>::pack(w[2], w[3]));
        }
    }
}

template <class T, int TOKENS>
__device__ void multiply(const ewx_cuda_operands &operands, const ewx_cuda_call &call,
                         int num_steps, int thread, const arena<TOKENS> &memory)
{
    using S = shape<TOKENS>;
    const int half = thread / WARPGROUP, in_group = thread % WARPGROUP;
    ring<S::STAGES> stage;
    bool image_used = false;
    for (int col = blockIdx.x; col < end_col<TOKENS>(operands); col += gridDim.x) {
        accumulators<TOKENS> acc;
        for (int row = 0; row < S::TILE_ROWS && thread == 0; row++)
            stamp_begin(call.trace.produced,
                        produced_at(call, 0, describe_tile(call.grid, row, col).task));
        multiply_tile<T, TOKENS>(acc, num_steps, half, in_group, memory, stage);
#pragma unroll
        for (int row = 0; row < S::TILE_ROWS; row++) {
            if (image_used)
                named_sync(IMAGE_EMPTY, S::IMAGE_THREADS);
            image_used = true;
            fill_image<T, TOKENS>(memory.image(), acc, row, half, in_group / 32,
                                  thread % 32);
            writes_before_bulk();
            named_arrive(IMAGE_FULL, S::IMAGE_THREADS);
            if (thread == 0)
                stamp_end(call.trace.produced,
                          produced_at(call, 0, describe_tile(call.grid, row, col).task));
        }
    }
    if (image_used) /* take the storer's last arrival */
        named_sync(IMAGE_EMPTY, S::IMAGE_THREADS);
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
__device__ void store_tile(const ewx_cuda_operands &operands, const ewx_cuda_call &call,
                           uint32_t epoch, const gemm_block &tile, bool stores,
                           const arena<TOKENS> &memory)
{
    using S = shape<TOKENS>;
#if EW_MUTANT == 70 /* planted bug: the flag before the tile */
    if (stores)
        OP::deliver(operands, call, epoch, 0, tile.task);
#endif
    named_sync(IMAGE_FULL, S::IMAGE_THREADS);
    if (stores)
        bulk_store(call.heaps[OP::home(operands, call, 0)] + call.slice_offset[epoch & 1] +
                       OP::slot(operands, call, tile) * EWX_CUDA_TILE_BYTES,
                   memory.image(), tile.rows * SLOT_ROW_BYTES);
    stores_have_read<0>();
    __syncwarp();
    named_arrive(IMAGE_EMPTY, S::IMAGE_THREADS);
    if (stores) {
        stores_are_complete();
#if EW_MUTANT != 70
        OP::deliver(operands, call, epoch, 0, tile.task);
#endif
    }
    __syncwarp();
}

template <class OP, int TOKENS>
__device__ void store(const ewx_cuda_operands &operands, const ewx_cuda_call &call,
                      uint32_t epoch, int lane, const arena<TOKENS> &memory)
{
    bool may_store = true, asked = false;
    for (int col = blockIdx.x; col < end_col<TOKENS>(operands); col += gridDim.x) {
        if (!asked)
            may_store = OP::may_store(operands, call, epoch, lane);
        asked = true;
        for (int row = 0; row < shape<TOKENS>::TILE_ROWS; row++)
            store_tile<OP, TOKENS>(operands, call, epoch,
                                   describe_tile(call.grid, row, col),
                                   may_store && lane == 0, memory);
    }
}

/* ---- The kernel ---- */

template <int TOKENS>
__device__ void prepare(const arena<TOKENS> &memory)
{
    for (int stage = 0; stage < shape<TOKENS>::STAGES; stage++) {
        mbarrier_init(memory.full(stage), 1);
        mbarrier_init(memory.empty(stage), shape<TOKENS>::WARPGROUPS);
    }
    mbarrier_init_done();
}

template <class OP, class T, int TOKENS>
__global__ void __launch_bounds__(shape<TOKENS>::LAUNCH_BOUND, 1)
    decode(const __grid_constant__ ewx_cuda_maps maps,
           const __grid_constant__ ewx_cuda_operands operands,
           const __grid_constant__ ewx_cuda_call call)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    using S = shape<TOKENS>;
    const arena<TOKENS> memory = {shared_address(shared)};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int num_steps = (int)ewx_div_up(operands.k, DEPTH);
    if (threadIdx.x == 0) {
        if (blockIdx.x < end_col<TOKENS>(operands)) { /* else there may be no maps */
            tensor_prefetch(&maps.a);
            tensor_prefetch(&maps.b);
        }
        prepare(memory);
        st_shared(memory.epoch(), open_producer(call, operands.opens));
    }
    __syncthreads();
    const uint32_t epoch = ld_shared(memory.epoch());
    if constexpr (S::WARPGROUPS == 2) {
        if (warp < S::LOADER_WARP)
            take_registers<S::MULTIPLIER_REGISTERS>();
        else
            give_registers<S::OTHER_REGISTERS>();
    }
    if (warp < S::LOADER_WARP)
        multiply<T, TOKENS>(operands, call, num_steps, threadIdx.x, memory);
    else if (warp == S::LOADER_WARP && lane == 0)
        load<TOKENS>(maps, operands, num_steps, memory);
    else if (warp == S::STORER_WARP)
        store<OP, TOKENS>(operands, call, epoch, lane, memory);
    __syncwarp(); /* lanes that had nothing to do have gone ahead */
    __syncthreads();
    if (threadIdx.x == 0)
        close_producer(call, epoch, operands.closes);
}

template <class OP, class T, int TOKENS>
ewx_cuda_entry entry()
{
    using S = shape<TOKENS>;
    return {(const void *)decode<OP, T, TOKENS>, S::THREADS, S::SHARED_BYTES, EWX_TILE_N,
            TOKENS};
}

template <class OP, class T>
ewx_cuda_entry entry_of(int tokens)
{
    return tokens == 8     ? entry<OP, T, 8>()
           : tokens == 16  ? entry<OP, T, 16>()
           : tokens == 32  ? entry<OP, T, 32>()
           : tokens == 64  ? entry<OP, T, 64>()
           : tokens == 128 ? entry<OP, T, 128>()
           : tokens == 160 ? entry<OP, T, 160>()
           : tokens == 208 ? entry<OP, T, 208>()
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
