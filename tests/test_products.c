/* Several weights on one gather: the bits of a call for each, however wide they are and
 * whichever way a weight comes; activations behind them, with the bits of one that comes
 * afterwards; how accurate these are, and the same on every machine; and what is refused.
 */
#include "faultkit.h"
#include "harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "backend/cpu/activation.h"
#include "plan/columns.h"
#include "plan/grid.h"
#include "random_inputs.h"

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

static ew_problem gather_problem(int64_t max_m, int64_t n, int64_t k, ew_dtype dtype)
{
    ew_problem problem = EW_PROBLEM(max_m, n, k, dtype);
    problem.op = EW_OP_AG_GEMM;
    return problem;
}

/* ---- Operands ---- */

enum { MAX_M = 300, K = 77 };

typedef struct trial {
    ew_dtype dtype;
    ew_weight_layout layout;
    int64_t m, widths[EW_MAX_PRODUCTS];
    int count;
    const char *config;
} trial;

/* Of one rank: its rows of A lie at `mine`. */
typedef struct operands {
    const trial *t;
    int64_t n; /* of all weights */
    size_t elem, row;
    unsigned char *A, *mine, *gathered;
    unsigned char *B[EW_MAX_PRODUCTS], *C[EW_MAX_PRODUCTS], *want[EW_MAX_PRODUCTS];
    size_t c_bytes[EW_MAX_PRODUCTS];
} operands;

static int operands_make(ew_world *world, const trial *t, operands *x)
{
    const int rank = ew_world_rank(world);
    int64_t first, count;
    *x = (operands){.t = t, .elem = ew_dtype_bytes(t->dtype)};
    x->row = K * x->elem;
    x->A = malloc((size_t)t->m * x->row);
    x->gathered = malloc((size_t)t->m * x->row);
    fill_random(t->dtype, 7, 0, OPERAND_A, t->m, K, x->A);
    RANK_OK(ew_owned_rows(t->m, ew_world_size(world), rank, &first, &count));
    x->mine = count ? x->A + (size_t)first * x->row : NULL;
    for (int i = 0; i < t->count; i++) {
        x->n += t->widths[i];
        x->c_bytes[i] = (size_t)(t->m * t->widths[i]) * x->elem;
        x->B[i] = malloc((size_t)t->widths[i] * x->row);
        x->C[i] = malloc(x->c_bytes[i] + 1);
        x->want[i] = malloc(x->c_bytes[i] + 1);
        fill_random(t->dtype, 100 + (uint64_t)i, rank, OPERAND_B, t->widths[i], K, x->B[i]);
    }
    return 0;
}

static void operands_free(operands *x)
{
    free(x->A);
    free(x->gathered);
    for (int i = 0; i < x->t->count; i++) {
        free(x->B[i]);
        free(x->C[i]);
        free(x->want[i]);
    }
}

/* Each weight in a call of its own. */
static int multiply_apart(ew_world *world, operands *x)
{
    for (int i = 0; i < x->t->count; i++) {
        ew_problem problem = gather_problem(MAX_M, x->t->widths[i], K, x->t->dtype);
        ew_plan *plan;
        problem.weight_layout = x->t->layout;
        RANK_OK(ew_plan_create(world, &problem, NULL, &plan));
        RANK_OK(ew_ag_gemm(plan, x->t->m, x->mine, x->B[i], x->want[i], NULL, NULL));
        ew_plan_destroy(plan);
    }
    return 0;
}

/* ---- Bits ---- */

/* Weights that come with the call, packed ones, and some of each. */
typedef enum manner { PLAIN, PACKED, MIXED, NUM_MANNERS } manner;

static int make_products(ew_world *world, const operands *x, manner how,
                         ew_product *products)
{
    for (int i = 0; i < x->t->count; i++) {
        products[i] = (ew_product){.n = x->t->widths[i], .C = x->C[i]};
        memset(x->C[i], 0xff, x->c_bytes[i] + 1);
        if (how == PLAIN || (how == MIXED && i % 2)) {
            products[i].B = x->B[i];
            continue;
        }
        ew_problem problem = gather_problem(0, x->t->widths[i], K, x->t->dtype);
        problem.weight_layout = x->t->layout;
        RANK_OK(ew_weight_create(world, &problem, NULL, x->B[i], &products[i].weight));
    }
    return 0;
}

