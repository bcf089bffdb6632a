/* Several weights on one gather, on the GPU: the bits of a call for each, activations with
 * the bits of one that comes afterwards, for every gate there is, in graphs and in calls
 * that follow each other. */
#include <stdlib.h>
#include <string.h>

#include "backend/cpu/activation.h"
#include "gpu_check.h"
#include "gpukit.h"
#include "plan/grid.h"

#define COUNT(list) ((int)(sizeof(list) / sizeof(list)[0]))
enum { POISON = 0xff };

/* ---- A rank's operands ---- */

typedef struct widths {
    int count;
    int64_t n[EW_MAX_PRODUCTS];
} widths;

static int64_t sum_of(const widths *w)
{
    int64_t n = 0;
    for (int i = 0; i < w->count; i++)
        n += w->n[i];
    return n;
}

static bool is_activated(const widths *w)
{
    return w->count == 1 || (w->count == 2 && w->n[0] == w->n[1]);
}

/* The weights lie one behind the other in the job's B, and so do the products in its C. */
typedef struct operands {
    const widths *w;
    int64_t m;
    const void *mine;    /* rows of A, which is the same on all ranks */
    unsigned char *want; /* of all products, on the host */
    size_t bytes;        /* of all products */
    void *gathered, *activated;
    ew_weight *weights[EW_MAX_PRODUCTS]; /* packed */
} operands;

static ew_config cuda_config(void)
{
    ew_config config = EW_CONFIG_INIT;
    config.backend = EW_BACKEND_CUDA;
    return config;
}

static int fill_random(gpu_job *job)
{
    ew_world *world = job->world;
    const ew_problem *p = &job->problem;
    RANK_OK(ew_random_fill(p->dtype, 7, p->max_m * p->k, job->staging));
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, job->A, job->staging, job->a_bytes));
    RANK_OK(ew_random_fill(p->dtype, 100 + (uint32_t)job->rank, p->n * p->k, job->staging));
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, job->B, job->staging, job->b_bytes));
    return 0;
}

static unsigned char *weight_at(const gpu_job *job, const widths *w, int at)
{
    int64_t before = 0;
    for (int i = 0; i < at; i++)
        before += w->n[i];
    return (unsigned char *)job->B + (size_t)(before * job->problem.k) * 2;
}

static size_t product_offset(const operands *x, int at)
{
    int64_t before = 0;
    for (int i = 0; i < at; i++)
        before += x->w->n[i];
    return (size_t)(before * x->m) * 2;
}

static int find_rows(const gpu_job *job, int64_t m, const void **mine_out)
{
    ew_world *world = job->world;
    int64_t first, count;
    RANK_OK(ew_owned_rows(m, job->num_ranks, job->rank, &first, &count));
    *mine_out =
        count ? (unsigned char *)job->A + (size_t)(first * job->problem.k) * 2 : NULL;
    return 0;
}

/* Each weight in a plan and a call of its own. */
static int multiply_apart(gpu_job *job, const char *config, operands *x)
{
    ew_world *world = job->world;
    ew_config parsed = EW_CONFIG_INIT;
    RANK_OK(ew_config_parse(config, &parsed));
    parsed.backend = EW_BACKEND_CUDA;
    for (int i = 0; i < x->w->count; i++) {
        ew_problem alone = job->problem;
        ew_plan *plan;
        alone.n = x->w->n[i];
        RANK_OK(ew_plan_create(world, &alone, &parsed, &plan));
        RANK_OK(ew_world_barrier(world));
        RANK_OK(
            ew_ag_gemm(plan, x->m, x->mine, weight_at(job, x->w, i), job->C, NULL, NULL));
        RANK_OK(ew_plan_wait(plan));
        RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, x->want + product_offset(x, i),
                               job->C, (size_t)(x->m * alone.n) * 2));
        RANK_OK(ew_world_barrier(world));
        ew_plan_destroy(plan);
    }
    return 0;
}

static int pack_weights(gpu_job *job, operands *x)
{
    ew_world *world = job->world;
    const ew_config config = cuda_config();
    for (int i = 0; i < x->w->count; i++) {
        ew_problem alone = job->problem;
        alone.n = x->w->n[i];
        alone.max_m = 0;
        RANK_OK(ew_weight_create(world, &alone, &config, weight_at(job, x->w, i),
                                 &x->weights[i]));
    }
    return 0;
}

