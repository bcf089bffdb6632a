/* Weights of their own: one in many plans, many in one plan, new values, and coming and
 * going in any order. */
#include "harness.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "entwine/measure.h"

/* Whether a call refused for want of a weight says so, and how to mend it. */
static bool has_no_weight(ew_status status)
{
    return status == EW_ERR_ARGUMENT && strstr(ew_last_error(), "no weight") &&
           strstr(ew_last_error(), "\n  fix: ");
}

/* ---- One weight, plans of every size and schedule ---- */

static const struct {
    int64_t max_m;
    const char *config;
} sizes[] = {
    {1, "workers=1"},
    {5, "workers=2,order=contiguous"},
    {128, "workers=1,release=partition"},
    {129, "workers=2,block=256x256,x=2"},
    {600, "workers=2,pool=static,x=1"},
};
enum { SIZES = sizeof sizes / sizeof sizes[0] };

typedef struct sharing {
    ew_dtype dtype;
    ew_weight_layout layout;
    ew_producer producer;
} sharing;

typedef struct rank_data {
    void *A, *B, *C;
} rank_data;

static int fill(ew_world *world, const ew_problem *p, const rank_data *d, uint32_t seed)
{
    const int rank = ew_world_rank(world), W = ew_world_size(world);
    RANK_OK(ew_exact_fill_a(p->dtype, seed, rank, W, p->max_m, p->k, d->A));
    RANK_OK(ew_exact_fill_b(p->dtype, seed, rank, p->weight_layout, p->n, p->k, d->B));
    return 0;
}

static int call_and_verify(ew_world *world, ew_plan *plan, const ew_problem *p, int64_t m,
                           uint32_t seed, const rank_data *d)
{
    const int rank = ew_world_rank(world), W = ew_world_size(world);
    ew_check check;
    memset(d->C, 0xff, (size_t)(m * p->n) * ew_dtype_bytes(p->dtype));
    RANK_OK(ew_gemm_rs(plan, m, d->A, NULL, d->C, NULL));
    RANK_OK(ew_exact_verify(p, seed, rank, W, m, d->C, &check));
    RANK_CHECK(check.wrong == 0, "m=%lld seed=%u: %lld wrong", (long long)m, seed,
               (long long)check.wrong);
    return 0;
}

static int open_plans(ew_world *world, const sharing *s, const ew_problem *problem,
                      ew_plan **plans)
{
    for (int i = 0; i < SIZES; i++) {
        ew_problem p = *problem;
        ew_config config = EW_CONFIG_INIT;
        p.max_m = sizes[i].max_m;
        if (s->producer == EW_PRODUCER_OWN)
            RANK_OK(ew_config_parse(sizes[i].config, &config));
        config.producer = s->producer;
        RANK_OK(ew_plan_create(world, &p, &config, &plans[i]));
    }
    return 0;
}

static int sharing_body(ew_world *world, void *argument)
{
    const sharing *s = argument;
    ew_problem p = EW_PROBLEM(600, 270, 33, s->dtype);
    ew_config config = EW_CONFIG_INIT;
    rank_data d = {malloc(600 * 33 * 4), malloc(270 * 33 * 4), malloc(600 * 270 * 4)};
    ew_plan *plans[SIZES];
    ew_weight *weight;
    RANK_CHECK(d.A && d.B && d.C, "no memory");
    p.weight_layout = s->layout;
    config.producer = s->producer;
    RANK_TRY(fill(world, &p, &d, 1));
    RANK_OK(ew_weight_create(world, &p, &config, d.B, &weight));
    memset(d.B, 0xff, (size_t)(p.n * p.k) * ew_dtype_bytes(p.dtype));
    RANK_TRY(open_plans(world, s, &p, plans));
    for (uint32_t seed = 1; seed <= 3; seed++) {
        for (int i = 0; i < SIZES; i++) {
            if (seed == 1)
                RANK_OK(ew_plan_bind_weight(plans[i], weight));
            RANK_TRY(call_and_verify(world, plans[i], &p, sizes[i].max_m, seed, &d));
        }
        RANK_TRY(fill(world, &p, &d, seed + 1));
        RANK_OK(ew_weight_update(weight, d.B));
    }
    ew_plan_destroy(plans[2]); /* the others stay bound */
    RANK_TRY(call_and_verify(world, plans[4], &p, 600, 4, &d));
    ew_weight_destroy(weight);
    RANK_CHECK(has_no_weight(ew_gemm_rs(plans[4], 600, d.A, NULL, d.C, NULL)),
               "a call with a weight that is gone: %s", ew_last_error());
    for (int i = 0; i < SIZES; i++)
        if (i != 2)
            ew_plan_destroy(plans[i]);
    free(d.A);
    free(d.B);
    free(d.C);
    return 0;
}

