/* "The bits of a row of C depend on the row, the weight and invariant=S alone": not on W,
 * on the operation, the schedule, m, or the row's place.  Random inputs, whose sums depend
 * on their order in the last bits.  What W=S ranks give without `invariant` is the
 * definition, and every smaller W must give the same. */
#include "harness.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <stdarg.h>
#include <setjmp.h>
#include <cmocka.h>

#include "random_inputs.h"
#include "stress.h"

#define COUNT(list) ((int)(sizeof(list) / sizeof(list)[0]))
enum { USUAL_SEEDS = 120, USUAL_BATCHES = 24, S = 8 };

/* ---- A job: one call on W ranks ---- */

/* What all jobs of a comparison share.  K is that of all ranks together. */
typedef struct inputs {
    ew_dtype dtype;
    int64_t rows, n, K;
    bool has_epilogue;
    void *A, *B, *bias, *residual, *norm_weight;
} inputs;

/* As rows of the whole, wherever they were computed. */
typedef struct outputs {
    unsigned char *c, *normed, *residual;
} outputs;

typedef struct job {
    const inputs *in;
    outputs out;
    ew_op op;
    ew_residual_rows residual_rows;
    ew_config config;
    ew_ranks_as kind;
    double link_gbps;
    int num_ranks;
    int64_t m;
    const int64_t *order; /* row i of the call is row order[i] of A; NULL: row i */
    ew_weight_layout layout;
    enum { SET, PASSED, BOUND } binding;
} job;

static size_t elem_of(const job *j)
{
    return ew_dtype_bytes(j->in->dtype);
}

static size_t row_bytes(const job *j)
{
    return (size_t)j->in->n * elem_of(j);
}

/* A rank's columns of A and of B. */
static void cut_a(const job *j, int rank, unsigned char *A)
{
    const int64_t k = j->in->K / j->num_ranks;
    const size_t elem = elem_of(j);
    for (int64_t i = 0; i < j->m; i++) {
        const int64_t row = j->order ? j->order[i] : i;
        memcpy(A + (size_t)(i * k) * elem,
               (char *)j->in->A + (size_t)(row * j->in->K + rank * k) * elem,
               (size_t)k * elem);
    }
}

static void cut_b(const job *j, int rank, unsigned char *B)
{
    const int64_t k = j->in->K / j->num_ranks, n = j->in->n;
    const size_t elem = elem_of(j);
    for (int64_t col = 0; col < n; col++)
        for (int64_t at = 0; at < k; at++) {
            const int64_t place = j->layout == EW_WEIGHT_NK ? col * k + at : at * n + col;
            memcpy(B + (size_t)place * elem,
                   (char *)j->in->B + (size_t)(col * j->in->K + rank * k + at) * elem,
                   elem);
        }
}

/* ---- A rank ---- */

typedef struct stand {
    ew_plan *plan;
    ew_weight *weight;
    unsigned char *A, *B, *C, *normed, *residual;
    int64_t first, owned;  /* the rank's rows */
    int64_t row, rows;     /* of C and normed */
    int64_t h_row, h_rows; /* of the residual */
} stand;

static int stand_open(ew_world *world, const job *j, stand *s)
{
    const int rank = ew_world_rank(world);
    const size_t row = row_bytes(j);
    ew_problem problem = EW_PROBLEM(j->m, j->in->n, j->in->K / j->num_ranks, j->in->dtype);
    problem.op = j->op;
    problem.weight_layout = j->layout;
    RANK_OK(ew_owned_rows(j->m, j->num_ranks, rank, &s->first, &s->owned));
    const bool whole = j->op == EW_OP_GEMM_AR;
    s->row = whole ? 0 : s->first;
    s->rows = whole ? j->m : s->owned;
    s->h_row = j->residual_rows == EW_RESIDUAL_ALL ? 0 : s->first;
    s->h_rows = j->residual_rows == EW_RESIDUAL_ALL ? j->m : s->owned;
    s->A = malloc((size_t)(j->m * problem.k) * elem_of(j) + 1);
    s->B = malloc((size_t)(j->in->n * problem.k) * elem_of(j));
    s->C = malloc((size_t)s->rows * row + 1);
    s->normed = malloc((size_t)s->rows * row + 1);
    s->residual = malloc((size_t)s->h_rows * row + 1);
    RANK_CHECK(s->A && s->B && s->C && s->normed && s->residual, "no memory");
    memset(s->C, 0xff, (size_t)s->rows * row);
    memset(s->normed, 0xff, (size_t)s->rows * row);
    cut_a(j, rank, s->A);
    cut_b(j, rank, s->B);
    RANK_OK(ew_plan_create(world, &problem, &j->config, &s->plan));
    if (j->binding == BOUND) {
        RANK_OK(ew_weight_create(world, &problem, &j->config, s->B, &s->weight));
        RANK_OK(ew_plan_bind_weight(s->plan, s->weight));
    } else if (j->binding == SET) {
        RANK_OK(ew_plan_set_weight(s->plan, s->B));
    }
    return 0;
}

