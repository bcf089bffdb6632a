/* Random inputs against float64, within the error that the documented arithmetic allows:
 * fp32 sums over K, one rounding per contribution, fp32 sum over ranks, one rounding.
 * And special values, which must appear where they belong and nowhere else. */
#include "harness.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "backend/cpu/gemm.h"
#include "error_bound.h"
#include "random_inputs.h"

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

static double *widened(ew_dtype dtype, const void *src, int64_t count)
{
    double *wide = malloc((size_t)count * sizeof *wide);
    for (int64_t i = 0; i < count; i++)
        wide[i] = element_get(dtype, src, i);
    return wide;
}

/* BFMMLA rounds to odd. */
static double kernel_eps(const ewx_kernel *kernel)
{
    return kernel->packs == EW_BF16 ? 0x1p-23 : 0x1p-24;
}

/* ---- Every kernel, on one tile of three ranks ---- */

enum { RANKS = 3 };

typedef struct tile_inputs {
    void *A, *B;
    double *wide_a, *wide_b;
    void *contribution;
} tile_inputs;

static void *aligned(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    assert_non_null(memory);
    return memory;
}

/* One rank's contribution to a rows x cols tile, by the kernel under test. */
static tile_inputs contribute(const ewx_gemm *gemm, int rank, int64_t rows, int64_t cols)
{
    const ew_dtype dtype = gemm->dtype;
    const size_t elem = ew_dtype_bytes(dtype);
    const int64_t K = gemm->depth;
    tile_inputs in = {malloc((size_t)(rows * K) * elem), malloc((size_t)(cols * K) * elem),
                      NULL, NULL, aligned((size_t)(rows * cols) * elem)};
    void *packed_a = aligned(ewx_packed_a_bytes(gemm, rows));
    void *packed_b = aligned(ewx_packed_b_bytes(gemm, cols));
    void *scratch = aligned(ewx_gemm_scratch_bytes(gemm, rows, cols));
    fill_random(dtype, 5, rank, OPERAND_A, rows, K, in.A);
    fill_random(dtype, 5, rank, OPERAND_B, cols, K, in.B);
    ewx_pack_a(gemm, in.A, K, 1, rows, packed_a);
    ewx_pack_b(gemm, in.B, K, 1, cols, packed_b);
    memset(in.contribution, 0xff, (size_t)(rows * cols) * elem);
    ewx_gemm_tile(gemm, packed_a, packed_b, rows, cols, in.contribution, cols, scratch);
    in.wide_a = widened(dtype, in.A, rows * K);
    in.wide_b = widened(dtype, in.B, cols * K);
    free(packed_a);
    free(packed_b);
    free(scratch);
    return in;
}

static void tile_inputs_free(tile_inputs *in)
{
    free(in->A);
    free(in->B);
    free(in->wide_a);
    free(in->wide_b);
    free(in->contribution);
}

static void check_kernel(const ewx_kernel *kernel, ew_dtype dtype, int64_t rows,
                         int64_t cols, int64_t K)
{
    const ewx_gemm gemm = ewx_gemm_build(kernel, dtype, K);
    tile_inputs in[RANKS];
    const void *contributions[RANKS];
    void *C = malloc((size_t)(rows * cols) * ew_dtype_bytes(dtype));
    for (int rank = 0; rank < RANKS; rank++) {
        in[rank] = contribute(&gemm, rank, rows, cols);
        contributions[rank] = in[rank].contribution;
    }
    memset(C, 0xff, (size_t)(rows * cols) * ew_dtype_bytes(dtype));
    ewx_reduce_tile(dtype, contributions, RANKS, cols, rows, cols, C, cols);
    error_sum sum = {0};
    for (int64_t i = 0; i < rows * cols; i++) {
        const double *a[RANKS], *b[RANKS];
        for (int rank = 0; rank < RANKS; rank++) {
            a[rank] = in[rank].wide_a + i / cols * K;
            b[rank] = in[rank].wide_b + i % cols * K;
        }
        const expectation want = expect_element(dtype, kernel_eps(kernel), RANKS, K, a, b);
        const double got = element_get(dtype, C, i);
        if (!add_error(&sum, got, &want))
            fail_msg("%s %s %lldx%lldx%lld, element %lld: got %.9g, want %.9g +- %.2g",
                     kernel->name, ew_dtype_name(dtype), (long long)rows, (long long)cols,
                     (long long)K, (long long)i, got, want.value, want.tolerance);
    }
    if (rows * cols > 100)
        assert_true(relative_error(&sum) < frobenius_limit(dtype));
    for (int rank = 0; rank < RANKS; rank++)
        tile_inputs_free(&in[rank]);
    free(C);
}