static int open_operands(gpu_job *job, const widths *w, int64_t m, const char *config,
                         operands *x)
{
    ew_world *world = job->world;
    *x = (operands){.w = w, .m = m, .bytes = (size_t)(m * job->problem.n) * 2};
    x->want = malloc(x->bytes + 1);
    RANK_CHECK(x->want, "no memory");
    RANK_TRY(find_rows(job, m, &x->mine));
    RANK_OK(ew_memory_alloc(world, EW_BACKEND_CUDA, job->a_bytes, &x->gathered));
    RANK_OK(ew_memory_alloc(world, EW_BACKEND_CUDA, job->c_bytes, &x->activated));
    RANK_TRY(multiply_apart(job, config, x));
    return pack_weights(job, x);
}

static void close_operands(gpu_job *job, operands *x)
{
    for (int i = 0; i < x->w->count; i++)
        ew_weight_destroy(x->weights[i]);
    ew_memory_free(job->world, EW_BACKEND_CUDA, x->gathered);
    ew_memory_free(job->world, EW_BACKEND_CUDA, x->activated);
    free(x->want);
}

/* ---- Bits ---- */

/* Weights that come with the call, packed ones, and some of each. */
typedef enum manner { PLAIN, PACKED, MIXED, NUM_MANNERS } manner;

static void make_products(const gpu_job *job, const operands *x, manner how,
                          ew_product *products)
{
    for (int i = 0; i < x->w->count; i++) {
        const bool packed = how == PACKED || (how == MIXED && i % 2 == 0);
        products[i] = (ew_product){.n = x->w->n[i],
                                   .B = packed ? NULL : weight_at(job, x->w, i),
                                   .weight = packed ? x->weights[i] : NULL,
                                   .C = (unsigned char *)job->C + product_offset(x, i)};
    }
}

/* How many bytes differ, and the first of them. */
static int compare(gpu_job *job, const void *there, const void *want, size_t bytes,
                   const char *what)
{
    ew_world *world = job->world;
    const unsigned char *got = job->staging, *expected = want;
    size_t wrong = 0, first = 0;
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, job->staging, there, bytes));
    for (size_t i = bytes; i-- > 0;)
        if (got[i] != expected[i]) {
            wrong++;
            first = i;
        }
    RANK_CHECK(wrong == 0, "%s: %zu of %zu bytes differ, the first at %zu", what, wrong,
               bytes, first);
    return 0;
}

static int check_poison(gpu_job *job, const void *there, size_t bytes, const char *what)
{
    ew_world *world = job->world;
    const unsigned char *got = job->staging;
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, job->staging, there, bytes));
    for (size_t i = 0; i < bytes; i++)
        RANK_CHECK(got[i] == POISON, "%s was written, at byte %zu", what, i);
    return 0;
}

static int multiply_at_once(gpu_job *job, const operands *x, manner how)
{
    ew_world *world = job->world;
    ew_product products[EW_MAX_PRODUCTS];
    const size_t rows_bytes = (size_t)(x->m * job->problem.k) * 2;
    char what[64];
    make_products(job, x, how, products);
    RANK_TRY(job_poison(job));
    RANK_OK(ew_memory_fill(world, EW_BACKEND_CUDA, x->gathered, POISON, rows_bytes));
    RANK_OK(ew_world_barrier(world));
    RANK_OK(ew_ag_gemm_multi(job->plan, x->m, x->mine, products, x->w->count,
                             how == MIXED ? x->gathered : NULL, NULL));
    RANK_OK(ew_plan_wait(job->plan));
    snprintf(what, sizeof what, "m=%d, manner %d, products", (int)x->m, (int)how);
    RANK_TRY(compare(job, job->C, x->want, x->bytes, what));
    RANK_TRY(check_poison(job, (unsigned char *)job->C + x->bytes, job->c_bytes - x->bytes,
                          "what lies behind the products"));
    if (how == MIXED) {
        unsigned char *rows = malloc(rows_bytes + 1);
        RANK_CHECK(rows, "no memory");
        RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, rows, job->A, rows_bytes));
        const int failed = compare(job, x->gathered, rows, rows_bytes, "gathered");
        free(rows);
        return failed;
    }
    return 0;
}