static void stand_close(stand *s)
{
    ew_plan_destroy(s->plan);
    ew_weight_destroy(s->weight);
    free(s->A);
    free(s->B);
    free(s->C);
    free(s->normed);
    free(s->residual);
}

static ew_status call(const job *j, stand *s)
{
    const void *B = j->binding == PASSED ? s->B : NULL;
    const bool whole = j->op == EW_OP_GEMM_AR;
    if (!j->in->has_epilogue)
        return whole ? ew_gemm_ar(s->plan, j->m, s->A, B, s->C, NULL)
                     : ew_gemm_rs(s->plan, j->m, s->A, B, s->C, NULL);
    ew_epilogue epilogue = EW_EPILOGUE_INIT;
    const size_t row = row_bytes(j);
    memcpy(s->residual, (char *)j->in->residual + (size_t)s->h_row * row,
           (size_t)s->h_rows * row);
    epilogue.bias = j->in->bias;
    epilogue.residual = s->residual;
    epilogue.norm_weight = j->in->norm_weight;
    epilogue.normed = s->normed;
    epilogue.residual_rows = whole ? j->residual_rows : EW_RESIDUAL_OWNED;
    return whole ? ew_gemm_ar_layer(s->plan, j->m, s->A, B, NULL, &epilogue, NULL)
                 : ew_gemm_rs_layer(s->plan, j->m, s->A, B, NULL, &epilogue, NULL);
}

/* Where a matrix has rows from `first` on, those of this rank. */
static void give(const job *j, const stand *s, const unsigned char *from, int64_t first,
                 unsigned char *to)
{
    const size_t row = row_bytes(j);
    memcpy(to + (size_t)s->first * row, from + (size_t)(s->first - first) * row,
           (size_t)s->owned * row);
}

static int compute(ew_world *world, void *argument)
{
    const job *j = argument;
    stand s = {0};
    RANK_TRY(stand_open(world, j, &s));
    RANK_OK(call(j, &s));
    const unsigned char *sum = j->in->has_epilogue ? s.normed : s.C;
    unsigned char *whole = j->in->has_epilogue ? j->out.normed : j->out.c;
    give(j, &s, sum, s.row, whole);
    if (j->in->has_epilogue)
        give(j, &s, s.residual, s.h_row, j->out.residual);
    RANK_OK(ew_world_barrier(world));
    RANK_CHECK(memcmp(sum, whole + (size_t)s.row * row_bytes(j),
                      (size_t)s.rows * row_bytes(j)) == 0,
               "ranks have different bits");
    stand_close(&s);
    return 0;
}

static void run(job *j, const char *what)
{
    char text[EW_CONFIG_TEXT_BYTES];
    ew_config_print(&j->config, text, sizeof text);
    harness_context("%s: W=%d %s%s%s m=%lld N=%lld K=%lld %s %s %s", what, j->num_ranks,
                    ew_op_name(j->op), j->in->has_epilogue ? " layer" : "",
                    j->residual_rows == EW_RESIDUAL_ALL ? " residual on all" : "",
                    (long long)j->m, (long long)j->in->n, (long long)j->in->K,
                    ew_dtype_name(j->in->dtype),
                    j->kind == EW_RANKS_AS_THREADS ? "threads" : "processes", text);
    ew_world_options options = EW_WORLD_OPTIONS_INIT;
    options.link_gbps = j->link_gbps;
    harness_run_with(j->kind, j->num_ranks, &options, compute, j);
}

/* ---- Inputs and outputs ---- */

static size_t whole_bytes(const inputs *in)
{
    return (size_t)(in->rows * in->n) * ew_dtype_bytes(in->dtype) + 1;
}

static void *filled(const inputs *in, uint64_t seed, int which, int64_t rows, int64_t cols)
{
    void *matrix = malloc((size_t)(rows * cols) * ew_dtype_bytes(in->dtype) + 1);
    assert_non_null(matrix);
    fill_random(in->dtype, seed, which, OPERAND_A, rows, cols, matrix);
    return matrix;
}

static void inputs_fill(inputs *in, uint64_t seed)
{
    in->A = filled(in, seed, 0, in->rows, in->K);
    in->B = filled(in, seed, 1, in->n, in->K);
    in->bias = filled(in, seed, 2, 1, in->n);
    in->norm_weight = filled(in, seed, 3, 1, in->n);
    in->residual = filled(in, seed, 4, in->rows, in->n);
}

static void inputs_free(inputs *in)
{
    free(in->A);
    free(in->B);
    free(in->bias);
    free(in->norm_weight);
    free(in->residual);
}