static void every_kernel_is_within_its_error(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{128, 128, 256}, {128, 128, 1500}, {1, 1, 1},
                                        {1, 128, 7},     {127, 3, 64},     {5, 77, 1001},
                                        {8, 8, 4},       {129, 130, 33}};
    int checked = 0;
    for (const ewx_kernel *const *kernel = ewx_kernel_list(); *kernel; kernel++)
        for (int dtype = EW_FP32; dtype <= EW_FP16; dtype++) {
            if (ewx_kernel_select((ew_dtype)dtype, (*kernel)->name) != *kernel)
                continue; /* not for this type, or not on this machine */
            for (size_t i = 0; i < COUNT(shapes); i++)
                check_kernel(*kernel, (ew_dtype)dtype, shapes[i][0], shapes[i][1],
                             shapes[i][2]);
            checked++;
        }
    assert_true(checked >= 3);
}

/* ---- The whole engine ---- */

static int engine_body(ew_world *world, void *argument)
{
    const ew_problem *p = argument;
    const int rank = ew_world_rank(world), W = ew_world_size(world);
    const size_t elem = ew_dtype_bytes(p->dtype);
    const double eps = kernel_eps(ewx_kernel_select(p->dtype, NULL));
    int64_t first, count;
    RANK_OK(ew_owned_rows(p->max_m, W, rank, &first, &count));
    void *A = malloc((size_t)(p->max_m * p->k) * elem);
    void *B = malloc((size_t)(p->n * p->k) * elem),
         *C = malloc((size_t)(count * p->n) * elem);
    double *wide_a[8], *wide_b[8];
    for (int r = 0; r < W; r++) {
        fill_random(p->dtype, 6, r, OPERAND_A, p->max_m, p->k, A);
        fill_random(p->dtype, 6, r, OPERAND_B, p->n, p->k, B);
        wide_a[r] = widened(p->dtype, A, p->max_m * p->k);
        wide_b[r] = widened(p->dtype, B, p->n * p->k);
    }
    fill_random(p->dtype, 6, rank, OPERAND_A, p->max_m, p->k, A);
    fill_random(p->dtype, 6, rank, OPERAND_B, p->n, p->k, B);
    ew_plan *plan;
    RANK_OK(ew_plan_create(world, p, NULL, &plan));
    memset(C, 0xff, (size_t)(count * p->n) * elem);
    RANK_OK(ew_gemm_rs(plan, p->max_m, A, B, C, NULL));
    ew_plan_destroy(plan);
    error_sum sum = {0};
    for (int64_t i = 0; i < count * p->n; i++) {
        const double *a[8], *b[8];
        for (int r = 0; r < W; r++) {
            a[r] = wide_a[r] + (first + i / p->n) * p->k;
            b[r] = wide_b[r] + i % p->n * p->k;
        }
        const expectation want = expect_element(p->dtype, eps, W, p->k, a, b);
        const double got = element_get(p->dtype, C, i);
        RANK_CHECK(add_error(&sum, got, &want), "element %lld: got %.9g, want %.9g +- %.2g",
                   (long long)i, got, want.value, want.tolerance);
    }
    RANK_CHECK(relative_error(&sum) < frobenius_limit(p->dtype), "Frobenius error %g",
               relative_error(&sum));
    for (int r = 0; r < W; r++) {
        free(wide_a[r]);
        free(wide_b[r]);
    }
    free(A);
    free(B);
    free(C);
    return 0;
}

