/* invariant=8 on the GPU: the bits of a row depend on the row and the weight alone, not on
 * W = 1, 2, 4 or 8, on the operation, the schedule or m.  Random inputs, whose sums depend
 * on their order.  What 8 ranks give without the key is the definition.
 * The CPU's counterpart is test_invariant.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu_check.h"
#include "gpukit.h"
#include "random_inputs.h"

enum { S = 8, CALLS = 6, SEEDS_PER_WORLD = 32 };
enum { MOST_ROWS = 700, MOST_COLS = 700, MOST_PIECE = 264, MOST_K = S * MOST_PIECE };

#define PICK(random, list) \
    (list)[harness_between(random, 0, (int64_t)(sizeof(list) / sizeof(list)[0]) - 1)]

/* ---- What a seed stands for ---- */

/* What all jobs of a seed share.  A and B are [piece][row][piece_k]. */
typedef struct inputs {
    uint32_t seed;
    ew_dtype dtype;
    int64_t rows, n, piece_k;
    int64_t calls[CALLS]; /* rows of each, from the first on */
    bool has_epilogue;
    const char *kernel; /* another one may give other bits */
    uint16_t *A, *B, *bias, *norm_weight, *residual;
    uint64_t want[2][MOST_ROWS]; /* digests of the rows of C or normed, and of residual */
} inputs;

static uint16_t *filled(const inputs *in, int which, int64_t rows, int64_t cols)
{
    uint16_t *matrix = malloc((size_t)(rows * cols) * sizeof *matrix + 1);
    if (!matrix)
        harness_fail("no memory");
    fill_random(in->dtype, in->seed, which, OPERAND_A, rows, cols, matrix);
    return matrix;
}

/* Sums of eight 16-bit numbers are exact in fp32, in any order, as long as the numbers are
 * of one magnitude.  So the second piece is made large, and the second but last cancels it:
 * what the pieces in between lose beside it tells the order. */
static void cancel_pieces(const inputs *in)
{
    const float scale = in->dtype == EW_FP16 ? 0x1p10f : 0x1p14f;
    const int64_t size_a = in->rows * in->piece_k, size_b = in->n * in->piece_k;
    for (int64_t i = 0; i < size_a; i++) {
        const float value = scale * element_get(in->dtype, in->A, size_a + i);
        element_put(in->dtype, in->A, size_a + i, value);
        element_put(in->dtype, in->A, (S - 2) * size_a + i, -value);
    }
    memcpy(in->B + (S - 2) * size_b, in->B + size_b, (size_t)size_b * sizeof *in->B);
}

/* Statement by statement: a seed means the same whatever the compiler. */
static void inputs_draw(uint32_t seed, inputs *in)
{
    static const int64_t most_depths[] = {4, MOST_PIECE / 8, MOST_PIECE / 8, 16};
    static const int64_t most_rows[] = {8, 140, MOST_ROWS};
    harness_random random = harness_seed(seed);
    *in = (inputs){.seed = seed};
    in->dtype = harness_between(&random, 0, 1) ? EW_FP16 : EW_BF16;
    in->rows = harness_between(&random, 1, PICK(&random, most_rows));
    in->n = 8 * harness_between(&random, 1, MOST_COLS / 8);
    in->piece_k = 8 * harness_between(&random, 1, PICK(&random, most_depths));
    in->calls[0] = in->rows;
    for (int call = 1; call < CALLS; call++)
        in->calls[call] = harness_between(&random, 0, in->rows);
    in->has_epilogue = harness_between(&random, 0, 2) == 0;
    const int64_t sm90 = harness_between(&random, 0, 2);
    in->kernel = sm90 > 0 && gpu_has_kernel(EW_KERNEL_SM90) ? "kernel=sm90" : "kernel=sm80";
    in->A = filled(in, 0, S * in->rows, in->piece_k);
    in->B = filled(in, 1, S * in->n, in->piece_k);
    cancel_pieces(in);
    in->bias = filled(in, 2, 1, in->n);
    in->norm_weight = filled(in, 3, 1, in->n);
    in->residual = filled(in, 4, in->rows, in->n);
}

