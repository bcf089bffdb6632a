#include "layer_trial.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "random_inputs.h"
#include "trial.h"

#define EPS 1e-5f

static const ew_epilogue_form forms[] = {(ew_epilogue_form)0, EW_EPILOGUE_FUSED,
                                         EW_EPILOGUE_AFTER, EW_EPILOGUE_SEPARATE};
enum { FORMS = sizeof forms / sizeof forms[0] };

/* ---- The documented sequence ---- */

static float rounded(ew_dtype dtype, float value)
{
    float place;
    element_put(dtype, &place, 0, value);
    return element_get(dtype, &place, 0);
}

/* The sum of 128 squares, those behind the last being 0. */
static float sum_of_tile(const float *h, int64_t cols)
{
    float squares[128] = {0}, eights[16];
    for (int64_t i = 0; i < cols; i++)
        squares[i] = h[i] * h[i];
    for (int i = 0; i < 16; i++) {
        const float *s = squares + 8 * i;
        eights[i] = ((s[0] + s[4]) + (s[1] + s[5])) + ((s[2] + s[6]) + (s[3] + s[7]));
    }
    for (int apart = 8; apart > 0; apart /= 2)
        for (int i = 0; i < apart; i++)
            eights[i] = eights[i] + eights[i + apart];
    return eights[0];
}

static float scale_of_row(const float *h, int64_t n)
{
    float sums[32] = {0};
    for (int64_t tile = 0; tile * 128 < n; tile++) {
        const int64_t left = n - tile * 128;
        sums[tile % 32] += sum_of_tile(h + tile * 128, left < 128 ? left : 128);
    }
    for (int apart = 16; apart > 0; apart /= 2)
        for (int i = 0; i < apart; i++)
            sums[i] = sums[i] + sums[i + apart];
    const float mean = sums[0] / (float)n;
    return 1.0f / sqrtf(mean + EPS);
}

/* ---- A rank ---- */

typedef struct stand {
    ew_world *world;
    const layer_trial *trial;
    ew_backend backend;
    ew_plan *plans[FORMS];                 /* alike but for it */
    int64_t rows;                          /* of C, in this call */
    int64_t first_residual, residual_rows; /* of these rows, on this rank */
    unsigned parts;
    guarded A, B, sum, C, bias, residual, weight, normed;
    void *host_sum, *host_residual, *host_bias, *host_weight; /* as given */
    void *want[3], *got;                                      /* c, h, normed */
} stand;

static bool replicates(const stand *s)
{
    return s->trial->problem.op == EW_OP_GEMM_AR;
}

static size_t bytes_of(const stand *s, int64_t rows, int64_t cols)
{
    return (size_t)(rows * cols) * ew_dtype_bytes(s->trial->problem.dtype);
}

/* What the lines of the header give for one row. */
static void expect_row(stand *s, int64_t row, float *h)
{
    const ew_dtype dtype = s->trial->problem.dtype;
    const int64_t n = s->trial->problem.n, first = row * n;
    for (int64_t i = 0; i < n; i++) {
        float c = element_get(dtype, s->host_sum, first + i);
        if (s->parts & LAYER_BIAS)
            c = rounded(dtype, c + element_get(dtype, s->host_bias, i));
        h[i] = c;
        if (s->parts & LAYER_RESIDUAL)
            h[i] = rounded(dtype, c + element_get(dtype, s->host_residual, first + i));
        element_put(dtype, s->want[0], first + i, c);
        element_put(dtype, s->want[1], first + i, h[i]);
    }
    const float r = scale_of_row(h, n);
    for (int64_t i = 0; i < n; i++) {
        const float scaled = rounded(dtype, h[i] * r);
        element_put(dtype, s->want[2], first + i,
                    scaled * element_get(dtype, s->host_weight, i));
    }
}

static int expect(stand *s)
{
    ew_world *world = s->world;
    float *h = malloc((size_t)s->trial->problem.n * sizeof *h);
    RANK_CHECK(h, "no memory");
    for (int64_t row = 0; row < s->rows; row++)
        expect_row(s, row, h);
    free(h);
    return 0;
}

/* What every rank has of its own; where all have the same rows, only A and B. */
static void draw(const stand *s, int operand, int64_t rows, int64_t cols, void *host)
{
    const bool is_common = replicates(s) && operand > 1;
    fill_random(s->trial->problem.dtype, s->trial->seed + (uint64_t)operand,
                is_common ? 0 : ew_world_rank(s->world), operand, rows, cols, host);
}