static void one_weight_serves_plans_of_every_size(void **state)
{
    (void)state;
    for (int dtype = EW_FP32; dtype <= EW_FP16; dtype++)
        for (int layout = EW_WEIGHT_NK; layout <= EW_WEIGHT_KN; layout++)
            for (int producer = EW_PRODUCER_OWN; producer <= EW_PRODUCER_BLAS; producer++) {
                sharing s = {(ew_dtype)dtype, (ew_weight_layout)layout,
                             (ew_producer)producer};
                if (producer == EW_PRODUCER_BLAS && (dtype != EW_FP32 || !ew_blas_name()))
                    continue;
                harness_context("type %d, layout %d, producer %d", dtype, layout, producer);
                harness_run(EW_RANKS_AS_THREADS, 3, sharing_body, &s);
                if (dtype == EW_FP32 && layout == EW_WEIGHT_NK)
                    harness_run(EW_RANKS_AS_PROCESSES, 2, sharing_body, &s);
            }
}

/* ---- One plan, the weights of many layers ---- */

enum { LAYERS = 7 };

static int layers_body(ew_world *world, void *argument)
{
    (void)argument;
    const ew_problem p = EW_PROBLEM(40, 130, 9, EW_BF16);
    rank_data d[LAYERS];
    ew_weight *weights[LAYERS];
    ew_plan *plan;
    RANK_OK(ew_plan_create(world, &p, NULL, &plan));
    for (int i = 0; i < LAYERS; i++) {
        d[i] = (rank_data){malloc(40 * 9 * 2), malloc(130 * 9 * 2), malloc(40 * 130 * 2)};
        RANK_CHECK(d[i].A && d[i].B && d[i].C, "no memory");
        RANK_TRY(fill(world, &p, &d[i], (uint32_t)i));
        RANK_OK(ew_weight_create(world, &p, NULL, d[i].B, &weights[i]));
    }
    for (int call = 0; call < 20 * LAYERS; call++) {
        const int i = call % LAYERS;
        RANK_OK(ew_plan_bind_weight(plan, weights[i]));
        RANK_TRY(call_and_verify(world, plan, &p, 1 + call % 40, (uint32_t)i, &d[i]));
    }
    ew_plan_destroy(plan);
    for (int i = 0; i < LAYERS; i++) {
        ew_weight_destroy(weights[i]);
        free(d[i].A);
        free(d[i].B);
        free(d[i].C);
    }
    return 0;
}

static void layers_of_a_shape_share_a_plan(void **state)
{
    (void)state;
    harness_run(EW_RANKS_AS_PROCESSES, 2, layers_body, NULL);
    harness_run(EW_RANKS_AS_THREADS, 2, layers_body, NULL);
}

/* ---- Alone: set, bound, passed, and in which order ---- */

enum { M = 4, N = 6, K = 3 };

/* A of ones and a weight that is `value` everywhere: every sum is value * K. */
typedef struct room {
    ew_world *world;
    ew_problem problem;
    float A[M * K], B[N * K], C[M * N];
} room;

static const float *with_value(room *r, float value)
{
    for (int i = 0; i < N * K; i++)
        r->B[i] = value;
    return r->B;
}

static room *enter(void)
{
    room *r = malloc(sizeof *r);
    assert_non_null(r);
    *r = (room){.problem = EW_PROBLEM(M, N, K, EW_FP32)};
    assert_int_equal(ew_world_create(0, 1, NULL, NULL, NULL, &r->world), EW_OK);
    for (int i = 0; i < M * K; i++)
        r->A[i] = 1;
    return r;
}

