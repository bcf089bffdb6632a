/* "The bits of C depend on the inputs alone": random inputs, whose sums depend on their
 * order in the last bits, give the same bytes under every config, owner and run. */
#include "harness.h"

#include <fenv.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "random_inputs.h"

#define COUNT(list) (sizeof(list) / sizeof(list)[0])

typedef struct job {
    ew_problem problem;
    ew_config config;
    const ew_world_options *options;
    ew_ranks_as kind;
    int num_ranks;
    int64_t m;
    int repeats;
    bool weight_per_call, weight_bound;
    int rounding;   /* of the thread that calls, set once its workers run; 0: to nearest */
    bool same_rows; /* every partition of A holds the same rows */
    unsigned char *output; /* shared: all m rows, owner after owner */
} job;

static void fill_a(const job *j, int rank, void *A)
{
    const ew_problem *p = &j->problem;
    const size_t row_bytes = (size_t)p->k * ew_dtype_bytes(p->dtype);
    fill_random(p->dtype, 99, rank, OPERAND_A, p->max_m, p->k, A);
    const int64_t share = j->m / j->num_ranks;
    for (int dst = 1; j->same_rows && dst < j->num_ranks; dst++)
        memcpy((char *)A + (size_t)(dst * share) * row_bytes, A, (size_t)share * row_bytes);
}

static int compute(ew_world *world, void *argument)
{
    const job *j = argument;
    const ew_problem *p = &j->problem;
    const int rank = ew_world_rank(world);
    const size_t elem = ew_dtype_bytes(p->dtype);
    int64_t first, count;
    RANK_OK(ew_owned_rows(j->m, j->num_ranks, rank, &first, &count));
    const size_t bytes = (size_t)(count * p->n) * elem;
    void *A = malloc((size_t)(p->max_m * p->k) * elem);
    void *B = malloc((size_t)(p->n * p->k) * elem), *C = malloc(bytes + 1);
    RANK_CHECK(A && B && C, "no memory");
    fill_a(j, rank, A);
    fill_random(p->dtype, 99, rank, OPERAND_B, p->n, p->k, B);
    ew_plan *plan;
    RANK_OK(ew_plan_create(world, p, &j->config, &plan));
    ew_weight *weight = NULL;
    if (j->weight_bound) {
        RANK_OK(ew_weight_create(world, p, &j->config, B, &weight));
        RANK_OK(ew_plan_bind_weight(plan, weight));
    } else if (!j->weight_per_call) {
        RANK_OK(ew_plan_set_weight(plan, B));
    }
    fesetround(j->rounding);
    for (int repeat = 0; repeat < j->repeats; repeat++) {
        unsigned char *own = j->output + (size_t)(first * p->n) * elem;
        memset(C, 0xff, bytes);
        RANK_OK(ew_gemm_rs(plan, j->m, A, j->weight_per_call ? B : NULL, C, NULL));
        if (repeat == 0)
            memcpy(own, C, bytes);
        RANK_CHECK(memcmp(own, C, bytes) == 0, "run %d differs from run 0", repeat);
    }
    fesetround(FE_TONEAREST);
    ew_plan_destroy(plan);
    ew_weight_destroy(weight);
    free(A);
    free(B);
    free(C);
    return 0;
}

static job job_build(ew_dtype dtype, int W, int64_t m, int64_t n, int64_t k)
{
    job j = {.problem = EW_PROBLEM(m, n, k, dtype),
             .config = EW_CONFIG_INIT,
             .kind = EW_RANKS_AS_PROCESSES,
             .num_ranks = W,
             .m = m,
             .repeats = 1};
    j.config.workers = 1;
    return j;
}

static size_t output_bytes(const job *j)
{
    return (size_t)(j->problem.max_m * j->problem.n) * ew_dtype_bytes(j->problem.dtype);
}

