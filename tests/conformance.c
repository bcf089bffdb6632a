/* A choice is an index into each option's list; an option that a bed does not have has no
 * values and takes no part. */
#include "conformance.h"

#include <string.h>

enum {
    RANKS,
    SHAPE,
    DTYPE,
    ORDER,
    RELEASE,
    GROUP,
    BLOCK,
    BUDGET,
    BATCH,
    WORKERS,
    KERNEL,
    CTAS,
    CLUSTER,
    POOL,
    TRANSPORT,
    LAUNCHES,
    LAYOUT,
    BINDING,
    KIND,
    OPERATION,
    INVARIANT,
    NUM_OPTIONS
};
enum { MAX_VALUES = 12 };

typedef struct choice {
    int value[NUM_OPTIONS];
} choice;

/* m = per_rank * W + extra; an extra of -1 leaves one rank a row short. */
typedef struct shape {
    int64_t per_rank, extra, n, k;
} shape;

struct conformance_bed {
    ew_backend backend;
    int num_values[NUM_OPTIONS];
    shape shapes[MAX_VALUES];
    ew_dtype dtypes[MAX_VALUES];
    int32_t blocks[MAX_VALUES][2];
    int32_t budgets[MAX_VALUES]; /* 0: chosen by the library */
    int32_t batches[MAX_VALUES];
    ew_pool pools[3];
    int64_t unit; /* N and K are multiples of it */
    bool (*is_valid)(const conformance_bed *bed, const choice *c);
    bool (*may_be_impossible)(const conformance_bed *bed, int a, int va, int b, int vb);
};

static const int rank_counts[] = {1, 2, 3, 4, 8};
static const struct released {
    int32_t size, first, last;
} releases[] = {{1, 0, 0},
                {3, 0, 0},
                {EW_RELEASE_PARTITION, 0, 0},
                {EW_RELEASE_OUTPUT, 0, 0},
                {4, 1, 2}};
static const int32_t groups[] = {1, 2, 3};
#define COUNT(list) ((int)(sizeof(list) / sizeof(list)[0]))

static const struct operation {
    ew_op op;
    int32_t shots;
} operations[] = {
    {EW_OP_GEMM_RS, 0}, {EW_OP_GEMM_AR, 1}, {EW_OP_GEMM_AR, 2}, {EW_OP_AG_GEMM, 0}};

/* ---- The CPU ---- */

/* A static pool keeps at least one worker for the GEMM. */
static bool cpu_is_valid(const conformance_bed *bed, const choice *c)
{
    return c->value[POOL] == 0 || bed->budgets[c->value[BUDGET]] < c->value[WORKERS] + 1;
}

/* static with one worker; static with more reducers than any pool here has workers. */
static bool cpu_may_be_impossible(const conformance_bed *bed, int a, int va, int b, int vb)
{
    return (a == WORKERS && va == 0 && b == POOL && vb == 1) ||
           (a == BUDGET && bed->budgets[va] >= 3 && b == POOL && vb == 1);
}

const conformance_bed conformance_cpu = {
    .backend = (ew_backend)0, /* the default */
    .num_values = {[RANKS] = COUNT(rank_counts),
                   [SHAPE] = 10,
                   [DTYPE] = 3,
                   [ORDER] = 3,
                   [RELEASE] = COUNT(releases),
                   [GROUP] = COUNT(groups),
                   [BLOCK] = 4,
                   [BUDGET] = 3,
                   [BATCH] = 2,
                   [WORKERS] = 3,
                   [POOL] = 2,
                   [LAYOUT] = 2,
                   [BINDING] = 3,
                   [KIND] = 2,
                   [OPERATION] = COUNT(operations),
                   [INVARIANT] = 2},
    .shapes =
        {
            {256, 0, 512, 64},  /* aligned */
            {129, 1, 300, 77},  /* ragged everywhere */
            {1, 0, 1, 1},       /* tiny */
            {200, -1, 37, 50},  /* N < 128 */
            {1, -1, 129, 33},   /* m < W */
            {0, 0, 64, 9},      /* m = 0 */
            {130, 2, 257, 1},   /* K = 1 */
            {140, 1, 260, 509}, /* K prime, several chunks */
            {5, 1, 1153, 31},   /* wide */
            {521, 3, 140, 20},  /* tall: several groups */
        },
    .dtypes = {EW_FP32, EW_BF16, EW_FP16},
    .blocks = {{128, 128}, {128, 256}, {256, 256}, {128, 512}},
    .budgets = {1, 2, 5},
    .batches = {1, 4},
    .pools = {EW_POOL_SHARED, EW_POOL_STATIC},
    .unit = 1,
    .is_valid = cpu_is_valid,
    .may_be_impossible = cpu_may_be_impossible,
};