static int compare_products(ew_world *world, const operands *x)
{
    for (int i = 0; i < x->t->count; i++) {
        RANK_CHECK(memcmp(x->C[i], x->want[i], x->c_bytes[i]) == 0, "product %d", i);
        RANK_CHECK(x->C[i][x->c_bytes[i]] == 0xff, "written behind product %d", i);
    }
    return 0;
}

static int multiply_at_once(ew_world *world, ew_plan *plan, const operands *x, manner how)
{
    ew_product products[EW_MAX_PRODUCTS];
    const size_t bytes = (size_t)x->t->m * x->row;
    RANK_TRY(make_products(world, x, how, products));
    memset(x->gathered, 0xee, bytes);
    RANK_OK(ew_ag_gemm_multi(plan, x->t->m, x->mine, products, x->t->count,
                             how == MIXED ? x->gathered : NULL, NULL));
    RANK_TRY(compare_products(world, x));
    RANK_CHECK(how != MIXED || memcmp(x->gathered, x->A, bytes) == 0, "gathered");
    for (int i = 0; i < x->t->count; i++)
        ew_weight_destroy(products[i].weight);
    return 0;
}

/* The activation of what lies in `want`. */
static void activate_apart(const operands *x, int count, ew_activation activation,
                           unsigned char *want)
{
    const int64_t n = x->t->widths[0];
    for (int64_t col = 0; col < n; col += EWX_TILE_N) {
        const size_t offset = (size_t)col * x->elem;
        const ewx_matrix_tile gate = {x->want[0] + offset, n};
        const ewx_matrix_tile up = {count > 1 ? x->want[1] + offset : NULL, n};
        ewx_activate_tile(x->t->dtype, activation, x->t->m, ewx_min64(EWX_TILE_N, n - col),
                          gate, up, (ewx_matrix_tile){want + offset, n});
    }
}

/* kept: which of gate (1) and up (2) is wanted besides. */
static int activate_at_once(ew_world *world, ew_plan *plan, const operands *x,
                            ew_activation activation, unsigned kept)
{
    const size_t bytes = x->c_bytes[0];
    unsigned char *C = malloc(bytes + 1), *want = malloc(bytes + 1);
    ew_product products[2];
    RANK_TRY(make_products(world, x, kept & 1 ? PLAIN : MIXED, products));
    for (int i = 0; i < x->t->count; i++)
        products[i].C = kept & (1u << i) ? x->C[i] : NULL;
    memset(C, 0xff, bytes + 1);
    activate_apart(x, x->t->count, activation, want);
    RANK_OK(ew_ag_gemm_act(plan, x->t->m, x->mine, products, x->t->count, activation, C,
                           NULL, NULL));
    RANK_CHECK(memcmp(C, want, bytes) == 0, "%s", ew_activation_name(activation));
    RANK_CHECK(C[bytes] == 0xff, "written behind C");
    for (int i = 0; i < x->t->count; i++) {
        const void *expected = kept & (1u << i) ? x->want[i] : NULL;
        RANK_CHECK(expected ? memcmp(x->C[i], expected, bytes) == 0 : x->C[i][0] == 0xff,
                   "product %d", i);
        ew_weight_destroy(products[i].weight);
    }
    free(C);
    free(want);
    return 0;
}

static int compare_activations(ew_world *world, ew_plan *plan, const operands *x)
{
    for (int activation = EW_ACTIVATION_NONE; activation <= EW_ACTIVATION_GELU_TANH;
         activation++)
        for (unsigned kept = 0; kept < 1u << x->t->count; kept++)
            RANK_TRY(activate_at_once(world, plan, x, (ew_activation)activation, kept));
    return 0;
}