static outputs outputs_share(const inputs *in)
{
    return (outputs){harness_share(whole_bytes(in)), harness_share(whole_bytes(in)),
                     harness_share(whole_bytes(in))};
}

static void outputs_unshare(const inputs *in, outputs *out)
{
    harness_unshare(out->c, whole_bytes(in));
    harness_unshare(out->normed, whole_bytes(in));
    harness_unshare(out->residual, whole_bytes(in));
}

static void outputs_clear(const inputs *in, outputs *out)
{
    memset(out->c, 0, whole_bytes(in));
    memset(out->normed, 0, whole_bytes(in));
    memset(out->residual, 0, whole_bytes(in));
}

static bool equal(const inputs *in, const outputs *x, const outputs *y)
{
    const size_t bytes = whole_bytes(in);
    return memcmp(x->c, y->c, bytes) == 0 && memcmp(x->normed, y->normed, bytes) == 0 &&
           memcmp(x->residual, y->residual, bytes) == 0;
}

/* ---- Any schedule ---- */

static void choose_schedule(harness_random *random, job *j)
{
    static const int32_t releases[] = {0, 1, 3, EW_RELEASE_PARTITION, EW_RELEASE_OUTPUT};
    static const int32_t sides[] = {0, 128, 256};
    ew_config *config = &j->config;
    config->workers = (int32_t)harness_between(random, 1, 3);
    config->order = (ew_order)harness_between(random, 0, 3);
    config->release = releases[harness_between(random, 0, COUNT(releases) - 1)];
    config->block_m = config->block_n = sides[harness_between(random, 0, COUNT(sides) - 1)];
    config->group = (int32_t)harness_between(random, 0, 2);
    config->batch = (int32_t)harness_between(random, 0, 2);
    if (config->workers > 1 && harness_between(random, 0, 3) == 0)
        config->pool = EW_POOL_STATIC;
    j->op = (ew_op)harness_between(random, EW_OP_GEMM_RS, EW_OP_GEMM_AR);
    j->residual_rows = EW_RESIDUAL_OWNED;
    if (j->op == EW_OP_GEMM_AR) {
        config->shots = (int32_t)harness_between(random, 0, 2);
        j->residual_rows = (ew_residual_rows)harness_between(random, 0, 1);
    }
    if (j->in->has_epilogue)
        config->epilogue = (ew_epilogue_form)harness_between(random, 0, 3);
    j->layout = (ew_weight_layout)harness_between(random, EW_WEIGHT_NK, EW_WEIGHT_KN);
    j->binding = (int)harness_between(random, SET, BOUND);
    j->link_gbps = harness_between(random, 0, 5) ? 0.0 : 20.0;
    j->kind = harness_between(random, 0, 5) ? EW_RANKS_AS_THREADS : EW_RANKS_AS_PROCESSES;
}

static job plain_job(const inputs *in, outputs out, int num_ranks)
{
    job j = {.in = in,
             .out = out,
             .op = EW_OP_GEMM_RS,
             .config = EW_CONFIG_INIT,
             .kind = EW_RANKS_AS_THREADS,
             .num_ranks = num_ranks,
             .m = in->rows,
             .layout = EW_WEIGHT_NK};
    j.config.workers = 1;
    return j;
}

/* ---- The same bits at every W ---- */

/* Tiny, usual or deep enough for several chunks of the GEMM. */
static inputs random_inputs_of(harness_random *random)
{
    static const int64_t depths[] = {3, 40, 40, 40, 400};
    const int64_t depth =
        harness_between(random, 1, depths[harness_between(random, 0, COUNT(depths) - 1)]);
    return (inputs){.dtype = (ew_dtype)harness_between(random, EW_FP32, EW_FP16),
                    .rows = harness_between(random, 0, depth > 40 ? 40 : 300),
                    .n = harness_between(random, 1, depth > 40 ? 140 : 300),
                    .K = S * depth,
                    .has_epilogue = harness_between(random, 0, 2) == 0};
}

typedef struct tally {
    int64_t seeds, calls;
    int64_t other_bits; /* jobs of another W without `invariant` that gave other bits */
} tally;

static void compare_every_w(uint64_t seed, tally *t)
{
    harness_random random = harness_seed(seed);
    inputs in = random_inputs_of(&random);
    inputs_fill(&in, seed);
    outputs want = outputs_share(&in), got = outputs_share(&in);
    job definition = plain_job(&in, want, S);
    run(&definition, "definition");
    for (int W = 1; W <= S; W *= 2) {
        job j = plain_job(&in, got, W);
        choose_schedule(&random, &j);
        j.config.invariant = S;
        outputs_clear(&in, &got);
        run(&j, "invariant");
        if (!equal(&in, &want, &got))
            fail_msg("seed %llu: W=%d gives other bits than W=%d", (unsigned long long)seed,
                     W, S);
        t->calls++;
    }
    job other = plain_job(&in, got, 2);
    run(&other, "not invariant");
    t->other_bits += !equal(&in, &want, &got);
    t->seeds++;
    outputs_unshare(&in, &want);
    outputs_unshare(&in, &got);
    inputs_free(&in);
}