/* ---- GPUs ---- */

static const ew_transport transports[] = {EW_TRANSPORT_PULL, EW_TRANSPORT_PUSH,
                                          EW_TRANSPORT_ADD, EW_TRANSPORT_TMA_ADD};
enum { ADD = 2, TMA_ADD = 3 }; /* among them */

/* Reducers that wait for those of other ranks pull, and what is added as it comes has one
 * contribution of each rank. */
static bool cuda_can_move(const conformance_bed *bed, const choice *c)
{
    const int transport = c->value[TRANSPORT];
    if (transport > 0 && operations[c->value[OPERATION]].op == EW_OP_GEMM_AR)
        return false;
    if (transport < ADD)
        return true;
    const bool is_sm90 = c->value[KERNEL] + 1 == EW_KERNEL_SM90;
    return c->value[INVARIANT] == 0 &&
           (is_sm90 || (transport == ADD && bed->dtypes[c->value[DTYPE]] == EW_FP16));
}

/* Clusters are Hopper's, and SMs are reserved from producers that stay where they are. */
static bool cuda_is_valid(const conformance_bed *bed, const choice *c)
{
    return cuda_can_move(bed, c) &&
           (c->value[CLUSTER] == 0 || c->value[KERNEL] + 1 == EW_KERNEL_SM90) &&
           (bed->pools[c->value[POOL]] != EW_POOL_STATIC ||
            c->value[CTAS] + 1 == EW_CTAS_PERSISTENT);
}

static bool cuda_may_be_impossible(const conformance_bed *bed, int a, int va, int b, int vb)
{
    return (a == KERNEL && va + 1 == EW_KERNEL_SM80 && b == CLUSTER && vb == 1) ||
           (a == CTAS && va + 1 == EW_CTAS_BLOCK && b == POOL &&
            bed->pools[vb] == EW_POOL_STATIC) ||
           (a == TRANSPORT && va > 0 && b == OPERATION &&
            operations[vb].op == EW_OP_GEMM_AR) ||
           (a == TRANSPORT && va >= ADD && b == INVARIANT && vb == 1) ||
           (a == KERNEL && va + 1 == EW_KERNEL_SM80 && b == TRANSPORT && vb == TMA_ADD);
}