static void inputs_free(inputs *in)
{
    void *const matrices[] = {in->A, in->B, in->bias, in->norm_weight, in->residual};
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
        free(matrices[i]);
}

/* ---- How it is computed ---- */

typedef struct job {
    inputs *in;
    ew_op op;
    ew_residual_rows residual_rows;
    char config[EW_CONFIG_TEXT_BYTES];
    bool differs; /* in a pass that counts */
    bool refused; /* what was drawn finds no room on this GPU */
} job;

static const char *draw_block(harness_random *random, const inputs *in)
{
    static const char *const sm80[] = {"block=128x128", "block=128x256"};
    static const char *const sm90[] = {"block=128x128,cluster=1", "block=128x128,cluster=2",
                                       "block=128x256,cluster=1",
                                       "block=128x256,cluster=2"};
    return strcmp(in->kernel, "kernel=sm90") == 0 ? PICK(random, sm90) : PICK(random, sm80);
}

static void draw_schedule(harness_random *random, job *j)
{
    static const char *const orders[] = {"interleaved", "default", "contiguous"};
    static const char *const releases[] = {"tile", "3", "partition", "output"};
    static const char *const pools[] = {
        "pool=shared,ctas=persistent", "pool=shared,ctas=block", "pool=after,ctas=block",
        "pool=after,ctas=persistent", "pool=static,ctas=persistent"};
    static const char *const ways[] = {"transport=pull", "transport=push", "epilogue=fused",
                                       "epilogue=separate"};
    static const char *const shots[] = {"shots=1", "shots=2"};
    static const int threads[] = {128, 256, 512};
    const char *block = draw_block(random, j->in);
    const bool reduces_to_all = j->op == EW_OP_GEMM_AR;
    const char *way = reduces_to_all ? PICK(random, shots) : PICK(random, ways);
    const char *order = PICK(random, orders), *release = PICK(random, releases);
    const char *pool = PICK(random, pools);
    if (!reduces_to_all && harness_between(random, 0, 7) == 0)
        snprintf(j->config, sizeof j->config, "%s,%s,transport=copy,invariant=%d",
                 j->in->kernel, block, S);
    else
        snprintf(j->config, sizeof j->config,
                 "%s,%s,%s,order=%s,release=%s,%s,b=%d,invariant=%d", j->in->kernel, block,
                 way, order, release, pool, PICK(random, threads), S);
}

static void draw_job(int num_ranks, job *j)
{
    harness_random random = harness_seed((uint64_t)j->in->seed << 8 | (uint64_t)num_ranks);
    j->op = harness_between(&random, 0, 1) ? EW_OP_GEMM_AR : EW_OP_GEMM_RS;
    j->residual_rows = EW_RESIDUAL_OWNED;
    if (j->op == EW_OP_GEMM_AR && harness_between(&random, 0, 1))
        j->residual_rows = EW_RESIDUAL_ALL;
    draw_schedule(&random, j);
}

/* Without the key. */
static void plain_job(job *j)
{
    j->op = EW_OP_GEMM_RS;
    j->residual_rows = EW_RESIDUAL_OWNED;
    snprintf(j->config, sizeof j->config, "%s", j->in->kernel);
}

/* ---- A rank ---- */

typedef enum purpose { DEFINES, COMPARES, COUNTS } purpose;

typedef struct stand {
    ew_world *world;
    int rank, num_ranks;
    ew_plan *plan;
    void *A, *B, *out, *residual, *bias, *norm_weight; /* on the GPU */
    uint16_t *staging;
} stand;