static int fill(stand *s, guarded *buffer, void *host, int operand, int64_t rows,
                int64_t cols)
{
    draw(s, operand, rows, cols, host);
    return guarded_write(buffer, host);
}

static int create(stand *s, guarded *buffer, int64_t rows, int64_t cols)
{
    return guarded_create(buffer, s->world, s->backend, bytes_of(s, rows, cols),
                          ew_dtype_bytes(s->trial->problem.dtype));
}

static int set_up(stand *s)
{
    ew_world *world = s->world;
    const ew_problem *p = &s->trial->problem;
    ew_config config = EW_CONFIG_INIT;
    RANK_OK(ew_config_parse(s->trial->config, &config));
    config.backend = s->backend;
    for (int form = 0; form < FORMS; form++) {
        config.epilogue = forms[form];
        RANK_OK(ew_plan_create(world, p, &config, &s->plans[form]));
    }
    const int64_t most = p->max_m > p->n ? p->max_m : p->n;
    void **hosts[] = {&s->host_sum, &s->host_residual, &s->host_bias, &s->host_weight,
                      &s->want[0],  &s->want[1],       &s->want[2],   &s->got};
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
        *hosts[i] = malloc(bytes_of(s, most, p->k > p->n ? p->k : p->n) + 16);
        RANK_CHECK(*hosts[i], "no memory");
    }
    RANK_TRY(create(s, &s->A, p->max_m, p->k));
    RANK_TRY(create(s, &s->B, p->n, p->k));
    RANK_TRY(create(s, &s->bias, 1, p->n));
    RANK_TRY(create(s, &s->weight, 1, p->n));
    RANK_TRY(fill(s, &s->A, s->got, 0, p->max_m, p->k));
    RANK_TRY(fill(s, &s->B, s->got, 1, p->n, p->k));
    RANK_TRY(fill(s, &s->bias, s->host_bias, 2, 1, p->n));
    RANK_TRY(fill(s, &s->weight, s->host_weight, 3, 1, p->n));
    for (int form = 0; form < FORMS; form++)
        RANK_OK(ew_plan_set_weight(s->plans[form], s->B.data));
    return 0;
}

/* `got` has `rows` of the wanted rows, from `first` on. */
static int compare(stand *s, const guarded *got, int which, const char *name, int64_t first,
                   int64_t rows)
{
    ew_world *world = s->world;
    const int64_t n = s->trial->problem.n;
    const size_t elem = ew_dtype_bytes(s->trial->problem.dtype);
    RANK_TRY(guarded_read(got, s->got));
    RANK_TRY(guarded_check(got, name));
    const char *want = (const char *)s->want[which] + (size_t)(first * n) * elem;
    const bool same = memcmp(s->got, want, (size_t)(rows * n) * elem) == 0;
    int64_t i = 0; /* of the first that differs */
    while (!same &&
           memcmp((char *)s->got + (size_t)i * elem, want + (size_t)i * elem, elem) == 0)
        i++;
    RANK_CHECK(same, "%s: row %lld, column %lld is %g, not %g", name, (long long)(i / n),
               (long long)(i % n), (double)element_get(s->trial->problem.dtype, s->got, i),
               (double)element_get(s->trial->problem.dtype, want, i));
    return 0;
}

static ew_epilogue epilogue_of(const stand *s)
{
    ew_epilogue epilogue = EW_EPILOGUE_INIT;
    epilogue.eps = EPS;
    epilogue.residual_rows = s->trial->all_rows ? EW_RESIDUAL_ALL : EW_RESIDUAL_OWNED;
    if (s->parts & LAYER_BIAS)
        epilogue.bias = s->bias.data;
    if (s->parts & LAYER_RESIDUAL)
        epilogue.residual = s->residual.data;
    if (s->parts & LAYER_NORM) {
        epilogue.norm_weight = s->weight.data;
        epilogue.normed = s->normed.data;
    }
    return epilogue;
}

/* On a GPU ranks meet before they call, for the reason given in trial.c. */
static int meet(const stand *s)
{
    ew_world *world = s->world;
    if (s->backend != EW_BACKEND_CPU)
        RANK_OK(ew_world_barrier(world));
    return 0;
}

