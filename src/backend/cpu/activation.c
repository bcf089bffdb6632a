/* A row of a tile goes through buffers of fp32.  The arithmetic is written for one element,
 * in a loop that compilers turn into vectors, once for each of the x86 instruction sets
 * that have wider ones; the exponential is our own, for that of the C library is no such
 * loop, and has other bits on another system.  A product and the sum it goes into are two
 * statements, as in epilogue_math.c: so all give the same bits. */
#include "backend/cpu/activation.h"

#include "backend/cpu/kernels/convert.h"
#include "backend/cpu/kernels/convert_avx512.h"
#include "plan/grid.h"

#define INLINE static inline __attribute__((always_inline))

/* ---- Functions of one element ---- */

INLINE float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

INLINE uint32_t to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* exp(r) for |r| up to ln(2) / 2: its Taylor polynomial of degree 7. */
INLINE float exp_near_zero(float r)
{
    static const float factors[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6,
                                    1.0f / 2,   1.0f,       1.0f};
    float sum = 1.0f / 5040;
    for (unsigned i = 0; i < sizeof factors / sizeof *factors; i++) {
        const float product = sum * r;
        sum = product + factors[i];
    }
    return sum;
}

/* exp(x) for x up to 0, as 2^n exp(r) with x = n ln(2) + r.  What is too small for fp32
 * becomes 0. */
INLINE float exp_of_negative(float x)
{
    const float whole = 0x1.8p23f; /* added to a small number, leaves its whole part */
    const float ln2_high = 0x1.63p-1f, ln2_low = -0x1.bd0106p-13f;
    x = x < -104.0f ? -104.0f : x;
    const float turns = x * 0x1.715476p+0f;
    const float shifted = turns + whole;
    const float n = shifted - whole;
    const float high = n * ln2_high, low = n * ln2_low;
    const float rest = x - high;
    const uint32_t exponent = to_bits(shifted) - 0x4b400000u;
    const uint32_t half = (uint32_t)((int32_t)exponent >> 1);
    /* 2^n in two steps: the result may be subnormal. */
    return exp_near_zero(rest - low) * from_bits((half + 127u) << 23) *
           from_bits((exponent - half + 127u) << 23);
}

/* x / (1 + exp(-t)), without an exp that overflows. */
INLINE float times_sigmoid(float x, float t)
{
    const float e = exp_of_negative(from_bits(to_bits(t) | 0x80000000u));
    const float above = t < 0.0f ? e : 1.0f;
    return x * (above / (1.0f + e));
}

INLINE float apply(ew_activation activation, float x)
{
    if (activation == EW_ACTIVATION_NONE)
        return x;
    if (activation == EW_ACTIVATION_SILU)
        return times_sigmoid(x, x);
    /* (1 + tanh(u)) / 2 is 1 / (1 + exp(-2 u)). */
    const float square = x * x;
    const float cubic = square * 0x1.6e4e26p-5f; /* 0.044715 */
    const float inner = x * (1.0f + cubic);
    return times_sigmoid(x, inner * 0x1.988454p+0f); /* 2 sqrt(2 / pi) */
}

/* ---- Rows ---- */

typedef struct row {
    _Alignas(64) float gate[EWX_TILE_N]; /* and its activation afterwards */
    _Alignas(64) float up[EWX_TILE_N];
} row;

INLINE void activate_with(ew_activation activation, bool has_up, row *values)
{
    for (int i = 0; i < EWX_TILE_N; i++) {
        const float x = apply(activation, values->gate[i]);
        values->gate[i] = has_up ? x * values->up[i] : x;
    }
}

/* Compiled for each activation. */
INLINE void activate(ew_activation activation, bool has_up, row *values)
{
    if (activation == EW_ACTIVATION_NONE)
        activate_with(EW_ACTIVATION_NONE, has_up, values);
    else if (activation == EW_ACTIVATION_SILU)
        activate_with(EW_ACTIVATION_SILU, has_up, values);
    else
        activate_with(EW_ACTIVATION_GELU_TANH, has_up, values);
}

static void activate_plain(ew_activation activation, bool has_up, row *values)
{
    activate(activation, has_up, values);
}

static size_t bytes_of(ew_dtype dtype, int64_t count)
{
    return (size_t)count * (dtype == EW_FP32 ? sizeof(float) : sizeof(uint16_t));
}