static void run(job *j, const char *what)
{
    char text[EW_CONFIG_TEXT_BYTES];
    ew_config_print(&j->config, text, sizeof text);
    harness_context("%s: W=%d %s m=%lld %s %s", what, j->num_ranks,
                    ew_dtype_name(j->problem.dtype), (long long)j->m,
                    j->kind == EW_RANKS_AS_THREADS ? "threads" : "processes", text);
    memset(j->output, 0xff, output_bytes(j));
    harness_run_with(j->kind, j->num_ranks, j->options, compute, j);
}

/* The reference, and the job to be varied and compared with it. */
typedef struct comparison {
    job reference, varied;
    size_t bytes;
} comparison;

static comparison comparison_begin(const job *plain)
{
    comparison c = {.reference = *plain, .varied = *plain, .bytes = output_bytes(plain)};
    c.reference.output = harness_share(c.bytes);
    c.varied.output = harness_share(c.bytes);
    run(&c.reference, "reference");
    return c;
}

static void expect_same(comparison *c, const char *what)
{
    run(&c->varied, what);
    if (memcmp(c->varied.output, c->reference.output, c->bytes) != 0) {
        char text[EW_CONFIG_TEXT_BYTES];
        ew_config_print(&c->varied.config, text, sizeof text);
        fail_msg("%s changes the bits: W=%d %s %s", what, c->varied.num_ranks,
                 ew_dtype_name(c->varied.problem.dtype), text);
    }
}

static void comparison_end(comparison *c)
{
    harness_unshare(c->reference.output, c->bytes);
    harness_unshare(c->varied.output, c->bytes);
}

/* ---- Configs ---- */

/* One field after the other, then several at a time. */
static void vary_config(const job *plain)
{
    static const char *const texts[] = {
        "workers=1,x=1",
        "workers=1,x=2",
        "workers=1,x=7",
        "workers=1,x=100",
        "workers=1,b=3",
        "workers=1,order=default",
        "workers=1,order=contiguous",
        "workers=1,release=3",
        "workers=1,release=partition",
        "workers=1,release=output",
        "workers=1,block=128x128",
        "workers=1,block=256x256",
        "workers=1,block=128x512",
        "workers=1,block=256x128,group=2",
        "workers=1,group=3",
        "workers=2",
        "workers=3",
        "workers=2,pool=static,x=1",
        "workers=3,pool=static,x=2",
        "workers=3,x=1,order=contiguous,release=output,block=256x256,group=2",
        "workers=2,x=5,b=4,order=default,release=2,block=128x512",
    };
    comparison c = comparison_begin(plain);
    c.varied.repeats = 3;
    for (size_t i = 0; i < COUNT(texts); i++) {
        assert_int_equal(ew_config_parse(texts[i], &c.varied.config), EW_OK);
        c.varied.kind = i % 3 == 2 ? EW_RANKS_AS_THREADS : EW_RANKS_AS_PROCESSES;
        c.varied.weight_per_call = i % 4 == 3;
        c.varied.weight_bound = i % 4 == 2;
        expect_same(&c, texts[i]);
    }
    comparison_end(&c);
}

static void configs_do_not_change_the_bits(void **state)
{
    (void)state;
    for (int W = 2; W <= 3; W++)
        for (int dtype = EW_FP32; dtype <= EW_FP16; dtype++) {
            const job plain = job_build((ew_dtype)dtype, W, 150 * W + 1, 300, 333);
            vary_config(&plain);
        }
}

static void ranks_as_processes_or_threads(void **state)
{
    (void)state;
    for (int W = 1; W <= 4; W++) {
        const job plain = job_build(EW_FP32, W, 129 * W, 200, 1000);
        comparison c = comparison_begin(&plain);
        c.varied.kind = EW_RANKS_AS_THREADS;
        expect_same(&c, "threads");
        comparison_end(&c);
    }
}

static void many_runs(void **state)
{
    (void)state;
    job plain = job_build(EW_FP32, 3, 201, 150, 100);
    comparison c = comparison_begin(&plain);
    c.varied.config.workers = 2;
    c.varied.repeats = 100;
    expect_same(&c, "100 runs");
    comparison_end(&c);
}