/* Of products on the host: what an activation that comes afterwards gives. */
static void activate_apart(ew_dtype dtype, ew_activation activation, int64_t m, int64_t n,
                           unsigned char *gate, unsigned char *up, unsigned char *result)
{
    for (int64_t col = 0; col < n; col += EWX_TILE_N) {
        const size_t offset = (size_t)col * 2;
        ewx_activate_tile(dtype, activation, m, ewx_min64(EWX_TILE_N, n - col),
                          (ewx_matrix_tile){gate + offset, n},
                          (ewx_matrix_tile){up ? up + offset : NULL, n},
                          (ewx_matrix_tile){result + offset, n});
    }
}

/* kept: which of gate (1) and up (2) is wanted besides. */
static int activate_at_once(gpu_job *job, const operands *x, ew_activation activation,
                            unsigned kept, unsigned char *want)
{
    ew_world *world = job->world;
    const int count = x->w->count;
    const int64_t n = x->w->n[0];
    const size_t bytes = (size_t)(x->m * n) * 2;
    ew_product products[EW_MAX_PRODUCTS];
    char what[64];
    make_products(job, x, kept % NUM_MANNERS, products);
    for (int i = 0; i < count; i++)
        products[i].C = kept & (1u << i) ? products[i].C : NULL;
    activate_apart(job->problem.dtype, activation, x->m, n, x->want,
                   count > 1 ? x->want + product_offset(x, 1) : NULL, want);
    RANK_TRY(job_poison(job));
    RANK_OK(ew_memory_fill(world, EW_BACKEND_CUDA, x->activated, POISON, job->c_bytes));
    RANK_OK(ew_world_barrier(world));
    RANK_OK(ew_ag_gemm_act(job->plan, x->m, x->mine, products, count, activation,
                           x->activated, NULL, NULL));
    RANK_OK(ew_plan_wait(job->plan));
    snprintf(what, sizeof what, "m=%d, %s, kept %u", (int)x->m,
             ew_activation_name(activation), kept);
    RANK_TRY(compare(job, x->activated, want, bytes, what));
    RANK_TRY(check_poison(job, (unsigned char *)x->activated + bytes, (size_t)n * 2,
                          "what lies behind the result"));
    for (int i = 0; i < count; i++) {
        const unsigned char *place = (unsigned char *)job->C + product_offset(x, i);
        RANK_TRY(kept & (1u << i)
                     ? compare(job, place, x->want + product_offset(x, i), bytes,
                               "a product that is kept")
                     : check_poison(job, place, bytes, "a product that is not wanted"));
    }
    return 0;
}

static int compare_activations(gpu_job *job, const operands *x)
{
    ew_world *world = job->world;
    unsigned char *want = malloc(x->bytes + 1);
    RANK_CHECK(want, "no memory");
    for (int activation = 0; activation <= EW_ACTIVATION_GELU_TANH; activation++)
        for (unsigned kept = 0; kept < 1u << x->w->count; kept++)
            RANK_TRY(activate_at_once(job, x, (ew_activation)activation, kept, want));
    free(want);
    return 0;
}

typedef struct trial {
    widths w;
    const char *config;
    bool is_small; /* few rows, and a short k */
    int64_t k;     /* 0: the usual one */
} trial;

static int compare_with_apart(gpu_job *job, void *argument)
{
    static const int64_t row_counts[] = {1, 7, 130, 515};
    const trial *t = argument;
    RANK_TRY(fill_random(job));
    for (int i = t->is_small ? 2 : 0; i < (t->is_small ? 3 : COUNT(row_counts)); i++) {
        operands x;
        RANK_TRY(open_operands(job, &t->w, row_counts[i], t->config, &x));
        for (int how = PLAIN; how < NUM_MANNERS; how++)
            RANK_TRY(multiply_at_once(job, &x, (manner)how));
        if (is_activated(&t->w))
            RANK_TRY(compare_activations(job, &x));
        close_operands(job, &x);
    }
    return 0;
}

static const widths shapes[] = {{3, {256, 128, 128}}, /* grouped keys */
                                {3, {136, 8, 72}},    {2, {200, 200}},
                                {1, {328}},           {2, {320, 320}},
                                {2, {8, 264}},        {8, {8, 16, 24, 32, 40, 48, 56, 64}}};