static void widen_octets(ew_dtype dtype, const uint16_t *halves, float *values)
{
    for (int64_t at = 0; at < EWX_TILE_N; at += EWX_OCTET)
        ewx_octet_store(EW_FP32,
                        dtype == EW_BF16 ? ewx_octet_load(EW_BF16, halves, at)
                                         : ewx_octet_load(EW_FP16, halves, at),
                        values, at);
}

static void round_octets(ew_dtype dtype, const float *values, uint16_t *halves)
{
    for (int64_t at = 0; at < EWX_TILE_N; at += EWX_OCTET)
        if (dtype == EW_BF16)
            ewx_octet_store(EW_BF16, ewx_octet_load(EW_FP32, values, at), halves, at);
        else
            ewx_octet_store(EW_FP16, ewx_octet_load(EW_FP32, values, at), halves, at);
}

/* ---- x86 ---- */

#if defined(__x86_64__)

#define AVX2_CODE __attribute__((target("avx2")))

AVX2_CODE static void activate_avx2(ew_activation activation, bool has_up, row *values)
{
    activate(activation, has_up, values);
}

EWX_AVX512_CODE static void activate_avx512(ew_activation activation, bool has_up,
                                            row *values)
{
    activate(activation, has_up, values);
}

EWX_AVX512_CODE static void widen_sixteens(ew_dtype dtype, const uint16_t *halves,
                                           float *values)
{
    for (int at = 0; at < EWX_TILE_N; at += EWX_SIXTEEN)
        _mm512_storeu_ps(values + at, dtype == EW_BF16
                                          ? ewx_sixteen_load_bf16(halves + at)
                                          : ewx_sixteen_load_fp16(halves + at));
}

EWX_AVX512_CODE static void round_sixteens(ew_dtype dtype, const float *values,
                                           uint16_t *halves)
{
    for (int at = 0; at < EWX_TILE_N; at += EWX_SIXTEEN)
        if (dtype == EW_BF16)
            ewx_sixteen_store_bf16(_mm512_loadu_ps(values + at), halves + at);
        else
            ewx_sixteen_store_fp16(_mm512_loadu_ps(values + at), halves + at);
}

#endif

/* ---- The choice ---- */

typedef struct row_code {
    void (*activate)(ew_activation activation, bool has_up, row *values);
    void (*widen)(ew_dtype dtype, const uint16_t *halves, float *values);
    void (*round)(ew_dtype dtype, const float *values, uint16_t *halves);
} row_code;

static row_code choose(void)
{
#if defined(__x86_64__)
    if (ewx_has_avx512())
        return (row_code){activate_avx512, widen_sixteens, round_sixteens};
    if (__builtin_cpu_supports("avx2"))
        return (row_code){activate_avx2, widen_octets, round_octets};
#endif
    return (row_code){activate_plain, widen_octets, round_octets};
}

static void load(const row_code *code, ew_dtype dtype, const void *src, int64_t cols,
                 float *values)
{
    uint16_t halves[EWX_TILE_N];
    memcpy(dtype == EW_FP32 ? (void *)values : halves, src, bytes_of(dtype, cols));
    if (dtype == EW_FP32)
        return;
    memset(halves + cols, 0, bytes_of(dtype, EWX_TILE_N - cols));
    code->widen(dtype, halves, values);
}

static void store(const row_code *code, ew_dtype dtype, const float *values, int64_t cols,
                  void *dst)
{
    uint16_t halves[EWX_TILE_N];
    if (dtype != EW_FP32)
        code->round(dtype, values, halves);
    memcpy(dst, dtype == EW_FP32 ? (const void *)values : halves, bytes_of(dtype, cols));
}

/* ---- Tiles ---- */

static unsigned char *row_of(ew_dtype dtype, ewx_matrix_tile tile, int64_t at)
{
    return (unsigned char *)tile.at + bytes_of(dtype, at * tile.stride);
}

void ewx_activate_tile(ew_dtype dtype, ew_activation activation, int64_t rows, int64_t cols,
                       ewx_matrix_tile gate, ewx_matrix_tile up, ewx_matrix_tile c)
{
    const row_code code = choose();
    row values = {{0}, {0}};
    for (int64_t at = 0; at < rows; at++) {
        load(&code, dtype, row_of(dtype, gate, at), cols, values.gate);
        if (up.at)
            load(&code, dtype, row_of(dtype, up, at), cols, values.up);
        code.activate(activation, up.at, &values);
        store(&code, dtype, values.gate, cols, row_of(dtype, c, at));
    }
}