const conformance_bed conformance_cuda = {
    .backend = EW_BACKEND_CUDA,
    .num_values = {[RANKS] = COUNT(rank_counts),
                   [SHAPE] = 11,
                   [DTYPE] = 2,
                   [ORDER] = 3,
                   [RELEASE] = COUNT(releases),
                   [GROUP] = COUNT(groups),
                   [BLOCK] = 2,
                   [BUDGET] = 4,
                   [BATCH] = 3,
                   [KERNEL] = 2,
                   [CTAS] = 2,
                   [CLUSTER] = 2,
                   [POOL] = 3,
                   [TRANSPORT] = COUNT(transports),
                   [LAUNCHES] = 2,
                   [LAYOUT] = 2,
                   [BINDING] = 3,
                   [OPERATION] = 3, /* all but AllGather-GEMM */
                   [INVARIANT] = 2},
    .shapes =
        {
            {256, 0, 512, 64},   /* aligned */
            {129, 1, 304, 72},   /* ragged everywhere */
            {1, 0, 8, 8},        /* tiny */
            {200, -1, 40, 48},   /* N < 128 */
            {1, -1, 136, 40},    /* m < W */
            {0, 0, 64, 16},      /* m = 0 */
            {130, 2, 264, 8},    /* K = 8 */
            {140, 1, 264, 520},  /* several steps over K and a rest, more than the ring */
            {5, 1, 1160, 32},    /* wide */
            {521, 3, 144, 24},   /* tall: several groups */
            {512, 0, 1024, 128}, /* more blocks than a slice has SMs */
        },
    .dtypes = {EW_BF16, EW_FP16},
    .blocks = {{128, 128}, {128, 256}},
    .budgets = {1, 2, 5, 0},
    .batches = {128, 256, 512},
    .pools = {EW_POOL_SHARED, EW_POOL_AFTER, EW_POOL_STATIC},
    .unit = 8,
    .is_valid = cuda_is_valid,
    .may_be_impossible = cuda_may_be_impossible,
};

/* ---- From a choice to a trial ---- */

static bool has_option(const conformance_bed *bed, int option)
{
    return bed->num_values[option] > 0;
}

static void choose_config(const conformance_bed *bed, const choice *c, ew_config *config)
{
    config->backend = bed->backend;
    config->order = (ew_order)(c->value[ORDER] + 1);
    config->release = releases[c->value[RELEASE]].size;
    config->release_first = releases[c->value[RELEASE]].first;
    config->release_last = releases[c->value[RELEASE]].last;
    config->group = groups[c->value[GROUP]];
    config->block_m = bed->blocks[c->value[BLOCK]][0];
    config->block_n = bed->blocks[c->value[BLOCK]][1];
    config->budget = bed->budgets[c->value[BUDGET]];
    config->batch = bed->batches[c->value[BATCH]];
    config->pool = bed->pools[c->value[POOL]];
    if (has_option(bed, WORKERS))
        config->workers = c->value[WORKERS] + 1;
    if (has_option(bed, KERNEL)) {
        config->kernel = (ew_kernel)(c->value[KERNEL] + 1);
        config->ctas = (ew_ctas)(c->value[CTAS] + 1);
        config->cluster = c->value[CLUSTER] + 1;
        config->transport = transports[c->value[TRANSPORT]];
        config->launches = (ew_launches)(c->value[LAUNCHES] + 1);
    }
}

/* Pieces of K, of whole units: as many on each rank as can be, up to 8.  AllGather-GEMM
 * adds up none. */
static void choose_invariant(const conformance_bed *bed, const choice *c, trial *t)
{
    int32_t pieces = 8;
    while (t->problem.k % (pieces * bed->unit))
        pieces--;
    const bool adds = t->problem.op != EW_OP_AG_GEMM;
    t->config.invariant = adds && c->value[INVARIANT] ? pieces * t->num_ranks : 0;
}

static trial build_trial(const conformance_bed *bed, const choice *c, uint32_t seed)
{
    const shape *s = &bed->shapes[c->value[SHAPE]];
    const int W = rank_counts[c->value[RANKS]];
    const int64_t m = s->per_rank * W + s->extra;
    const int64_t rows = m < 0 ? 0 : m;
    trial t = {
        .kind = c->value[KIND] ? EW_RANKS_AS_THREADS : EW_RANKS_AS_PROCESSES,
        .num_ranks = W,
        .problem = EW_PROBLEM(rows, s->n, s->k, bed->dtypes[c->value[DTYPE]]),
        .config = EW_CONFIG_INIT,
        .weight_per_call = c->value[BINDING] == 1,
        .weight_bound = c->value[BINDING] == 2,
        .seed = seed,
        .num_calls = 5,
        .rows = {rows, rows / 3, 0, rows > 0 ? rows - 1 : 0, rows},
    };
    t.problem.weight_layout = c->value[LAYOUT] ? EW_WEIGHT_KN : EW_WEIGHT_NK;
    choose_config(bed, c, &t.config);
    t.problem.op = operations[c->value[OPERATION]].op;
    t.config.shots = operations[c->value[OPERATION]].shots;
    if (t.problem.op == EW_OP_AG_GEMM) /* whose units are panels of rows, all alike */
        t.config.release_first = t.config.release_last = 0;
    choose_invariant(bed, c, &t);
    return t;
}