static void run_trial(int W, trial t, ew_dtype dtype, ew_weight_layout layout)
{
    const int64_t k = t.k ? t.k : t.is_small ? 136 : 1160;
    ew_problem problem = EW_PROBLEM(515, sum_of(&t.w), k, dtype);
    problem.op = EW_OP_AG_GEMM;
    problem.weight_layout = layout;
    gpu_run(EW_RANKS_AS_THREADS, W, NULL, problem, t.config, compare_with_apart, &t);
}

void check_products(void)
{
    static const char *const configs[] = {"kernel=sm90",
                                          "kernel=sm80",
                                          "kernel=sm90,block=128x128",
                                          "kernel=sm80,block=128x256",
                                          "kernel=sm90,cluster=1",
                                          "kernel=sm90,block=128x128,cluster=2"};
    static const int ranks[] = {1, 2, 3, 8};
    int at = 0;
    for (int c = 0; c < COUNT(configs); c++) {
        if (strstr(configs[c], "sm90") && !gpu_has_kernel(EW_KERNEL_SM90))
            continue;
        for (int s = 0; s < COUNT(shapes); s += gpu_quick ? 2 : 1, at++)
            run_trial(ranks[(at + c) % COUNT(ranks)],
                      (trial){shapes[s], configs[c], false, 0}, at % 2 ? EW_FP16 : EW_BF16,
                      at % 3 ? EW_WEIGHT_NK : EW_WEIGHT_KN);
    }
    if (!gpu_has_kernel(EW_KERNEL_SM90))
        return;
    /* Blocks so long that storers activate, several of them for an SM. */
    run_trial(8, (trial){{2, {1024, 1024}}, "kernel=sm90", false, 1672}, EW_BF16,
              EW_WEIGHT_NK);
    run_trial(2, (trial){{1, {328}}, "kernel=sm90,block=128x128", false, 1672}, EW_FP16,
              EW_WEIGHT_NK);
}

/* ---- Every gate there is ---- */

/* A row of A has a power of two, with its sign, and a weight a fraction: so the products
 * are all numbers of the type but the smallest, and what overflows. */
static int fill_gates(gpu_job *job)
{
    ew_world *world = job->world;
    const ew_problem *p = &job->problem;
    const int fraction_bits = p->dtype == EW_BF16 ? 7 : 10;
    const uint16_t one = p->dtype == EW_BF16 ? 0x3f80 : 0x3c00;
    uint16_t *words = job->staging;
    memset(words, 0, job->a_bytes);
    for (int64_t row = 0; row < p->max_m; row++)
        words[row * p->k] = (uint16_t)(row << fraction_bits);
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, job->A, words, job->a_bytes));
    memset(words, 0, job->b_bytes);
    for (int64_t col = 0; col < p->n; col++) /* gates, and the same of ups */
        words[col * p->k] = (uint16_t)(one + col % (p->n / 2));
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, job->B, words, job->b_bytes));
    return 0;
}

/* One bit pattern stands for all that are not a number. */
static void merge_nans(ew_dtype dtype, unsigned char *bytes, size_t count)
{
    const uint16_t infinity = dtype == EW_BF16 ? 0x7f80 : 0x7c00;
    uint16_t *words = (uint16_t *)(void *)bytes;
    for (size_t i = 0; i < count; i++)
        if ((words[i] & 0x7fff) > infinity)
            words[i] = 0x7fff;
}

static int activate_gates(gpu_job *job, const widths *w, ew_activation activation,
                          unsigned char *gate, unsigned char *want)
{
    ew_world *world = job->world;
    const ew_problem *p = &job->problem;
    const size_t elements = (size_t)(p->max_m * w->n[0]);
    ew_product products[2] = {{.n = w->n[0], .B = weight_at(job, w, 0), .C = job->C},
                              {.n = w->n[0], .B = weight_at(job, w, 1)}};
    void *activated;
    RANK_OK(ew_memory_alloc(world, EW_BACKEND_CUDA, elements * 2, &activated));
    RANK_TRY(job_poison(job));
    RANK_OK(ew_ag_gemm_act(job->plan, p->max_m, job->A, products, 2, activation, activated,
                           NULL, NULL));
    RANK_OK(ew_plan_wait(job->plan));
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, gate, job->C, elements * 2));
    RANK_OK(ew_memory_copy(world, EW_BACKEND_CUDA, job->staging, activated, elements * 2));
    ew_memory_free(world, EW_BACKEND_CUDA, activated);
    activate_apart(p->dtype, activation, p->max_m, w->n[0], gate, gate,
                   want); /* up = gate */
    merge_nans(p->dtype, want, elements);
    merge_nans(p->dtype, job->staging, elements);
    const uint16_t *got = job->staging, *expected = (uint16_t *)(void *)want,
                   *x = (uint16_t *)(void *)gate;
    for (size_t i = 0; i < elements; i++)
        RANK_CHECK(got[i] == expected[i], "%s of gate 0x%04x: 0x%04x, not 0x%04x",
                   ew_activation_name(activation), x[i], got[i], expected[i]);
    return 0;
}