static int check_outputs(stand *s, const guarded *c)
{
    if (c)
        RANK_TRY(compare(s, c, 0, "C", 0, s->rows));
    if (s->parts & LAYER_RESIDUAL)
        RANK_TRY(
            compare(s, &s->residual, 1, "residual", s->first_residual, s->residual_rows));
    if (s->parts & LAYER_NORM)
        RANK_TRY(compare(s, &s->normed, 2, "normed", 0, s->rows));
    return 0;
}

static int run_layer(stand *s, int64_t m, ew_plan *plan)
{
    ew_world *world = s->world;
    const ew_epilogue epilogue = epilogue_of(s);
    void *C = s->parts & LAYER_C ? s->C.data : NULL;
    RANK_TRY(guarded_write(&s->residual,
                           (char *)s->host_residual +
                               bytes_of(s, s->first_residual, s->trial->problem.n)));
    RANK_TRY(guarded_poison(&s->C));
    RANK_TRY(guarded_poison(&s->normed));
    RANK_TRY(meet(s));
    RANK_OK((replicates(s) ? ew_gemm_ar_layer : ew_gemm_rs_layer)(plan, m, s->A.data, NULL,
                                                                  C, &epilogue, NULL));
    RANK_OK(ew_plan_wait(plan));
    return check_outputs(s, C ? &s->C : NULL);
}

static int deal_rows(stand *s, int64_t m)
{
    ew_world *world = s->world;
    int64_t first, count;
    RANK_OK(ew_owned_rows(m, ew_world_size(world), ew_world_rank(world), &first, &count));
    s->rows = replicates(s) ? m : count;
    s->first_residual = replicates(s) && !s->trial->all_rows ? first : 0;
    s->residual_rows = s->trial->all_rows ? m : count;
    return 0;
}

static int call(stand *s, int number)
{
    ew_world *world = s->world;
    const int64_t m = s->trial->rows[number], n = s->trial->problem.n;
    guarded *matrices[] = {&s->sum, &s->C, &s->normed, &s->residual};
    RANK_TRY(deal_rows(s, m));
    for (s->parts = (s->trial->parts + (unsigned)number * 5) % 16;
         !layer_parts_valid(s->trial, s->parts);)
        s->parts = (s->parts + 1) % 16;
    for (int i = 0; i < 4; i++) {
        RANK_TRY(create(s, matrices[i], i < 3 ? s->rows : s->residual_rows, n));
        RANK_TRY(guarded_poison(matrices[i]));
    }
    draw(s, 4 + number, s->rows, n, s->host_residual);
    RANK_TRY(meet(s));
    RANK_OK((replicates(s) ? ew_gemm_ar : ew_gemm_rs)(s->plans[0], m, s->A.data, NULL,
                                                      s->sum.data, NULL));
    RANK_OK(ew_plan_wait(s->plans[0]));
    RANK_TRY(guarded_read(&s->sum, s->host_sum));
    RANK_TRY(expect(s));
    for (int form = 0; form < FORMS; form++)
        RANK_TRY(run_layer(s, m, s->plans[form]));
    for (int i = 0; i < 4; i++)
        guarded_destroy(matrices[i]);
    return 0;
}

static int run_calls(stand *s)
{
    for (int number = 0; number < s->trial->num_calls; number++)
        RANK_TRY(call(s, number));
    RANK_TRY(guarded_check(&s->bias, "bias"));
    return guarded_check(&s->weight, "norm_weight");
}

int layer_trial_body(ew_world *world, void *argument)
{
    const layer_trial *t = argument;
    ew_config config = EW_CONFIG_INIT;
    RANK_OK(ew_config_parse(t->config, &config));
    stand s = {.world = world,
               .trial = t,
               .backend = config.backend ? config.backend : EW_BACKEND_CPU};
    const int failed = set_up(&s) || run_calls(&s);
    if (failed)
        ew_world_abort(world); /* or peers would wait for this rank's next call */
    for (int form = 0; form < FORMS; form++)
        ew_plan_destroy(s.plans[form]);
    guarded *buffers[] = {&s.A,    &s.B,        &s.sum,    &s.C,
                          &s.bias, &s.residual, &s.weight, &s.normed};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        guarded_destroy(buffers[i]);
    void *hosts[] = {s.host_sum, s.host_residual, s.host_bias, s.host_weight,
                     s.want[0],  s.want[1],       s.want[2],   s.got};
    for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++)
        free(hosts[i]);
    return failed;
}