static int compare_with_apart(ew_world *world, void *argument)
{
    const trial *t = argument;
    operands x;
    RANK_TRY(operands_make(world, t, &x));
    RANK_TRY(multiply_apart(world, &x));
    ew_problem problem = gather_problem(MAX_M, x.n, K, t->dtype);
    ew_config config = EW_CONFIG_INIT;
    ew_plan *plan;
    problem.weight_layout = t->layout;
    RANK_OK(ew_config_parse(t->config, &config));
    RANK_OK(ew_plan_create(world, &problem, &config, &plan));
    for (int how = PLAIN; how < NUM_MANNERS; how++)
        RANK_TRY(multiply_at_once(world, plan, &x, (manner)how));
    if (t->count < 3 && t->widths[0] == x.n / t->count)
        RANK_TRY(compare_activations(world, plan, &x));
    ew_plan_destroy(plan);
    operands_free(&x);
    return 0;
}

static void one_gather_gives_the_bits_of_many(void **state)
{
    static const ew_dtype dtypes[] = {EW_FP32, EW_BF16, EW_FP16};
    static const char *const configs[] = {"", "order=default,release=output,block=256x256",
                                          "workers=2,order=contiguous",
                                          "workers=3,pool=static,block=128x128"};
    static const trial shapes[] = {
        {.widths = {256, 128, 128}, .count = 3}, /* as a model with grouped keys has them */
        {.widths = {130, 1, 77}, .count = 3},
        {.widths = {5}, .count = 1},
        {.widths = {200, 200}, .count = 2}, /* gate and up */
        {.widths = {1, 2, 3, 4, 5, 6, 7, 8}, .count = EW_MAX_PRODUCTS}};
    static const int64_t rows[] = {1, 3, 131, 300};
    int at = 0;
    (void)state;
    for (int W = 1; W <= 3; W++)
        for (size_t i = 0; i < COUNT(shapes) * COUNT(rows); i++, at++) {
            trial t = shapes[i % COUNT(shapes)];
            t.m = rows[i / COUNT(shapes)];
            t.dtype = dtypes[at % 3];
            t.layout = at % 2 ? EW_WEIGHT_KN : EW_WEIGHT_NK;
            t.config = configs[(i + (size_t)W) % COUNT(configs)];
            harness_context("W=%d m=%d n=%d,... %s", W, (int)t.m, (int)t.widths[0],
                            t.config);
            harness_run(EW_RANKS_AS_THREADS, W, compare_with_apart, &t);
        }
    harness_context("%s", "");
}

/* ---- Accuracy ---- */