static int every_gate(gpu_job *job, void *argument)
{
    ew_world *world = job->world;
    const widths *w = argument;
    unsigned char *gate = malloc(job->c_bytes), *want = malloc(job->c_bytes);
    RANK_CHECK(gate && want, "no memory");
    RANK_TRY(fill_gates(job));
    for (int activation = 0; activation <= EW_ACTIVATION_GELU_TANH; activation++)
        RANK_TRY(activate_gates(job, w, (ew_activation)activation, gate, want));
    free(gate);
    free(want);
    return 0;
}

void check_products_gates(void)
{
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++)
        for (ew_dtype dtype = EW_BF16; dtype <= EW_FP16; dtype++) {
            const int64_t fractions = dtype == EW_BF16 ? 128 : 1024;
            widths w = {2, {fractions, fractions}};
            ew_problem all = EW_PROBLEM(65536 / fractions, 2 * fractions, 8, dtype);
            all.op = EW_OP_AG_GEMM;
            gpu_run(EW_RANKS_AS_THREADS, 1, NULL, all, *kernel, every_gate, &w);
        }
}

/* ---- Calls that follow each other, and graphs ---- */

enum { SETS = 3, CALLS = 12, MAX_RESULTS = 4 };

/* q, k, v and the halves of an MLP, in calls of one plan; every call has its own places. */
typedef struct wheel {
    void *A[SETS];
    void *results[CALLS][MAX_RESULTS];
    unsigned char *expected[SETS][MAX_RESULTS];
    const widths *w;
} wheel;

static bool activates_in(int call)
{
    return call % 4 == 1 || call % 4 == 2;
}

static size_t result_bytes(const gpu_job *job, const wheel *w, int at)
{
    return (size_t)(job->problem.max_m * w->w->n[at]) * 2;
}

/* A call into `results`: the products, or their activation and the up. */
static ew_status turn_once(const gpu_job *job, const wheel *w, const void *A,
                           bool activates, void *const *results, ew_stream stream)
{
    ew_product products[EW_MAX_PRODUCTS];
    for (int i = 0; i < w->w->count; i++)
        products[i] =
            (ew_product){.n = w->w->n[i], .B = weight_at(job, w->w, i), .C = results[i]};
    if (!activates)
        return ew_ag_gemm_multi(job->plan, job->problem.max_m, A, products, w->w->count,
                                NULL, stream);
    products[0].C = NULL;
    return ew_ag_gemm_act(job->plan, job->problem.max_m, A, products, w->w->count,
                          EW_ACTIVATION_SILU, results[0], NULL, stream);
}

static int compare_results(gpu_job *job, const wheel *w, int call, int set)
{
    ew_world *world = job->world;
    for (int i = 0; i < w->w->count; i++) {
        const int expected = activates_in(call) && i == 0 ? w->w->count : i;
        const size_t bytes = result_bytes(job, w, i);
        RANK_CUDA(cudaMemcpy(job->staging, w->results[call][i], bytes, cudaMemcpyDefault));
        RANK_CHECK(memcmp(job->staging, w->expected[set][expected], bytes) == 0,
                   "call %d, %s %d: wrong bits", call,
                   activates_in(call) ? "activation or product" : "product", i);
    }
    return 0;
}