static void the_engine_is_within_its_error(void **state)
{
    (void)state;
    static const int ranks[] = {1, 2, 3, 8};
    for (size_t i = 0; i < COUNT(ranks); i++)
        for (int dtype = EW_FP32; dtype <= EW_FP16; dtype++) {
            ew_problem p = EW_PROBLEM(40 * ranks[i] + 1, 150, 300, (ew_dtype)dtype);
            harness_context("W=%d %s", ranks[i], ew_dtype_name((ew_dtype)dtype));
            harness_run(EW_RANKS_AS_PROCESSES, ranks[i], engine_body, &p);
        }
}

/* ---- Special values in one rank's input ---- */

/* The scene: m x N outputs of three ranks, one element planted in A or B of one rank. */
enum { SM = 3 * 130, SN = 140, SK = 9 };

typedef struct scene {
    ew_world *world;
    ew_dtype dtype;
    ew_plan *plan;
    int rank;
    int64_t first, count;
    unsigned char A[SM * SK * 4], B[SN * SK * 4], C[SM * SN * 4], plain[SM * SN * 4];
} scene;

static int scene_call(scene *s, void *C)
{
    ew_world *world = s->world;
    memset(C, 0xff, sizeof s->C);
    RANK_OK(ew_gemm_rs(s->plan, SM, s->A, s->B, C, NULL));
    return 0;
}

typedef enum planted_effect { NAN_EVERYWHERE, INFINITE, LIKE_ZERO } planted_effect;

/* Places at the edges of tiles, partitions and kernels' registers. */
static const int64_t planted_rows[] = {0, 127, 128, 129, 130, 259, 389};
static const int64_t planted_cols[] = {0, 7, 127, 128, 139};
static const int64_t planted_depths[] = {0, 4, 8};

/* Elements outside the planted row or column keep their bits; those inside show it. */
static int check_planted(scene *s, int operand, int64_t line, planted_effect effect)
{
    ew_world *world = s->world;
    const size_t elem = ew_dtype_bytes(s->dtype);
    for (int64_t i = 0; i < s->count * SN; i++) {
        const bool inside =
            operand == OPERAND_A ? s->first + i / SN == line : i % SN == line;
        const double got = element_get(s->dtype, s->C, i);
        const bool same =
            memcmp(s->C + (size_t)i * elem, s->plain + (size_t)i * elem, elem) == 0;
        RANK_CHECK(inside || same, "element %lld changed, operand %d line %lld",
                   (long long)i, operand, (long long)line);
        if (!inside)
            continue;
        RANK_CHECK(effect != NAN_EVERYWHERE || isnan(got), "element %lld is %g, not NaN",
                   (long long)i, got);
        RANK_CHECK(effect != INFINITE || isinf(got), "element %lld is %g, not infinite",
                   (long long)i, got);
        RANK_CHECK(effect != LIKE_ZERO || same, "element %lld differs", (long long)i);
    }
    return 0;
}

/* Replaces `at` of the culprit's operand by value, calls, puts it back. */
static int try_planted(scene *s, int culprit, int operand, int64_t line, int64_t depth,
                       float value, planted_effect effect)
{
    void *base = operand == OPERAND_A ? s->A : s->B;
    const float before = element_get(s->dtype, base, line * SK + depth);
    if (effect == LIKE_ZERO) { /* the plain result is that with +0 there */
        if (s->rank == culprit)
            element_put(s->dtype, base, line * SK + depth, 0.0f);
        RANK_TRY(scene_call(s, s->plain));
    }
    if (s->rank == culprit)
        element_put(s->dtype, base, line * SK + depth, value);
    RANK_TRY(scene_call(s, s->C));
    RANK_TRY(check_planted(s, operand, line, effect));
    if (s->rank == culprit)
        element_put(s->dtype, base, line * SK + depth, before);
    if (effect == LIKE_ZERO)
        RANK_TRY(scene_call(s, s->plain));
    return 0;
}