static double exact(ew_activation activation, double x)
{
    if (activation == EW_ACTIVATION_SILU)
        return x / (1 + exp(-x));
    return x / (1 + exp(-2 * sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
}

/* The largest error of a normal result, relative to it, for x from `least` up. */
static double largest_error(ew_activation activation, float least)
{
    double largest = 0;
    for (float base = -12.0f; base < 12.0f; base += 0.037f)
        for (int exponent = -20; exponent < 4; exponent++) {
            float x = fmaxf(ldexpf(base, exponent), least), y;
            const double want = exact(activation, (double)x);
            ewx_activate_tile(EW_FP32, activation, 1, 1, (ewx_matrix_tile){&x, 1},
                              (ewx_matrix_tile){NULL, 0}, (ewx_matrix_tile){&y, 1});
            if (fabs(want) >= 0x1p-126)
                largest = fmax(largest, fabs((double)y - want) / fabs(want));
        }
    return largest;
}

static void activations_are_accurate(void **state)
{
    (void)state;
    assert_true(largest_error(EW_ACTIVATION_SILU, -87.3f) < 4 * 0x1p-23);
    assert_true(largest_error(EW_ACTIVATION_SILU, -INFINITY) < 64 * 0x1p-23);
    assert_true(largest_error(EW_ACTIVATION_GELU_TANH, -INFINITY) < 0x1p-16);
}

/* Halves are rounded once, from what fp32 gives; any place in a row gives the same. */
static void halves_are_rounded_once(void **state)
{
    enum { COUNT_OF = 77 };
    float gate[COUNT_OF], up[COUNT_OF], c[COUNT_OF];
    uint16_t gates[COUNT_OF], ups[COUNT_OF], cs[COUNT_OF], want[COUNT_OF];
    (void)state;
    for (ew_dtype dtype = EW_BF16; dtype <= EW_FP16; dtype++)
        for (int activation = 0; activation <= EW_ACTIVATION_GELU_TANH; activation++) {
            fill_random(dtype, 3, 0, OPERAND_A, 1, COUNT_OF, gates);
            fill_random(dtype, 3, 0, OPERAND_B, 1, COUNT_OF, ups);
            for (int i = 0; i < COUNT_OF; i++) {
                gate[i] = element_get(dtype, gates, i);
                up[i] = element_get(dtype, ups, i);
                ewx_activate_tile(EW_FP32, (ew_activation)activation, 1, 1,
                                  (ewx_matrix_tile){&gate[i], 1},
                                  (ewx_matrix_tile){&up[i], 1},
                                  (ewx_matrix_tile){&c[i], 1});
                element_put(dtype, want, i, c[i]);
            }
            ewx_activate_tile(dtype, (ew_activation)activation, 1, COUNT_OF,
                              (ewx_matrix_tile){gates, COUNT_OF},
                              (ewx_matrix_tile){ups, COUNT_OF},
                              (ewx_matrix_tile){cs, COUNT_OF});
            assert_memory_equal(cs, want, sizeof cs);
        }
}

static float activate_one(ew_activation activation, float x)
{
    float y;
    ewx_activate_tile(EW_FP32, activation, 1, 1, (ewx_matrix_tile){&x, 1},
                      (ewx_matrix_tile){NULL, 0}, (ewx_matrix_tile){&y, 1});
    return y;
}

static void extremes(void **state)
{
    (void)state;
    for (int at = EW_ACTIVATION_SILU; at <= EW_ACTIVATION_GELU_TANH; at++) {
        const ew_activation activation = (ew_activation)at;
        assert_true(activate_one(activation, 0.0f) == 0.0f);
        assert_true(activate_one(activation, 1e30f) == 1e30f);
        assert_true(activate_one(activation, INFINITY) == INFINITY);
        assert_true(activate_one(activation, -1e30f) == 0.0f);
        assert_true(isnan(activate_one(activation, NAN)));
    }
}

/* One digest for all processors and compilers, of what every finite bf16 gives in fp32.  It
 * changes with the function alone, and then on purpose. */
static uint64_t digest_of(ew_activation activation)
{
    uint64_t digest = 0xcbf29ce484222325u;
    for (uint32_t high = 0; high < 1 << 16; high++) {
        const uint32_t bits = high << 16;
        float x;
        memcpy(&x, &bits, sizeof x);
        if (!isfinite(x))
            continue;
        const float y = activate_one(activation, x);
        uint32_t word;
        memcpy(&word, &y, sizeof word);
        digest = (digest ^ word) * 0x100000001b3u;
    }
    return digest;
}

static void bits_are_the_same_everywhere(void **state)
{
    (void)state;
    assert_int_equal(digest_of(EW_ACTIVATION_SILU), 0xfecf8268a41e9869u);
    assert_int_equal(digest_of(EW_ACTIVATION_GELU_TANH), 0x4427021896d9a0cdu);
}

/* ---- Columns on a GPU ---- */

/* Every column of every weight is in one stripe, those of a pair beside each other. */
static void stripes_have_every_column_once(void **state)
{
    static const int64_t widths[][4] = {
        {1024, 128, 128}, {8, 200, 64, 72}, {136, 136}, {8}};
    (void)state;
    for (size_t i = 0; i < 2 * COUNT(widths); i++) {
        ewx_columns columns = {.paired = i % 2 && widths[i / 2][0] == widths[i / 2][1]};
        int64_t seen[4] = {0};
        for (int at = 0; at < 4 && widths[i / 2][at] > 0; at++)
            ewx_columns_add(&columns, widths[i / 2][at]);
        const int64_t stripes = ewx_columns_all(&columns) / EWX_STRIPE_COLS;
        for (int64_t at = 0; at < stripes; at++) {
            const ewx_stripe stripe = ewx_columns_stripe(&columns, at);
            assert_true(stripe.count > 0 && stripe.count <= EWX_STRIPE_COLS);
            assert_int_equal(stripe.first, seen[stripe.product]);
            assert_true(!columns.paired || stripe.product == at % 2);
            seen[stripe.product] += stripe.count;
        }
        for (int at = 0; at < columns.count; at++)
            assert_int_equal(seen[at], columns.n[at]);
        for (int64_t at = stripes; at < stripes + 4; at++)
            assert_true(ewx_columns_stripe(&columns, at).count < 1);
    }
}

/* ---- Refusals ---- */

typedef struct bad_list {
    int64_t n[2];
    int count;
    ew_status status;
    const char *text;
} bad_list;

static int refuse_lists(ew_world *world, ew_plan *plan, const ew_product *good)
{
    static const float A[8 * 8] = {0};
    static const bad_list bad[] = {
        {{5, 3}, 0, EW_ERR_ARGUMENT, "0 products"},
        {{5, 3}, EW_MAX_PRODUCTS + 1, EW_ERR_ARGUMENT, "9 products"},
        {{5, 2}, 2, EW_ERR_SHAPE, "n=7 together"},
        {{5, 4}, 2, EW_ERR_SHAPE, "product 1 has n=4"},
        {{9, -1}, 2, EW_ERR_SHAPE, "product 0 has n=9"},
        {{8, 0}, 2, EW_ERR_SHAPE, "product 1 has n=0"},
    };
    for (size_t i = 0; i < COUNT(bad); i++) {
        ew_product products[2] = {good[0], good[1]};
        products[0].n = bad[i].n[0];
        products[1].n = bad[i].n[1];
        RANK_CHECK(ew_ag_gemm_multi(plan, 8, A, products, bad[i].count, NULL, NULL) ==
                           bad[i].status &&
                       error_has(bad[i].text, "fix:", NULL),
                   "%zu: %s", i, ew_last_error());
    }
    return 0;
}

/* A weight of another depth, of another width, of another type. */
static int refuse_weights(ew_world *world, ew_plan *plan, const ew_product *good)
{
    static const float A[8 * 8] = {0};
    const ew_problem problems[] = {gather_problem(0, 5, 9, EW_FP32),
                                   gather_problem(0, 6, 8, EW_FP32),
                                   gather_problem(0, 5, 8, EW_BF16)};
    static const char *const texts[] = {"N=5,K=9", "N=6,K=8", "type=bf16"};
    for (size_t i = 0; i < COUNT(problems); i++) {
        ew_product products[2] = {good[0], good[1]};
        products[0].B = NULL;
        RANK_OK(ew_weight_create(world, &problems[i], NULL, A, &products[0].weight));
        RANK_CHECK(ew_ag_gemm_multi(plan, 8, A, products, 2, NULL, NULL) != EW_OK &&
                       error_has(texts[i], "fix:", NULL),
                   "%zu: %s", i, ew_last_error());
        ew_weight_destroy(products[0].weight);
    }
    return 0;
}

static int refuse_calls(ew_world *world, ew_plan *plan, ew_plan *rs, const ew_product *good)
{
    float A[8 * 8] = {0};
    ew_product none[2] = {good[0], good[1]}, lost[2] = {good[0], good[1]},
               same[2] = {good[0], good[1]};
    none[1].B = NULL;
    lost[1].C = NULL;
    same[1].C = same[0].C;
    RANK_CHECK(ew_ag_gemm_multi(rs, 8, A, good, 2, NULL, NULL) == EW_ERR_ARGUMENT &&
                   error_has("ew_ag_gemm_multi cannot run a plan for gemm-rs", NULL),
               "%s", ew_last_error());
    RANK_CHECK(ew_ag_gemm_multi(plan, 9, A, good, 2, NULL, NULL) == EW_ERR_SHAPE, "%s",
               ew_last_error());
    RANK_CHECK(ew_ag_gemm_multi(plan, 8, A, NULL, 2, NULL, NULL) == EW_ERR_ARGUMENT, "%s",
               ew_last_error());
    RANK_CHECK(ew_ag_gemm_multi(plan, 8, NULL, good, 2, NULL, NULL) == EW_ERR_ARGUMENT &&
                   error_has("needs A", NULL),
               "%s", ew_last_error());
    RANK_CHECK(ew_ag_gemm_multi(plan, 8, A, none, 2, NULL, NULL) == EW_ERR_ARGUMENT &&
                   error_has("product 1 has no weight", NULL),
               "%s", ew_last_error());
    RANK_CHECK(ew_ag_gemm_multi(plan, 8, A, lost, 2, NULL, NULL) == EW_ERR_ARGUMENT &&
                   error_has("needs C of product 1", NULL),
               "%s", ew_last_error());
    RANK_CHECK(ew_ag_gemm_multi(plan, 8, A, same, 2, NULL, NULL) == EW_ERR_ARGUMENT &&
                   error_has("C of product 1 and C of product 0 overlap", NULL),
               "%s", ew_last_error());
    RANK_CHECK(ew_ag_gemm_multi(plan, 8, A, good, 2, good[1].C, NULL) == EW_ERR_ARGUMENT &&
                   error_has("overlap", NULL),
               "%s", ew_last_error());
    RANK_OK(ew_ag_gemm_multi(plan, 8, A, good, 2, NULL, NULL)); /* as good as new */
    return 0;
}

static int refuse_activations(ew_world *world, ew_plan *plan, const ew_product *good)
{
    float A[8 * 8] = {0}, C[8 * 8];
    ew_product pair[2] = {good[0], good[1]}, three[3] = {good[0], good[1], good[1]};
    pair[0].n = pair[1].n = 4;
    three[0].n = 2;
    RANK_CHECK(ew_ag_gemm_act(plan, 8, A, good, 2, EW_ACTIVATION_SILU, C, NULL, NULL) ==
                       EW_ERR_SHAPE &&
                   error_has("n=5", "n=3", "fix:", NULL),
               "%s", ew_last_error());
    RANK_CHECK(ew_ag_gemm_act(plan, 8, A, pair, 2, (ew_activation)3, C, NULL, NULL) ==
                       EW_ERR_ARGUMENT &&
                   error_has("activation 3", "fix:", NULL),
               "%s", ew_last_error());
    RANK_CHECK(ew_ag_gemm_act(plan, 8, A, three, 3, EW_ACTIVATION_SILU, C, NULL, NULL) ==
                       EW_ERR_ARGUMENT &&
                   error_has("3 products", "fix:", NULL),
               "%s", ew_last_error());
    RANK_CHECK(ew_ag_gemm_act(plan, 8, A, pair, 2, EW_ACTIVATION_SILU, NULL, NULL, NULL) ==
                       EW_ERR_ARGUMENT &&
                   error_has("needs C", NULL),
               "%s", ew_last_error());
    RANK_CHECK(ew_ag_gemm_act(plan, 8, A, pair, 2, EW_ACTIVATION_SILU, pair[1].C, NULL,
                              NULL) == EW_ERR_ARGUMENT &&
                   error_has("overlap", NULL),
               "%s", ew_last_error());
    RANK_OK(ew_ag_gemm_act(plan, 8, A, pair, 2, EW_ACTIVATION_SILU, C, NULL, NULL));
    return 0;
}

static int refuse(ew_world *world, void *argument)
{
    static const float B[8 * 8] = {0};
    float C[2][8 * 8];
    const ew_product good[2] = {{.n = 5, .B = B, .C = C[0]}, {.n = 3, .B = B, .C = C[1]}};
    ew_problem problem = EW_PROBLEM(8, 8, 8, EW_FP32);
    ew_plan *rs, *plan;
    (void)argument;
    RANK_OK(ew_plan_create(world, &problem, NULL, &rs));
    problem.op = EW_OP_AG_GEMM;
    RANK_OK(ew_plan_create(world, &problem, NULL, &plan));
    RANK_TRY(refuse_lists(world, plan, good));
    RANK_TRY(refuse_weights(world, plan, good));
    RANK_TRY(refuse_calls(world, plan, rs, good));
    RANK_TRY(refuse_activations(world, plan, good));
    ew_plan_destroy(rs);
    ew_plan_destroy(plan);
    return 0;
}

static void refusals(void **state)
{
    (void)state;
    harness_run(EW_RANKS_AS_THREADS, 2, refuse, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_gather_gives_the_bits_of_many),
        cmocka_unit_test(activations_are_accurate),
        cmocka_unit_test(halves_are_rounded_once),
        cmocka_unit_test(extremes),
        cmocka_unit_test(bits_are_the_same_everywhere),
        cmocka_unit_test(stripes_have_every_column_once),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