static void leave(room *r)
{
    ew_world_destroy(r->world);
    free(r);
}

static ew_plan *make_plan(room *r)
{
    ew_plan *plan = NULL;
    assert_int_equal(ew_plan_create(r->world, &r->problem, NULL, &plan), EW_OK);
    return plan;
}

static ew_weight *make_weight(room *r, float value)
{
    ew_weight *weight = NULL;
    assert_int_equal(
        ew_weight_create(r->world, &r->problem, NULL, with_value(r, value), &weight),
        EW_OK);
    return weight;
}

/* A call without a B uses a weight of that value; 0: it has none, and is refused. */
static void expect(room *r, ew_plan *plan, float value)
{
    memset(r->C, 0xff, sizeof r->C);
    const ew_status status = ew_gemm_rs(plan, M, r->A, NULL, r->C, NULL);
    if (value == 0) {
        assert_true(has_no_weight(status));
        return;
    }
    assert_int_equal(status, EW_OK);
    for (int i = 0; i < M * N; i++)
        assert_true(r->C[i] == value * K);
}

static void expect_passed(room *r, ew_plan *plan, float value)
{
    assert_int_equal(ew_gemm_rs(plan, M, r->A, with_value(r, value), r->C, NULL), EW_OK);
    assert_true(r->C[0] == value * K);
}

static void the_last_one_said_is_used(void **state)
{
    (void)state;
    room *r = enter();
    ew_plan *plan = make_plan(r);
    ew_weight *two = make_weight(r, 2), *three = make_weight(r, 3);
    expect(r, plan, 0);
    expect_passed(r, plan, 9);
    expect(r, plan, 0); /* a B that was passed binds nothing */
    assert_int_equal(ew_plan_bind_weight(plan, two), EW_OK);
    expect(r, plan, 2);
    expect_passed(r, plan, 9);
    expect(r, plan, 2); /* and unbinds nothing */
    assert_int_equal(ew_plan_set_weight(plan, with_value(r, 5)), EW_OK);
    expect(r, plan, 5);
    expect_passed(r, plan, 9);
    expect(r, plan, 5);
    assert_int_equal(ew_plan_bind_weight(plan, three), EW_OK);
    expect(r, plan, 3);
    assert_int_equal(ew_weight_update(three, with_value(r, 4)), EW_OK);
    expect(r, plan, 4);
    assert_int_equal(ew_plan_bind_weight(plan, two), EW_OK);
    expect(r, plan, 2);       /* setting its own did not touch it */
    ew_weight_destroy(three); /* not bound any more */
    expect(r, plan, 2);
    assert_int_equal(ew_plan_bind_weight(plan, NULL), EW_OK);
    expect(r, plan, 0);
    assert_int_equal(ew_plan_bind_weight(plan, two), EW_OK);
    ew_weight_destroy(two);
    expect(r, plan, 0);
    assert_int_equal(ew_plan_set_weight(plan, with_value(r, 6)), EW_OK);
    expect(r, plan, 6);
    ew_plan_destroy(plan);
    leave(r);
}

enum { PLANS = 5, WEIGHTS = 4, STEPS = 4000, UNBOUND = -1, OWN = -2 };

typedef struct model {
    ew_plan *plans[PLANS];
    ew_weight *weights[WEIGHTS];
    float values[WEIGHTS], own[PLANS];
    int bound[PLANS]; /* a weight, UNBOUND or OWN */
} model;

static void renew_plan(room *r, model *m, int plan)
{
    ew_plan_destroy(m->plans[plan]);
    m->plans[plan] = make_plan(r);
    m->bound[plan] = UNBOUND;
}

static void renew_weight(room *r, model *m, int weight, float value)
{
    ew_weight_destroy(m->weights[weight]);
    for (int plan = 0; plan < PLANS; plan++)
        if (m->bound[plan] == weight)
            m->bound[plan] = UNBOUND;
    m->weights[weight] = make_weight(r, value);
    m->values[weight] = value;
}