static int try_all_places(scene *s, int culprit, float value, planted_effect effect)
{
    for (size_t d = 0; d < COUNT(planted_depths); d++) {
        for (size_t i = 0; i < COUNT(planted_rows); i++)
            RANK_TRY(try_planted(s, culprit, OPERAND_A, planted_rows[i], planted_depths[d],
                                 value, effect));
        for (size_t i = 0; i < COUNT(planted_cols); i++)
            RANK_TRY(try_planted(s, culprit, OPERAND_B, planted_cols[i], planted_depths[d],
                                 value, effect));
    }
    return 0;
}

static int scene_open(scene *s, ew_world *world, ew_dtype dtype)
{
    const ew_problem p = EW_PROBLEM(SM, SN, SK, dtype);
    *s = (scene){.world = world, .dtype = dtype, .rank = ew_world_rank(world)};
    RANK_OK(ew_owned_rows(SM, ew_world_size(world), s->rank, &s->first, &s->count));
    RANK_OK(ew_plan_create(world, &p, NULL, &s->plan));
    return 0;
}

static int specials_body(ew_world *world, void *argument)
{
    scene *s = malloc(sizeof *s);
    RANK_TRY(scene_open(s, world, *(ew_dtype *)argument));
    fill_random(s->dtype, 8, s->rank, OPERAND_A, SM, SK, s->A);
    fill_random(s->dtype, 8, s->rank, OPERAND_B, SN, SK, s->B);
    RANK_TRY(scene_call(s, s->plain));
    for (int culprit = 0; culprit < RANKS; culprit++) {
        RANK_TRY(try_all_places(s, culprit, NAN, NAN_EVERYWHERE));
        RANK_TRY(try_all_places(s, culprit, INFINITY, INFINITE));
        RANK_TRY(try_all_places(s, culprit, -INFINITY, INFINITE));
        RANK_TRY(try_all_places(s, culprit, -0.0f, LIKE_ZERO));
    }
    ew_plan_destroy(s->plan);
    free(s);
    return 0;
}

static void special_values_stay_in_their_row_or_column(void **state)
{
    (void)state;
    for (int dtype = EW_FP32; dtype <= EW_FP16; dtype++) {
        ew_dtype type = (ew_dtype)dtype;
        harness_context("special values, %s", ew_dtype_name(type));
        harness_run(EW_RANKS_AS_PROCESSES, RANKS, specials_body, &type);
    }
}

/* ---- The edges of the number range ---- */

/* Row `row` of rank r's A is values[r] in its first place and zero elsewhere, B is ones
 * there: each rank contributes values[r] * weight to the whole row. */
static int check_row(scene *s, int64_t row, const float values[RANKS], float weight,
                     float want, bool may_flush)
{
    ew_world *world = s->world;
    memset(s->A, 0, sizeof s->A);
    memset(s->B, 0, sizeof s->B);
    element_put(s->dtype, s->A, row * SK, values[s->rank]);
    for (int64_t col = 0; col < SN; col++)
        element_put(s->dtype, s->B, col * SK, weight);
    RANK_TRY(scene_call(s, s->C));
    for (int64_t i = 0; i < s->count * SN; i++) {
        const float got = element_get(s->dtype, s->C, i);
        const float right = s->first + i / SN == row ? want : 0.0f;
        RANK_CHECK(got == right || (isnan(got) && isnan(right)) ||
                       (may_flush && got == 0.0f),
                   "element %lld: got %g, want %g (%g, %g, %g times %g)", (long long)i, got,
                   right, values[0], values[1], values[2], weight);
    }
    return 0;
}