/* What is expected of every set, from calls that are waited for. */
static int build_wheel(gpu_job *job, wheel *w)
{
    ew_world *world = job->world;
    const ew_problem *p = &job->problem;
    RANK_TRY(job_use_device(job));
    for (int call = 0; call < CALLS; call++)
        for (int i = 0; i < w->w->count; i++)
            RANK_CUDA(cudaMalloc(&w->results[call][i], result_bytes(job, w, i)));
    for (uint32_t set = 0; set < SETS; set++) {
        RANK_CUDA(cudaMalloc(&w->A[set], job->a_bytes));
        RANK_OK(ew_random_fill(p->dtype, 20 + set + 10 * (uint32_t)job->rank,
                               p->max_m * p->k, job->staging));
        RANK_CUDA(cudaMemcpy(w->A[set], job->staging, job->a_bytes, cudaMemcpyDefault));
        RANK_OK(ew_world_barrier(world));
        RANK_OK(turn_once(job, w, w->A[set], false, w->results[0], NULL));
        RANK_OK(ew_plan_wait(job->plan));
        for (int i = 0; i <= w->w->count; i++) {
            const size_t bytes = result_bytes(job, w, i % w->w->count);
            w->expected[set][i] = malloc(bytes);
            RANK_CHECK(w->expected[set][i], "no memory");
            if (i < w->w->count)
                RANK_CUDA(cudaMemcpy(w->expected[set][i], w->results[0][i], bytes,
                                     cudaMemcpyDefault));
        }
        activate_apart(p->dtype, EW_ACTIVATION_SILU, p->max_m, w->w->n[0],
                       w->expected[set][0], w->expected[set][1],
                       w->expected[set][w->w->count]);
    }
    return 0;
}

static int poison_results(gpu_job *job, const wheel *w)
{
    ew_world *world = job->world;
    for (int call = 0; call < CALLS; call++)
        for (int i = 0; i < w->w->count; i++)
            RANK_CUDA(cudaMemset(w->results[call][i], POISON, result_bytes(job, w, i)));
    RANK_CUDA(cudaDeviceSynchronize());
    return 0;
}

static int tear_down(gpu_job *job, wheel *w)
{
    ew_world *world = job->world;
    for (int call = 0; call < CALLS; call++)
        for (int i = 0; i < w->w->count; i++)
            RANK_CUDA(cudaFree(w->results[call][i]));
    for (int set = 0; set < SETS; set++) {
        RANK_CUDA(cudaFree(w->A[set]));
        for (int i = 0; i <= w->w->count; i++)
            free(w->expected[set][i]);
    }
    return 0;
}

static void CUDART_CB hold_back(void *unused)
{
    (void)unused;
    gpu_sleep_ms(5);
}

static int turn(gpu_job *job, const wheel *w, int number)
{
    ew_world *world = job->world;
    RANK_TRY(poison_results(job, w));
    if (job->rank == number / 2 % job->num_ranks)
        RANK_TRY(number % 2 ? job_hold_exchange(job, hold_back, NULL)
                            : job_hold_producer(job, hold_back, NULL));
    RANK_OK(ew_world_barrier(world));
    for (int call = 0; call < CALLS; call++)
        RANK_OK(turn_once(job, w, w->A[call % SETS], activates_in(call), w->results[call],
                          NULL));
    RANK_OK(ew_plan_wait(job->plan));
    RANK_OK(ew_world_barrier(world));
    for (int call = 0; call < CALLS; call++)
        RANK_TRY(compare_results(job, w, call, call % SETS));
    return 0;
}

static int in_turn(gpu_job *job, void *argument)
{
    wheel w = {.w = argument};
    RANK_TRY(fill_random(job));
    RANK_TRY(build_wheel(job, &w));
    for (int number = 0; number < (gpu_quick ? 4 : 16); number++)
        RANK_TRY(turn(job, &w, number));
    return tear_down(job, &w);
}

static void run_pairs(int W, const char *config, ew_weight_layout layout, gpu_work work)
{
    widths pair = {2, {1032, 1032}};
    ew_problem problem = EW_PROBLEM(128 * W + 3, sum_of(&pair), 520, EW_BF16);
    problem.op = EW_OP_AG_GEMM;
    problem.weight_layout = layout;
    gpu_run(EW_RANKS_AS_THREADS, W, NULL, problem, config, work, &pair);
}

void check_products_reuse(void)
{
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++)
        for (int W = 2; W <= 8; W *= 2)
            run_pairs(W, *kernel, W == 4 ? EW_WEIGHT_KN : EW_WEIGHT_NK, in_turn);
}