static void take_step(room *r, model *m, harness_random *random)
{
    const int plan = (int)harness_between(random, 0, PLANS - 1);
    const int weight = (int)harness_between(random, 0, WEIGHTS - 1);
    const float value = (float)harness_between(random, 1, 99);
    switch (harness_between(random, 0, 9)) {
    case 0:
        renew_plan(r, m, plan);
        break;
    case 1:
        renew_weight(r, m, weight, value);
        break;
    case 2:
        assert_int_equal(ew_weight_update(m->weights[weight], with_value(r, value)), EW_OK);
        m->values[weight] = value;
        break;
    case 3:
        assert_int_equal(ew_plan_set_weight(m->plans[plan], with_value(r, value)), EW_OK);
        m->own[plan] = value;
        m->bound[plan] = OWN;
        break;
    case 4:
        assert_int_equal(ew_plan_bind_weight(m->plans[plan], NULL), EW_OK);
        m->bound[plan] = UNBOUND;
        break;
    case 5:
        expect_passed(r, m->plans[plan], value);
        break;
    default:
        assert_int_equal(ew_plan_bind_weight(m->plans[plan], m->weights[weight]), EW_OK);
        m->bound[plan] = weight;
    }
}

/* Against a model, checked after every step. */
static void any_order(void **state)
{
    (void)state;
    room *r = enter();
    model m = {0};
    harness_random random = harness_seed(3);
    for (int plan = 0; plan < PLANS; plan++)
        renew_plan(r, &m, plan);
    for (int weight = 0; weight < WEIGHTS; weight++)
        renew_weight(r, &m, weight, 1);
    for (int step = 0; step < STEPS; step++) {
        take_step(r, &m, &random);
        const int plan = step % PLANS, bound = m.bound[plan];
        expect(r, m.plans[plan],
               bound == UNBOUND ? 0
               : bound == OWN   ? m.own[plan]
                                : m.values[bound]);
    }
    for (int i = 0; i < PLANS || i < WEIGHTS; i++) {
        ew_plan_destroy(i < PLANS ? m.plans[i] : NULL);
        ew_weight_destroy(i < WEIGHTS ? m.weights[i] : NULL);
    }
    leave(r);
}

/* ---- Refused ---- */

static void refuse_weight(room *r, const ew_problem *problem, const char *config,
                          ew_status want, const char *value)
{
    ew_plan *plan = make_plan(r);
    ew_weight *weight = NULL;
    float B[1024] = {0};
    ew_config parsed = EW_CONFIG_INIT;
    assert_int_equal(ew_config_parse(config, &parsed), EW_OK);
    assert_int_equal(ew_weight_create(r->world, problem, &parsed, B, &weight), EW_OK);
    assert_int_equal(ew_plan_set_weight(plan, with_value(r, 7)), EW_OK);
    harness_expect_error(ew_plan_bind_weight(plan, weight), want, value, value);
    expect(r, plan, 7); /* what was bound stays so */
    ew_weight_destroy(weight);
    ew_plan_destroy(plan);
}

static void a_weight_that_does_not_fit(void **state)
{
    (void)state;
    room *r = enter(), *other = enter();
    ew_problem wide = r->problem, deep = r->problem, half = r->problem, turned = r->problem;
    wide.n = 8;
    deep.k = 4;
    half.dtype = EW_BF16;
    turned.weight_layout = EW_WEIGHT_KN;
    refuse_weight(r, &wide, "", EW_ERR_SHAPE, "weight has N=8,K=3, the plan N=6,K=3");
    refuse_weight(r, &deep, "", EW_ERR_SHAPE, "weight has N=6,K=4, the plan N=6,K=3");
    refuse_weight(r, &half, "", EW_ERR_ARGUMENT, "type=bf16, the plan type=fp32");
    refuse_weight(r, &turned, "", EW_ERR_ARGUMENT, "layout=kn, the plan layout=nk");
    if (ew_blas_name())
        refuse_weight(r, &r->problem, "producer=blas", EW_ERR_ARGUMENT,
                      "producer=blas, the plan producer=own");
    ew_plan *plan = make_plan(r);
    ew_weight *foreign = make_weight(other, 1);
    harness_expect_error(ew_plan_bind_weight(plan, foreign), EW_ERR_ARGUMENT,
                         "another world", "a weight of another world");
    ew_weight_destroy(foreign);
    ew_plan_destroy(plan);
    leave(other);
    leave(r);
}