static void every_w_gives_the_same_bits(void **state)
{
    (void)state;
    const uint64_t first = (uint64_t)stress_count("SEED", 1);
    const uint64_t count = (uint64_t)stress_count("INVARIANT_SEEDS", USUAL_SEEDS);
    tally t = {0};
    for (uint64_t seed = first; seed < first + count; seed++)
        compare_every_w(seed, &t);
    stress_tell("seeds", "%lld", (long long)t.seeds);
    stress_tell("calls", "%lld", (long long)t.calls);
    stress_tell("other_bits_without", "%lld", (long long)t.other_bits);
    stress_figure("invariant");
    assert_true(2 * t.other_bits > t.seeds); /* so the inputs can show a difference */
}

/* Every W that divides S, and S of several sizes. */
static void any_count_of_pieces(void **state)
{
    (void)state;
    for (int pieces = 1; pieces <= 12; pieces++) {
        inputs in = {.dtype = (ew_dtype)(EW_FP32 + pieces % 3),
                     .rows = 37,
                     .n = 141,
                     .K = pieces * 13};
        inputs_fill(&in, (uint64_t)pieces);
        outputs want = outputs_share(&in), got = outputs_share(&in);
        job definition = plain_job(&in, want, pieces);
        run(&definition, "definition");
        for (int W = 1; W <= pieces; W++) {
            if (pieces % W)
                continue;
            job j = plain_job(&in, got, W);
            j.config.invariant = pieces;
            run(&j, "invariant");
            assert_true(equal(&in, &want, &got));
        }
        outputs_unshare(&in, &want);
        outputs_unshare(&in, &got);
        inputs_free(&in);
    }
}

/* ---- A row's bits do not depend on m or on its place ---- */

static void scatter_rows(harness_random *random, const inputs *in, job *j, int64_t *order)
{
    j->m = harness_between(random, 1, 300);
    for (int64_t i = 0; i < j->m; i++)
        order[i] = harness_between(random, 0, in->rows - 1);
    j->order = order;
}

static void compare_rows(const job *j, const outputs *want, const outputs *got)
{
    const size_t row = row_bytes(j);
    for (int64_t i = 0; i < j->m; i++)
        if (memcmp(got->c + (size_t)i * row, want->c + (size_t)j->order[i] * row, row) != 0)
            fail_msg("W=%d %s: row %lld of %lld has other bits than alone", j->num_ranks,
                     ew_dtype_name(j->in->dtype), (long long)i, (long long)j->m);
}

static void compare_batches(uint64_t seed)
{
    enum { ROWS = 5, MOST = 300 };
    static const int ranks[] = {1, 2, 4};
    harness_random random = harness_seed(seed);
    inputs in = random_inputs_of(&random);
    in.rows = ROWS;
    in.has_epilogue = false;
    inputs_fill(&in, seed);
    const int W = ranks[seed % COUNT(ranks)];
    const int32_t invariant = seed % 2 ? S : 0;
    inputs room = in;
    room.rows = MOST;
    outputs want = outputs_share(&room), got = outputs_share(&room);
    int64_t order[MOST];
    for (int64_t row = 0; row < ROWS; row++) {
        job alone = plain_job(&in, want, W);
        alone.m = 1;
        alone.order = &row;
        alone.config.invariant = invariant;
        alone.out.c = want.c + (size_t)row * row_bytes(&alone);
        run(&alone, "a row alone");
    }
    for (int batch = 0; batch < 4; batch++) {
        job j = plain_job(&in, got, W);
        choose_schedule(&random, &j);
        j.config.invariant = invariant;
        scatter_rows(&random, &in, &j, order);
        run(&j, "a row among others");
        compare_rows(&j, &want, &got);
    }
    outputs_unshare(&room, &want);
    outputs_unshare(&room, &got);
    inputs_free(&in);
}

static void a_row_has_its_bits_alone_or_among_others(void **state)
{
    (void)state;
    const uint64_t first = (uint64_t)stress_count("SEED", 1);
    const uint64_t count = (uint64_t)stress_count("BATCH_SEEDS", USUAL_BATCHES);
    for (uint64_t seed = first; seed < first + count; seed++)
        compare_batches(seed);
    stress_tell("seeds", "%llu", (unsigned long long)count);
    stress_figure("batches");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_w_gives_the_same_bits),
        cmocka_unit_test(any_count_of_pieces),
        cmocka_unit_test(a_row_has_its_bits_alone_or_among_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