static int stand_open(ew_world *world, stand *s)
{
    enum { MOST = MOST_ROWS > MOST_COLS ? MOST_ROWS : MOST_COLS };
    const size_t k_bytes = 2 * (size_t)(MOST_K / ew_world_size(world));
    *s = (stand){
        .world = world, .rank = ew_world_rank(world), .num_ranks = ew_world_size(world)};
    s->staging = malloc(2 * (size_t)MOST * (MOST_K > MOST_COLS ? MOST_K : MOST_COLS));
    RANK_CHECK(s->staging, "no memory");
    const struct {
        void **to;
        size_t bytes;
    } matrices[] = {{&s->A, MOST_ROWS * k_bytes},
                    {&s->B, MOST_COLS * k_bytes},
                    {&s->out, 2 * (size_t)MOST_ROWS * MOST_COLS},
                    {&s->residual, 2 * (size_t)MOST_ROWS * MOST_COLS},
                    {&s->bias, 2 * (size_t)MOST_COLS},
                    {&s->norm_weight, 2 * (size_t)MOST_COLS}};
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
        RANK_OK(ew_memory_alloc(world, EW_BACKEND_CUDA, matrices[i].bytes, matrices[i].to));
    return 0;
}

static void stand_close(stand *s)
{
    void *const matrices[] = {s->A, s->B, s->out, s->residual, s->bias, s->norm_weight};
    for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
        ew_memory_free(s->world, EW_BACKEND_CUDA, matrices[i]);
    free(s->staging);
}

/* This rank's pieces of A or B, side by side. */
static int put_operand(stand *s, const inputs *in, const uint16_t *pieces, int64_t rows,
                       void *to)
{
    ew_world *world = s->world;
    const int64_t count = S / s->num_ranks, k = count * in->piece_k;
    for (int64_t piece = 0; piece < count; piece++)
        for (int64_t row = 0; row < rows; row++)
            memcpy(s->staging + row * k + piece * in->piece_k,
                   pieces + ((s->rank * count + piece) * rows + row) * in->piece_k,
                   (size_t)in->piece_k * 2);
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, to, s->staging, (size_t)(rows * k) * 2));
    return 0;
}

static int put(stand *s, void *to, const uint16_t *from, int64_t elements)
{
    ew_world *world = s->world;
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, to, from, (size_t)elements * 2));
    return 0;
}

static char refusal[HARNESS_TEXT_BYTES]; /* the last one's reason */

/* On all ranks alike; only of what was drawn. */
static bool is_refusal(const stand *s, job *j, purpose why, ew_status status)
{
    const bool refused =
        why == COMPARES && (status == EW_ERR_CONFIG || status == EW_ERR_UNSUPPORTED);
    if (refused && s->rank == 0) {
        j->refused = true;
        snprintf(refusal, sizeof refusal, "W=%d %s: %s", s->num_ranks, j->config,
                 ew_last_error());
    }
    return refused;
}

static int open_plan(stand *s, job *j, purpose why)
{
    ew_world *world = s->world;
    const inputs *in = j->in;
    ew_problem problem =
        gpu_problem(in->rows, in->n, S / s->num_ranks * in->piece_k, in->dtype);
    ew_config config = EW_CONFIG_INIT;
    problem.op = j->op;
    RANK_OK(ew_config_parse(j->config, &config));
    config.backend = EW_BACKEND_CUDA;
    const ew_status created = ew_plan_create(world, &problem, &config, &s->plan);
    if (is_refusal(s, j, why, created))
        return 0;
    RANK_OK(created);
    RANK_TRY(put_operand(s, in, in->A, in->rows, s->A));
    RANK_TRY(put_operand(s, in, in->B, in->n, s->B));
    RANK_TRY(put(s, s->bias, in->bias, in->n));
    return put(s, s->norm_weight, in->norm_weight, in->n);
}

/* The rows from first on that a matrix of this rank has. */
typedef struct rows {
    int64_t first, count;
} rows;

static rows rows_of(const stand *s, int64_t m, bool all)
{
    rows own = {0, m};
    if (!all && ew_owned_rows(m, s->num_ranks, s->rank, &own.first, &own.count) != EW_OK)
        abort();
    return own;
}