/* A shape that the simulated machine has too. */
static void a_weight_of_another_backend(void **state)
{
    (void)state;
    room *r = enter();
    const ew_problem problem = EW_PROBLEM(8, 64, 64, EW_BF16);
    const uint16_t B[64 * 64] = {0};
    ew_config config = EW_CONFIG_INIT;
    ew_plan *plan = NULL;
    ew_weight *weight = NULL;
    config.backend = EW_BACKEND_SIM;
    assert_int_equal(ew_plan_create(r->world, &problem, NULL, &plan), EW_OK);
    assert_int_equal(ew_weight_create(r->world, &problem, &config, B, &weight), EW_OK);
    assert_int_equal(ew_weight_bytes(weight), 0); /* which holds nothing */
    harness_expect_error(ew_plan_bind_weight(plan, weight), EW_ERR_ARGUMENT,
                         "backend=sim, the plan backend=cpu", "another backend");
    ew_weight_destroy(weight);
    ew_plan_destroy(plan);
    leave(r);
}

static void wrong_arguments(void **state)
{
    (void)state;
    room *r = enter();
    ew_weight *weight = NULL;
    ew_problem bad = r->problem;
    ew_config config = EW_CONFIG_INIT;
    const float *B = with_value(r, 1);
    assert_int_equal(ew_weight_create(NULL, &bad, NULL, B, &weight), EW_ERR_ARGUMENT);
    assert_int_equal(ew_weight_create(r->world, NULL, NULL, B, &weight), EW_ERR_ARGUMENT);
    assert_int_equal(ew_weight_create(r->world, &bad, NULL, NULL, &weight),
                     EW_ERR_ARGUMENT);
    assert_int_equal(ew_weight_create(r->world, &bad, NULL, B, NULL), EW_ERR_ARGUMENT);
    bad.n = 0;
    harness_expect_error(ew_weight_create(r->world, &bad, NULL, B, &weight), EW_ERR_SHAPE,
                         "N=0", "no columns");
    config.backend = (ew_backend)9;
    assert_int_not_equal(ew_weight_create(r->world, &r->problem, &config, B, &weight),
                         EW_OK);
    assert_null(weight);
    weight = make_weight(r, 1);
    assert_int_equal(ew_weight_update(NULL, B), EW_ERR_ARGUMENT);
    assert_int_equal(ew_weight_update(weight, NULL), EW_ERR_ARGUMENT);
    assert_int_equal(ew_plan_bind_weight(NULL, weight), EW_ERR_ARGUMENT);
    assert_true(ew_weight_bytes(weight) >= N * K * sizeof(float));
    assert_int_equal(ew_weight_bytes(NULL), 0);
    ew_weight_destroy(weight);
    ew_weight_destroy(NULL);
    leave(r);
}

/* Neither the rows nor the schedule of what it was made from matter. */
static void what_does_not_count_is_ignored(void **state)
{
    (void)state;
    room *r = enter();
    ew_problem problem = r->problem;
    ew_config config = EW_CONFIG_INIT;
    ew_plan *plan = make_plan(r);
    assert_int_equal(ew_config_parse("release=3,x=60000,order=default", &config), EW_OK);
    for (int i = 0; i < 3; i++) {
        ew_weight *weight = NULL;
        problem.max_m = i == 0 ? -7 : i == 1 ? 0 : INT64_MAX;
        assert_int_equal(
            ew_weight_create(r->world, &problem, &config, with_value(r, 3), &weight),
            EW_OK);
        assert_int_equal(ew_plan_bind_weight(plan, weight), EW_OK);
        expect(r, plan, 3);
        ew_weight_destroy(weight);
    }
    ew_plan_destroy(plan);
    leave(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_weight_serves_plans_of_every_size),
        cmocka_unit_test(layers_of_a_shape_share_a_plan),
        cmocka_unit_test(the_last_one_said_is_used),
        cmocka_unit_test(any_order),
        cmocka_unit_test(a_weight_that_does_not_fit),
        cmocka_unit_test(a_weight_of_another_backend),
        cmocka_unit_test(wrong_arguments),
        cmocka_unit_test(what_does_not_count_is_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