static int range_body(ew_world *world, void *argument)
{
    const ew_dtype dtype = *(ew_dtype *)argument;
    scene *s = malloc(sizeof *s);
    RANK_TRY(scene_open(s, world, dtype));
    /* The largest number, and the smallest subnormal one. */
    const float most = dtype == EW_FP32   ? FLT_MAX
                       : dtype == EW_BF16 ? 0x1.fep127f
                                          : 65504.0f;
    const float least = dtype == EW_FP32   ? 0x1p-149f
                        : dtype == EW_BF16 ? 0x1p-133f
                                           : 0x1p-24f;
    const bool flushes = ewx_kernel_select(dtype, NULL)->packs == EW_BF16;
    for (int64_t row = 127; row < SM; row += 131) {
        RANK_TRY(check_row(s, row, (float[]){most, 0, 0}, 1, most, false));
        RANK_TRY(check_row(s, row, (float[]){0, -most, 0}, 1, -most, false));
        RANK_TRY(check_row(s, row, (float[]){most, most, 0}, 1, INFINITY, false));
        RANK_TRY(check_row(s, row, (float[]){-most, 0, -most}, 1, -INFINITY, false));
        RANK_TRY(check_row(s, row, (float[]){most, -most, most}, 1, most, false));
        /* A contribution that overflows by itself, and two that cannot agree. */
        RANK_TRY(check_row(s, row, (float[]){0, 0, most}, 2, INFINITY, false));
        RANK_TRY(check_row(s, row, (float[]){most, -most, 0}, 2, NAN, false));
        if (dtype == EW_FP16) /* the sum over ranks is fp32: it passes 65504 and returns */
            RANK_TRY(check_row(s, row, (float[]){most, most, -most}, 1, most, false));
        RANK_TRY(check_row(s, row, (float[]){least, 0, 0}, 1, least, flushes));
        RANK_TRY(check_row(s, row, (float[]){0, -least, 0}, 1, -least, flushes));
        RANK_TRY(check_row(s, row, (float[]){least, least, least}, 1, 3 * least, flushes));
        RANK_TRY(check_row(s, row, (float[]){least, 0, -least}, 1, 0, flushes));
    }
    ew_plan_destroy(s->plan);
    free(s);
    return 0;
}

static void the_edges_of_the_range(void **state)
{
    (void)state;
    for (int dtype = EW_FP32; dtype <= EW_FP16; dtype++) {
        ew_dtype type = (ew_dtype)dtype;
        harness_context("range, %s", ew_dtype_name(type));
        harness_run(EW_RANKS_AS_PROCESSES, RANKS, range_body, &type);
    }
}

/* ---- Subnormal numbers, in every kernel ---- */

/* What the kernel makes of a * b, alone in the first of K places. */
static float product_of(const ewx_kernel *kernel, ew_dtype dtype, float a, float b)
{
    enum { K = 8 };
    const ewx_gemm gemm = ewx_gemm_build(kernel, dtype, K);
    float A[K] = {0}, B[K] = {0}, C = NAN; /* room for any type */
    void *packed_a = aligned(ewx_packed_a_bytes(&gemm, 1));
    void *packed_b = aligned(ewx_packed_b_bytes(&gemm, 1));
    void *scratch = aligned(ewx_gemm_scratch_bytes(&gemm, 1, 1));
    element_put(dtype, A, 0, a);
    element_put(dtype, B, 0, b);
    ewx_pack_a(&gemm, A, K, 1, 1, packed_a);
    ewx_pack_b(&gemm, B, K, 1, 1, packed_b);
    ewx_gemm_tile(&gemm, packed_a, packed_b, 1, 1, &C, 1, scratch);
    free(packed_a);
    free(packed_b);
    free(scratch);
    return element_get(dtype, &C, 0);
}

typedef struct factors {
    float a, b;
    bool is_small; /* one of them, or their product, is below 2^-126 */
} factors;

/* All of them exact. */
static const factors fp32_factors[] = {{0x1p-149f, 1, true},       {1, -0x1p-149f, true},
                                       {0x1p-127f, 1, true},       {0x1p-127f, 4, true},
                                       {0x1p-64f, 0x1p-64f, true}, {0x1p-126f, 1, false},
                                       {0x1p-60f, 0x1p-60f, false}};
static const factors bf16_factors[] = {{0x1p-133f, 1, true},        {1, -0x1p-133f, true},
                                       {0x1.8p-127f, 1, true},      {0x1p-127f, 4, true},
                                       {0x1p-64f, -0x1p-64f, true}, {0x1p-126f, 1, false},
                                       {0x1p-60f, 0x1p-60f, false}};