static ew_status call(stand *s, const job *j, int64_t m)
{
    const bool to_all = j->op == EW_OP_GEMM_AR;
    if (!j->in->has_epilogue)
        return (to_all ? ew_gemm_ar : ew_gemm_rs)(s->plan, m, s->A, s->B, s->out, NULL);
    ew_epilogue epilogue = EW_EPILOGUE_INIT;
    epilogue.bias = s->bias;
    epilogue.residual = s->residual;
    epilogue.norm_weight = s->norm_weight;
    epilogue.normed = s->out;
    epilogue.residual_rows = j->residual_rows;
    return (to_all ? ew_gemm_ar_layer : ew_gemm_rs_layer)(s->plan, m, s->A, s->B, NULL,
                                                          &epilogue, NULL);
}

/* ---- Digests ---- */

static uint64_t digest_of(const uint16_t *row, int64_t n)
{
    uint64_t digest = 0x9e3779b97f4a7c15u;
    for (int64_t i = 0; i < n; i++) {
        digest = (digest ^ row[i]) * 0x100000001b3u;
        digest ^= digest >> 29;
    }
    return digest;
}

static int judge(stand *s, job *j, purpose why, int64_t m, int which, const void *matrix,
                 rows there)
{
    ew_world *world = s->world;
    const int64_t n = j->in->n;
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, s->staging, matrix,
                           (size_t)(there.count * n) * 2));
    for (int64_t row = 0; row < there.count; row++) {
        uint64_t *want = &j->in->want[which][there.first + row];
        const uint64_t found = digest_of(s->staging + row * n, n);
        if (why == DEFINES)
            *want = found;
        else if (why == COUNTS && found != *want)
            __atomic_store_n(&j->differs, true, __ATOMIC_RELAXED);
        RANK_CHECK(why != COMPARES || found == *want,
                   "m=%lld: row %lld of %s has other bits than at W=%d without invariant",
                   (long long)m, (long long)(there.first + row),
                   which                 ? "the residual"
                   : j->in->has_epilogue ? "normed"
                                         : "C",
                   S);
    }
    return 0;
}

static int call_and_judge(stand *s, job *j, purpose why, int64_t m)
{
    ew_world *world = s->world;
    const bool to_all = j->op == EW_OP_GEMM_AR;
    const rows sums = rows_of(s, m, to_all);
    const rows kept = rows_of(s, m, j->residual_rows == EW_RESIDUAL_ALL);
    const int64_t n = j->in->n;
    RANK_TRY(put(s, s->residual, j->in->residual + kept.first * n, kept.count * n));
    RANK_OK(
        ew_memory_fill(world, EW_BACKEND_CUDA, s->out, 0xff, (size_t)(sums.count * n) * 2));
    RANK_OK(ew_world_barrier(world));
    const ew_status called = call(s, j, m);
    if (is_refusal(s, j, why, called))
        return 0;
    RANK_OK(called);
    RANK_OK(ew_plan_wait(s->plan));
    RANK_TRY(judge(s, j, why, m, 0, s->out, sums));
    return j->in->has_epilogue ? judge(s, j, why, m, 1, s->residual, kept) : 0;
}

/* ---- Seeds in one world ---- */

typedef struct pass {
    purpose why;
    int count;
    job jobs[SEEDS_PER_WORLD];
} pass;

static int run_job(stand *s, job *j, purpose why)
{
    const inputs *in = j->in;
    harness_context("seed %u: W=%d %s%s%s rows=%lld N=%lld K=%d*%lld %s %s", in->seed,
                    s->num_ranks, ew_op_name(j->op), in->has_epilogue ? " layer" : "",
                    j->residual_rows == EW_RESIDUAL_ALL ? " residual on all" : "",
                    (long long)in->rows, (long long)in->n, S, (long long)in->piece_k,
                    ew_dtype_name(in->dtype), j->config);
    RANK_TRY(open_plan(s, j, why));
    for (int i = 0; s->plan && i < (why == COMPARES ? CALLS : 1); i++)
        RANK_TRY(call_and_judge(s, j, why, in->calls[i]));
    ew_plan_destroy(s->plan);
    s->plan = NULL;
    return 0;
}