static choice random_choice(const conformance_bed *bed, harness_random *random)
{
    choice c = {{0}};
    do
        for (int option = 0; option < NUM_OPTIONS; option++)
            if (has_option(bed, option))
                c.value[option] =
                    (int)harness_between(random, 0, bed->num_values[option] - 1);
    while (!bed->is_valid(bed, &c));
    return c;
}

/* ---- Pairs ---- */

typedef struct pairing {
    const conformance_bed *bed;
    harness_random random;
    bool covered[NUM_OPTIONS][MAX_VALUES][NUM_OPTIONS][MAX_VALUES];
} pairing;

/* Pairs of the choice that are new; marks them when asked to. */
static int new_pairs(pairing *p, const choice *c, bool mark)
{
    int count = 0;
    for (int a = 0; a < NUM_OPTIONS; a++)
        for (int b = a + 1; b < NUM_OPTIONS; b++) {
            if (!has_option(p->bed, a) || !has_option(p->bed, b))
                continue;
            bool *seen = &p->covered[a][c->value[a]][b][c->value[b]];
            count += !*seen;
            *seen |= mark;
        }
    return count;
}

/* The best of many random choices that contain the pair; false when none is valid. */
static bool choose_for_pair(pairing *p, int a, int va, int b, int vb, choice *choice_out)
{
    int best = 0;
    for (int attempt = 0; attempt < 400; attempt++) {
        choice c = random_choice(p->bed, &p->random);
        c.value[a] = va;
        c.value[b] = vb;
        const int pairs = p->bed->is_valid(p->bed, &c) ? new_pairs(p, &c, false) : 0;
        if (pairs > best) {
            best = pairs;
            *choice_out = c;
        }
    }
    return best > 0;
}

int conformance_every_pair(const conformance_bed *bed, conformance_use use, void *context)
{
    static pairing p;
    memset(&p, 0, sizeof p);
    p.bed = bed;
    p.random = harness_seed(1);
    int trials = 0;
    for (int a = 0; a < NUM_OPTIONS; a++)
        for (int va = 0; va < bed->num_values[a]; va++)
            for (int b = a + 1; b < NUM_OPTIONS; b++)
                for (int vb = 0; vb < bed->num_values[b]; vb++) {
                    choice c;
                    if (p.covered[a][va][b][vb])
                        continue;
                    if (!choose_for_pair(&p, a, va, b, vb, &c)) {
                        if (!bed->may_be_impossible(bed, a, va, b, vb))
                            harness_fail("no valid trial has option %d=%d and %d=%d", a, va,
                                         b, vb);
                        continue;
                    }
                    new_pairs(&p, &c, true);
                    const trial t = build_trial(bed, &c, 1000 + (uint32_t)trials++);
                    use(context, &t);
                }
    return trials;
}

void conformance_random(const conformance_bed *bed, uint32_t num_seeds, conformance_use use,
                        void *context)
{
    for (uint32_t seed = 1; seed <= num_seeds; seed++) {
        harness_random random = harness_seed(seed);
        const choice c = random_choice(bed, &random);
        trial t =
            build_trial(bed, &c, seed); /* the seed is part of what a failure prints */
        t.problem.max_m = harness_between(&random, 0, 160 * t.num_ranks);
        t.problem.n = bed->unit * harness_between(&random, 1, 420 / bed->unit);
        t.problem.k = bed->unit * harness_between(&random, 1, 150 / bed->unit);
        choose_invariant(bed, &c, &t);
        for (int number = 0; number < t.num_calls; number++)
            t.rows[number] = harness_between(&random, 0, t.problem.max_m);
        use(context, &t);
    }
}