/* Normal numbers in fp32, where the kernels multiply them: nothing is ever lost. */
static const factors fp16_factors[] = {{0x1p-24f, 1, false},        {1, -0x1p-24f, false},
                                       {0x1.8p-15f, 1, false},      {0x1p-15f, 4, false},
                                       {0x1p-12f, 0x1p-12f, false}, {0x1p-14f, 1, false},
                                       {0x1p-6f, 0x1p-6f, false}};

/* Right, or where the header says so, zero; nothing else, in no kernel. */
static void subnormal_numbers_are_kept_or_count_as_zero(void **state)
{
    (void)state;
    const factors *const all[] = {NULL, fp32_factors, bf16_factors, fp16_factors};
    for (const ewx_kernel *const *kernel = ewx_kernel_list(); *kernel; kernel++) {
        const char *name = (*kernel)->name;
        const bool may_flush = strcmp(name + strlen(name) - 4, "bf16") == 0;
        assert_int_equal(may_flush, (*kernel)->packs == EW_BF16);
        for (int dtype = EW_FP32; dtype <= EW_FP16; dtype++) {
            if (ewx_kernel_select((ew_dtype)dtype, name) != *kernel)
                continue; /* not for this type, or not on this machine */
            for (size_t i = 0; i < COUNT(fp32_factors); i++) {
                const factors f = all[dtype][i];
                const float got = product_of(*kernel, (ew_dtype)dtype, f.a, f.b);
                if (got != f.a * f.b && !(may_flush && f.is_small && got == 0.0f))
                    fail_msg("%s %s: %a times %a gave %a", name,
                             ew_dtype_name((ew_dtype)dtype), f.a, f.b, got);
            }
        }
    }
}

/* ---- Conversions ---- */

static void every_half_survives_a_round_trip(void **state)
{
    (void)state;
    for (uint32_t half = 0; half <= 0xffff; half++)
        for (int dtype = EW_BF16; dtype <= EW_FP16; dtype++) {
            const uint16_t before = (uint16_t)half;
            uint16_t after;
            const float value = element_get((ew_dtype)dtype, &before, 0);
            element_put((ew_dtype)dtype, &after, 0, value);
            if (isnan(value))
                assert_true(isnan(element_get((ew_dtype)dtype, &after, 0)));
            else
                assert_int_equal(after, before);
        }
}

/* No neighbour is nearer than the one chosen; halfway, the even one is. */
static void rounding_is_to_nearest_even(void **state)
{
    (void)state;
    harness_random random = harness_seed(41);
    for (int i = 0; i < 2000000; i++) {
        const ew_dtype dtype = i & 1 ? EW_BF16 : EW_FP16;
        uint32_t bits = (uint32_t)harness_next(&random);
        if (i % 5 == 0)
            bits = (bits & 0xffff0000u) | 0x8000u; /* halfway between two bf16 */
        if (i % 7 == 0)
            bits = (bits & 0xffffe000u) | 0x1000u; /* halfway between two fp16 */
        if (dtype == EW_FP16 && i % 3)
            bits = (bits & 0x8fffffffu) | 0x30000000u; /* in fp16's range */
        const float value = ewx_f32_from_bits(bits);
        uint16_t half;
        element_put(dtype, &half, 0, value);
        const double got = element_get(dtype, &half, 0);
        if (isnan(value) || isinf(got))
            continue;
        for (int step = -1; step <= 1; step += 2) {
            const uint16_t neighbour = (uint16_t)(half + step);
            const double other = element_get(dtype, &neighbour, 0);
            if (isnan(other) || isinf(other) || (half & 0x7fff) == 0)
                continue;
            const double mine = fabs(got - value), theirs = fabs(other - value);
            if (mine > theirs || (mine == theirs && (half & 1)))
                fail_msg("%s: %a became %a, not %a", ew_dtype_name(dtype), value, got,
                         other);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_survives_a_round_trip),
        cmocka_unit_test(rounding_is_to_nearest_even),
        cmocka_unit_test(every_kernel_is_within_its_error),
        cmocka_unit_test(the_engine_is_within_its_error),
        cmocka_unit_test(special_values_stay_in_their_row_or_column),
        cmocka_unit_test(the_edges_of_the_range),
        cmocka_unit_test(subnormal_numbers_are_kept_or_count_as_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
