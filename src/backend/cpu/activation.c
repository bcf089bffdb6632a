/* A row of a tile goes through buffers of fp32.  The arithmetic is written for one element
 * (plan/activation_math.h), in a loop that compilers turn into vectors, once for each of
 * the x86 instruction sets that have wider ones. */
#include "backend/cpu/activation.h"

#include "backend/cpu/kernels/convert.h"
#include "backend/cpu/kernels/convert_avx512.h"
#include "plan/activation_math.h"
#include "plan/grid.h"

#define INLINE static inline __attribute__((always_inline))

/* ---- Rows ---- */

typedef struct row {
    _Alignas(64) float gate[EWX_TILE_N]; /* and its activation afterwards */
    _Alignas(64) float up[EWX_TILE_N];
} row;

/* Two loops: one with a choice in it is not made into vectors. */
INLINE void activate_with(ew_activation activation, bool has_up, row *values)
{
    for (int i = 0; i < EWX_TILE_N; i++)
        values->gate[i] = ewx_activate(activation, values->gate[i]);
    for (int i = 0; has_up && i < EWX_TILE_N; i++)
        values->gate[i] *= values->up[i];
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

#define AVX2_CODE __attribute__((target("avx2,fma")))

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
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
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