static void emulated_link_on_or_off(void **state)
{
    (void)state;
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.link_gbps = 2.0;
    options.link_latency_us = 20.0;
    for (int dtype = EW_FP32; dtype <= EW_BF16; dtype++) {
        const job plain = job_build((ew_dtype)dtype, 3, 390, 300, 64);
        comparison c = comparison_begin(&plain);
        c.varied.options = &options;
        c.varied.repeats = 3;
        expect_same(&c, "link");
        c.varied.kind = EW_RANKS_AS_THREADS;
        c.varied.config.release = EW_RELEASE_PARTITION;
        c.varied.config.order = EW_ORDER_CONTIGUOUS;
        expect_same(&c, "link");
        comparison_end(&c);
    }
}

/* ---- Owners ---- */

/* Equal rows of A in every partition: then all ranks must receive equal rows. */
static void every_owner_sums_in_the_same_order(void **state)
{
    (void)state;
    for (int W = 3; W <= 4; W++)
        for (int dtype = EW_FP32; dtype <= EW_FP16; dtype++) {
            const int64_t share = 130;
            job j = job_build((ew_dtype)dtype, W, share * W, 300, 77);
            const size_t bytes = output_bytes(&j), slab = bytes / (size_t)W;
            j.same_rows = true;
            j.output = harness_share(bytes);
            run(&j, "owners");
            for (int rank = 1; rank < W; rank++)
                if (memcmp(j.output, j.output + (size_t)rank * slab, slab) != 0)
                    fail_msg("W=%d %s: rank %d's rows differ from rank 0's", W,
                             ew_dtype_name((ew_dtype)dtype), rank);
            harness_unshare(j.output, bytes);
        }
}

/* With another m a row has another owner and another place in its tile. */
static void a_row_keeps_its_bits_when_m_changes(void **state)
{
    (void)state;
    static const int64_t rows[] = {1, 2, 3, 5, 100, 128, 129, 257, 386, 399};
    for (int dtype = EW_FP32; dtype <= EW_FP16; dtype++) {
        const job plain = job_build((ew_dtype)dtype, 3, 400, 140, 300);
        comparison c = comparison_begin(&plain);
        for (size_t i = 0; i < COUNT(rows); i++) {
            c.varied.m = rows[i];
            run(&c.varied, "another m");
            if (memcmp(c.varied.output, c.reference.output,
                       c.bytes / 400 * (size_t)rows[i]) != 0)
                fail_msg("%s: m=%lld changes the bits of a row",
                         ew_dtype_name((ew_dtype)dtype), (long long)rows[i]);
        }
        comparison_end(&c);
    }
}

/* Rounding shows what flushing would, too: a thread has one setting for both.  Of a static
 * pool one worker reduces and the others multiply, so the caller's thread never does all.
 */
static void workers_compute_as_their_caller(void **state)
{
    (void)state;
    job plain = job_build(EW_FP32, 2, 300, 270, 40);
    comparison c = comparison_begin(&plain);
    c.varied.rounding = FE_UPWARD;
    run(&c.varied, "rounding up");
    assert_memory_not_equal(c.varied.output, c.reference.output, c.bytes);
    plain.rounding = FE_UPWARD;
    c = comparison_begin(&plain);
    c.varied.config.pool = EW_POOL_STATIC;
    c.varied.config.budget = 1;
    for (int workers = 2; workers <= 3; workers++) {
        c.varied.config.workers = workers;
        expect_same(&c, "a static pool");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configs_do_not_change_the_bits),
        cmocka_unit_test(ranks_as_processes_or_threads),
        cmocka_unit_test(many_runs),
        cmocka_unit_test(emulated_link_on_or_off),
        cmocka_unit_test(every_owner_sums_in_the_same_order),
        cmocka_unit_test(a_row_keeps_its_bits_when_m_changes),
        cmocka_unit_test(workers_compute_as_their_caller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