static int run_jobs(ew_world *world, void *argument)
{
    pass *p = argument;
    stand s;
    RANK_TRY(stand_open(world, &s));
    int failed = 0;
    for (int i = 0; i < p->count && !failed; i++)
        failed = run_job(&s, &p->jobs[i], p->why);
    if (failed)
        ew_world_abort(world);
    ew_plan_destroy(s.plan);
    stand_close(&s);
    return failed;
}

static void run_pass(pass *p, purpose why, int num_ranks)
{
    const ew_world_options options = gpu_options(10000);
    p->why = why;
    for (int i = 0; i < p->count; i++)
        if (why == COMPARES)
            draw_job(num_ranks, &p->jobs[i]);
        else
            plain_job(&p->jobs[i]);
    harness_run_with(EW_RANKS_AS_THREADS, num_ranks, &options, run_jobs, p);
}

/* ---- The check ---- */

typedef struct tally {
    int64_t shapes, refused;
    int64_t asked, other_bits; /* seeds at W=2 without the key, and those that differed */
    uint64_t digest;           /* of all rows */
} tally;

static void compare_seeds(uint32_t first, int count, tally *t)
{
    static inputs in[SEEDS_PER_WORLD];
    static pass p;
    p = (pass){.count = count};
    for (int i = 0; i < count; i++) {
        inputs_draw(first + (uint32_t)i, &in[i]);
        p.jobs[i].in = &in[i];
    }
    run_pass(&p, DEFINES, S);
    for (int W = 1; W <= S; W *= 2) {
        run_pass(&p, COMPARES, W);
        for (int i = 0; i < count; i++) {
            t->refused += p.jobs[i].refused;
            p.jobs[i].refused = false;
        }
    }
    if (t->asked == 0)
        run_pass(&p, COUNTS, 2);
    t->asked += t->asked == 0 ? count : 0;
    for (int i = 0; i < count; i++) {
        for (int64_t row = 0; row < in[i].rows; row++)
            t->digest = (t->digest ^ in[i].want[0][row]) * 0x100000001b3u;
        t->other_bits += p.jobs[i].differs;
        t->shapes += CALLS;
        inputs_free(&in[i]);
    }
}

void check_invariant(void)
{
    if (gpu_here.sms < 8 * S)
        gpu_skip("%d SMs are too few for %d ranks", gpu_here.sms, S);
    const uint32_t usual = gpu_long ? 1000 : gpu_quick ? 16 : 64;
    const uint32_t count = gpu_count ? gpu_count : usual;
    const int64_t start_ns = ew_now_ns();
    tally t = {0};
    for (uint32_t done = 0; done < count; done += SEEDS_PER_WORLD) {
        const uint32_t left = count - done;
        compare_seeds(gpu_seed + done, left < SEEDS_PER_WORLD ? (int)left : SEEDS_PER_WORLD,
                      &t);
    }
    gpu_remark(
        "%u seeds from %u, %lld shapes at each W, %.1f s: digest %016llx at W=1, 2, 4 "
        "and 8\nwithout the key W=2 has other bits for %lld of %lld seeds; %lld plans of "
        "%u were refused",
        count, gpu_seed, (long long)t.shapes, (double)(ew_now_ns() - start_ns) * 1e-9,
        (unsigned long long)t.digest, (long long)t.other_bits, (long long)t.asked,
        (long long)t.refused, 4 * count);
    if (2 * t.other_bits < t.asked)
        harness_fail("inputs whose sums do not show their order");
    if (10 * t.refused > 4 * (int64_t)count)
        harness_fail("too many plans were refused, at last %s", refusal);
}