/* Products and their activation in one graph, whose inputs change between replays. */
static int replay(gpu_job *job, const wheel *w, cudaGraphExec_t runnable,
                  cudaStream_t stream, void *input)
{
    ew_world *world = job->world;
    for (int number = 0; number < (gpu_quick ? 6 : 60); number++) {
        const int set = number % SETS;
        RANK_TRY(poison_results(job, w));
        RANK_CUDA(cudaMemcpy(input, w->A[set], job->a_bytes, cudaMemcpyDefault));
        RANK_CUDA(cudaDeviceSynchronize());
        RANK_OK(ew_world_barrier(world));
        for (int i = 0; i < 5; i++)
            RANK_CUDA(cudaGraphLaunch(runnable, stream));
        RANK_CUDA(cudaStreamSynchronize(stream));
        RANK_OK(ew_plan_wait(job->plan));
        RANK_OK(ew_world_barrier(world));
        for (int call = 0; call < 2; call++)
            RANK_TRY(compare_results(job, w, call, set));
    }
    return 0;
}

static int in_a_graph(gpu_job *job, void *argument)
{
    ew_world *world = job->world;
    wheel w = {.w = argument};
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t runnable;
    RANK_TRY(fill_random(job));
    RANK_TRY(build_wheel(job, &w));
    RANK_TRY(job_stream(job, &stream));
    RANK_OK(ew_world_barrier(world));
    RANK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int call = 0; call < 2; call++)
        RANK_OK(turn_once(job, &w, job->A, activates_in(call), w.results[call], stream));
    RANK_CUDA(cudaStreamEndCapture(stream, &graph));
    RANK_CUDA(cudaGraphInstantiate(&runnable, graph, 0));
    RANK_CUDA(cudaGraphUpload(runnable, stream));
    RANK_CUDA(cudaStreamSynchronize(stream));
    RANK_OK(ew_world_barrier(world)); /* nobody is still capturing */
    RANK_TRY(replay(job, &w, runnable, stream, job->A));
    RANK_CUDA(cudaGraphExecDestroy(runnable));
    RANK_CUDA(cudaGraphDestroy(graph));
    RANK_CUDA(cudaStreamDestroy(stream));
    return tear_down(job, &w);
}

void check_products_graph(void)
{
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++)
        for (int W = 1; W <= 4; W *= 2)
            run_pairs(W, *kernel, W == 2 ? EW_WEIGHT_KN : EW_WEIGHT_NK, in_a_graph);
}

/* ---- Refusals ---- */

static int refuse(gpu_job *job, void *argument)
{
    ew_world *world = job->world;
    const widths *w = argument;
    unsigned char *B = job->B, *C = job->C;
    const ew_product good[2] = {{.n = w->n[0], .B = weight_at(job, w, 0), .C = C},
                                {.n = w->n[1], .B = weight_at(job, w, 1), .C = C + 4096}};
    ew_product odd[2] = {good[0], good[1]}, askew[2] = {good[0], good[1]};
    RANK_TRY(fill_random(job));
    odd[0].n = w->n[0] + 4;
    odd[1].n = w->n[1] - 4;
    askew[1].B = B + 8;
    RANK_CHECK(ew_ag_gemm_multi(job->plan, 8, job->A, odd, 2, NULL, NULL) == EW_ERR_SHAPE &&
                   strstr(ew_last_error(), "multiple of 8"),
               "%s", ew_last_error());
    RANK_CHECK(ew_ag_gemm_multi(job->plan, 8, job->A, askew, 2, NULL, NULL) ==
                       EW_ERR_ARGUMENT &&
                   strstr(ew_last_error(), "aligned"),
               "%s", ew_last_error());
    RANK_OK(ew_ag_gemm_multi(job->plan, 8, job->A, good, 2, NULL, NULL));
    RANK_OK(ew_plan_wait(job->plan));
    return 0;
}

void check_products_refused(void)
{
    widths w = {2, {64, 64}};
    ew_problem problem = EW_PROBLEM(64, 128, 64, EW_BF16);
    problem.op = EW_OP_AG_GEMM;
    gpu_run(EW_RANKS_AS_THREADS, 1, NULL, problem, "", refuse, &w);
}

/* For memcheck and synccheck. */
void check_sanitizer_products(void)
{
    for (const char *const *kernel = gpu_kernels(); *kernel; kernel++) {
        run_trial(2, (trial){shapes[1], *kernel, true, 0}, EW_BF16, EW_WEIGHT_KN);
        run_trial(2, (trial){shapes[2], *kernel, true, 0}, EW_BF16, EW_WEIGHT_NK);
    }
}
