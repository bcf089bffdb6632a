/* One core's arithmetic, as ratios measured in one run: the CPU backend's GEMM, block by
 * block with B packed beforehand, against the core's own FMA peak and against each
 * packaged BLAS called once on the whole matrix.  Variants take turns; a figure is the
 * median, a peak the best, of samples taken while the host left this core alone.
 *
 *     kernel_bench [--core N] [--samples N] [--json FILE] */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "core_peak.h"

#include "backend/cpu/gemm.h"
#include "base/dtype.h"

enum { SIDE = 2048, TILE = 128, MAX_K = 2048, DECODE_N = 4096 };
enum { DECODE_BYTES = 256 << 20 }; /* more than caches hold */
enum { MAX_SAMPLES = 99, MAX_TRIES = 20, QUIET_MS = 3 };
static const int64_t depths[] = {256, 512, 1024, 2048};
enum { NUM_DEPTHS = sizeof depths / sizeof depths[0] };
static const int64_t decode_rows[] = {1, 4, 16};
enum { NUM_DECODES = sizeof decode_rows / sizeof decode_rows[0] };

/* ---- Time ---------------------------------------------------------------------- */

/* Seconds that this thread has run: other work on the core costs caches but not time. */
static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Spins for a few ms.  A gap in the spinning means the host took the core away. */
static bool quiet(void)
{
    const double end = now() + QUIET_MS * 1e-3;
    double longest = 0.0;
    for (double last = now(), next; last < end; last = next) {
        next = now();
        longest = fmax(longest, next - last);
    }
    return longest < 0.6e-3;
}

static int compare(const void *x, const void *y)
{
    const double difference = *(const double *)x - *(const double *)y;
    return (difference > 0) - (difference < 0);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare);
    return values[count / 2];
}

/* ---- What is measured ---------------------------------------------------------- */

typedef void (*sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                      const float *a, int lda, const float *b, int ldb, float beta,
                      float *c, int ldc);

typedef struct rival {
    const char *name, *library;
    sgemm call;
} rival;

static rival rivals[] = {{"blis", "libblis.so.4", NULL},
                         {"openblas", "libopenblas.so.0", NULL}};
enum { NUM_RIVALS = sizeof rivals / sizeof rivals[0] };

/* The matrices of one element type; the others read what they need of fp32's. */
typedef struct operands {
    ewx_gemm gemm;
    const core_peak *peak;
    char *a, *b, *c;
    char *packed_a, *packed_b, *scratch;
} operands;

enum { FP32, BF16, FP16, NUM_TYPES };
static const char *const type_names[] = {"fp32", "bf16", "fp16"};
enum {
    OWN = 0,
    PEAK = NUM_TYPES,
    RIVAL = 2 * NUM_TYPES,
    NUM_VARIANTS = RIVAL + NUM_RIVALS
};

typedef struct bench {
    operands types[NUM_TYPES];
    int samples;
    int noisy; /* samples taken although the core was not quiet */
    double gflops[NUM_DEPTHS][NUM_VARIANTS];
    double decode_gbps[NUM_DECODES][NUM_TYPES];
    double read_gbps[NUM_DECODES][NUM_TYPES]; /* of the same weight, in the same turns */
} bench;

/* On huge pages where they can be had, as the CPU backend's are. */
static void *allocate(size_t bytes)
{
    const size_t page = (size_t)2 << 20, rounded = (bytes + page - 1) / page * page;
    void *memory = aligned_alloc(page, rounded);
    if (!memory) {
        perror("kernel_bench");
        exit(1);
    }
    madvise(memory, rounded, MADV_HUGEPAGE);
    memset(memory, 0, bytes);
    return memory;
}

static void fill(ew_dtype dtype, char *dst, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const float value = (float)(rand() % 201 - 100) / 100.0f;
        if (dtype == EW_FP32)
            ((float *)dst)[i] = value;
        else
            ((uint16_t *)dst)[i] =
                dtype == EW_BF16 ? ewx_bf16_from_f32(value) : ewx_fp16_from_f32(value);
    }
}

/* Whole blocks are as large as the kernel prefers them. */
static int64_t side_of(const ewx_kernel *kernel, int64_t rows)
{
    return kernel->block_side && rows >= kernel->block_side ? kernel->block_side : TILE;
}

static operands operands_create(ew_dtype dtype)
{
    const size_t elem = dtype == EW_FP32 ? sizeof(float) : sizeof(uint16_t);
    operands x = {.gemm = ewx_gemm_build(ewx_kernel_select(dtype, NULL), dtype, MAX_K)};
    x.peak = core_peak_find(x.gemm.kernel);
    x.a = allocate(SIDE * MAX_K * elem);
    x.b = allocate((size_t)DECODE_N * MAX_K * elem);
    x.c = allocate((size_t)SIDE * SIDE * elem);
    const int64_t side = side_of(x.gemm.kernel, SIDE);
    x.packed_a = allocate(ewx_packed_a_bytes(&x.gemm, side));
    x.packed_b = allocate(ewx_packed_b_bytes(&x.gemm, DECODE_N));
    x.scratch = allocate(ewx_gemm_scratch_bytes(&x.gemm, TILE, TILE) *
                         (size_t)(side / TILE * (side / TILE)));
    fill(dtype, x.a, (int64_t)SIDE * MAX_K);
    fill(dtype, x.b, (int64_t)DECODE_N * MAX_K);
    return x;
}

static void operands_set_depth(operands *x, int64_t depth, int64_t cols)
{
    x->gemm = ewx_gemm_build(x->gemm.kernel, x->gemm.dtype, depth);
    ewx_pack_b(&x->gemm, x->b, depth, 1, cols, x->packed_b);
}

/* A block of C at (i, j), whose tiles pass through K together, chunk by chunk. */
static void own_block(const operands *x, int64_t i, int64_t j, int64_t side, int64_t n)
{
    const size_t elem = x->gemm.dtype == EW_FP32 ? sizeof(float) : sizeof(uint16_t);
    const size_t scratch_bytes = ewx_gemm_scratch_bytes(&x->gemm, TILE, TILE);
    ewx_gemm_rows groups[EWX_GROUPS_TOGETHER];
    int64_t end;
    for (int64_t first = 0; first < x->gemm.padded_depth; first = end) {
        end = first + x->gemm.chunk < x->gemm.padded_depth ? first + x->gemm.chunk
                                                           : x->gemm.padded_depth;
        char *scratch = x->scratch;
        for (int64_t col = 0; col < side; col += TILE) {
            for (int64_t row = 0; row < side; row += TILE, scratch += scratch_bytes)
                groups[row / TILE] = (ewx_gemm_rows){
                    x->packed_a + ewx_packed_a_bytes(&x->gemm, row), TILE,
                    x->c + (size_t)((i + row) * n + j + col) * elem, scratch, false};
            ewx_gemm_rows_multiply(&x->gemm, first, end, groups, (int)(side / TILE),
                                   x->packed_b + ewx_packed_b_bytes(&x->gemm, j + col),
                                   TILE, n);
        }
    }
}

/* C[m][n] = A * B^T, in blocks as the CPU backend computes them, but into a row-major C, so
 * that all variants store alike. */
static void own_gemm(const operands *x, int64_t m, int64_t n)
{
    const size_t elem = x->gemm.dtype == EW_FP32 ? sizeof(float) : sizeof(uint16_t);
    const int64_t side = side_of(x->gemm.kernel, m), depth = x->gemm.depth;
    for (int64_t i = 0; i < m; i += side) {
        const int64_t rows = m - i < side ? m - i : side;
        ewx_pack_a(&x->gemm, x->a + (size_t)(i * depth) * elem, depth, 1, rows,
                   x->packed_a);
        for (int64_t j = 0; j < n; j += side)
            if (side > TILE)
                own_block(x, i, j, side, n);
            else
                ewx_gemm_tile(&x->gemm, x->packed_a,
                              x->packed_b + ewx_packed_b_bytes(&x->gemm, j), rows, TILE,
                              x->c + (size_t)(i * n + j) * elem, n, x->scratch);
    }
}

/* Runs one variant; returns the floating-point operations, 0 when it does not exist. */
static double run_variant(const bench *b, int variant)
{
    const double flops = 2.0 * SIDE * SIDE * (double)b->types[FP32].gemm.depth;
    const int k = (int)b->types[FP32].gemm.depth;
    if (variant < PEAK) {
        own_gemm(&b->types[variant - OWN], SIDE, SIDE);
        return flops;
    }
    if (variant < RIVAL) {
        const core_peak *p = b->types[variant - PEAK].peak;
        if (!p)
            return 0.0;
        const int64_t loops = (int64_t)(4e9 / p->flops);
        p->run(loops);
        return (double)loops * p->flops;
    }
    const sgemm call = rivals[variant - RIVAL].call;
    if (!call)
        return 0.0;
    enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };
    call(ROW_MAJOR, NO_TRANS, TRANS, SIDE, SIDE, k, 1.0f, (const float *)b->types[FP32].a,
         k, (const float *)b->types[FP32].b, k, 0.0f, (float *)b->types[FP32].c, SIDE);
    return flops;
}

static double sample_gflops(bench *b, int variant)
{
    for (int attempt = 1;; attempt++) {
        const bool before = quiet();
        const double start = now();
        const double flops = run_variant(b, variant);
        const double seconds = now() - start;
        if ((quiet() && before) || attempt == MAX_TRIES) {
            b->noisy += attempt == MAX_TRIES;
            return flops / seconds * 1e-9;
        }
    }
}

static void measure_depth(bench *b, int which)
{
    static double samples[NUM_VARIANTS][MAX_SAMPLES];
    for (int type = 0; type < NUM_TYPES; type++)
        operands_set_depth(&b->types[type], depths[which], SIDE);
    for (int variant = 0; variant < NUM_VARIANTS; variant++)
        run_variant(b, variant);
    for (int i = 0; i < b->samples; i++)
        for (int variant = 0; variant < NUM_VARIANTS; variant++)
            samples[variant][i] = sample_gflops(b, variant);
    for (int variant = 0; variant < NUM_VARIANTS; variant++)
        b->gflops[which][variant] = median(samples[variant], b->samples);
    for (int variant = PEAK; variant < RIVAL; variant++) /* median() has sorted them */
        b->gflops[which][variant] = samples[variant][b->samples - 1];
}

/* The peak does not depend on K: the best seen counts for all. */
static void share_peaks(bench *b)
{
    for (int variant = PEAK; variant < RIVAL; variant++) {
        double best = 0.0;
        for (int i = 0; i < NUM_DEPTHS; i++)
            best = fmax(best, b->gflops[i][variant]);
        for (int i = 0; i < NUM_DEPTHS; i++)
            b->gflops[i][variant] = best;
    }
}

/* Keeps the compiler from dropping the reads. */
static volatile uint64_t read_sum;

/* Four registers for a line's sum: compilers keep a single one of 64 bytes in memory. */
typedef uint64_t quarter __attribute__((vector_size(16)));

/* As fast as this core can: without prefetching, or into one of two caches, whichever is
 * fastest. */
typedef enum prefetching { NO_PREFETCHING, INTO_L2, INTO_L3, NUM_PREFETCHINGS } prefetching;

static uint64_t read_all(const char *memory, size_t bytes, prefetching how)
{
    enum { AHEAD = 16384, LOCALITY_L2 = 2, LOCALITY_L3 = 1 };
    const quarter *at = (const quarter *)(const void *)memory;
    const quarter *end = at + bytes / sizeof *at;
    quarter sum0 = {0}, sum1 = {0}, sum2 = {0}, sum3 = {0};
    for (; at < end; at += 4) {
        if (how == INTO_L2)
            __builtin_prefetch((const char *)at + AHEAD, 0, LOCALITY_L2);
        else if (how == INTO_L3)
            __builtin_prefetch((const char *)at + AHEAD, 0, LOCALITY_L3);
        sum0 ^= at[0];
        sum1 ^= at[1];
        sum2 ^= at[2];
        sum3 ^= at[3];
    }
    sum0 ^= sum1 ^ sum2 ^ sum3;
    return sum0[0] ^ sum0[1];
}

/* What decoding reads: as many copies of the packed weight as no cache holds, by turns, as
 * the layers of a model are. */
typedef struct weights {
    char *copies;
    size_t bytes; /* of one */
    int count, turn;
} weights;

static weights weights_create(const operands *x)
{
    const size_t bytes = ewx_packed_b_bytes(&x->gemm, DECODE_N);
    weights w = {.bytes = bytes, .count = (int)(DECODE_BYTES / bytes)};
    w.copies = allocate(bytes * (size_t)w.count);
    for (int i = 0; i < w.count; i++)
        memcpy(w.copies + bytes * (size_t)i, x->packed_b, bytes);
    return w;
}

/* GB/s of the next packed weight, multiplied by `rows` rows or (0) merely read. */
static double sample_stream(bench *b, const operands *x, weights *w, int64_t rows,
                            prefetching how)
{
    for (int attempt = 1;; attempt++) {
        operands next = *x;
        next.packed_b = w->copies + w->bytes * (size_t)(w->turn++ % w->count);
        const bool before = quiet();
        const double start = now();
        if (rows > 0)
            own_gemm(&next, rows, DECODE_N);
        else
            read_sum += read_all(next.packed_b, w->bytes, how);
        const double seconds = now() - start;
        if ((quiet() && before) || attempt == MAX_TRIES) {
            b->noisy += attempt == MAX_TRIES;
            return (double)w->bytes / seconds * 1e-9;
        }
    }
}

static void measure_decode(bench *b)
{
    static double multiplied[MAX_SAMPLES], read[NUM_PREFETCHINGS][MAX_SAMPLES];
    for (int type = 0; type < NUM_TYPES; type++) {
        const operands *x = &b->types[type];
        operands_set_depth(&b->types[type], MAX_K, DECODE_N);
        weights w = weights_create(x);
        for (int decode = 0; decode < NUM_DECODES; decode++) {
            for (int i = 0; i < b->samples; i++) {
                multiplied[i] =
                    sample_stream(b, x, &w, decode_rows[decode], NO_PREFETCHING);
                for (int how = 0; how < NUM_PREFETCHINGS; how++)
                    read[how][i] = sample_stream(b, x, &w, 0, (prefetching)how);
            }
            b->decode_gbps[decode][type] = median(multiplied, b->samples);
            b->read_gbps[decode][type] = 0;
            for (int how = 0; how < NUM_PREFETCHINGS; how++)
                b->read_gbps[decode][type] =
                    fmax(b->read_gbps[decode][type], median(read[how], b->samples));
        }
        free(w.copies);
    }
}

/* The fastest wrong answer is worth nothing: own result against a plain dot product. */
static void verify(const bench *b)
{
    const operands *x = &b->types[FP32];
    own_gemm(x, SIDE, SIDE);
    for (int64_t at = 0; at < (int64_t)SIDE * SIDE; at += 99991) {
        const float *row = (const float *)x->a + at / SIDE * x->gemm.depth;
        const float *col = (const float *)x->b + at % SIDE * x->gemm.depth;
        double sum = 0.0;
        for (int64_t k = 0; k < x->gemm.depth; k++)
            sum += (double)row[k] * (double)col[k];
        if (fabs(sum - (double)((const float *)x->c)[at]) > 1e-2) {
            fprintf(stderr, "kernel_bench: wrong result at element %lld\n", (long long)at);
            exit(1);
        }
    }
}

/* ---- Report -------------------------------------------------------------------- */

static double ratio(double x, double y)
{
    return y > 0.0 ? x / y : 0.0;
}

static void print_kernels(const bench *b)
{
    for (int type = 0; type < NUM_TYPES; type++)
        printf("%s%s", type > 0 ? ", " : "", b->types[type].gemm.kernel->name);
    printf("; one core, M = N = %d, medians of %d, %d noisy\n", SIDE, b->samples, b->noisy);
    printf("GF/s; a missing library or peak shows as 0\n\n");
}

/* GB/s of a weight that the core's peak allows: at m = 16 a byte needs 8 to 16 operations,
 * and arithmetic may be the limit. */
static double peak_gbps(const bench *b, int decode, int type)
{
    const double elem = (double)ewx_packed_b_elem_bytes(&b->types[type].gemm);
    return b->gflops[0][PEAK + type] * elem / (2.0 * (double)decode_rows[decode]);
}

static void print_table(const bench *b)
{
    print_kernels(b);
    printf("%6s", "K");
    for (int type = 0; type < NUM_TYPES; type++)
        printf("  %s peak       own  /peak", type_names[type]);
    for (int i = 0; i < NUM_RIVALS; i++)
        printf(" %9s %6s", rivals[i].name, "fp32/");
    for (int i = 0; i < NUM_DEPTHS; i++) {
        const double *g = b->gflops[i];
        printf("\n%6lld", (long long)depths[i]);
        for (int type = 0; type < NUM_TYPES; type++)
            printf(" %10.1f %9.1f %6.3f", g[PEAK + type], g[OWN + type],
                   ratio(g[OWN + type], g[PEAK + type]));
        for (int j = 0; j < NUM_RIVALS; j++)
            printf(" %9.1f %6.3f", g[RIVAL + j], ratio(g[OWN + FP32], g[RIVAL + j]));
    }
    printf(
        "\n\nN = %d, K = %d, weight streamed once, GB/s (over merely reading it; over the "
        "peak)\n",
        DECODE_N, MAX_K);
    for (int decode = 0; decode < NUM_DECODES; decode++) {
        printf("m = %-4lld", (long long)decode_rows[decode]);
        for (int type = 0; type < NUM_TYPES; type++)
            printf("   %s %6.1f (%.3f; %.3f)", type_names[type],
                   b->decode_gbps[decode][type],
                   ratio(b->decode_gbps[decode][type], b->read_gbps[decode][type]),
                   ratio(b->decode_gbps[decode][type], peak_gbps(b, decode, type)));
        putchar('\n');
    }
}

static void write_depths(const bench *b, FILE *file)
{
    for (int i = 0; i < NUM_DEPTHS; i++) {
        const double *g = b->gflops[i];
        fprintf(file, "  {\"k\": %lld", (long long)depths[i]);
        for (int type = 0; type < NUM_TYPES; type++)
            fprintf(file, ", \"%s\": %.2f, \"%s_peak\": %.2f", type_names[type],
                    g[OWN + type], type_names[type], g[PEAK + type]);
        for (int j = 0; j < NUM_RIVALS; j++)
            fprintf(file, ", \"%s\": %.2f", rivals[j].name, g[RIVAL + j]);
        fprintf(file, "}%s\n", i + 1 < NUM_DEPTHS ? "," : "");
    }
}

static void write_decodes(const bench *b, FILE *file)
{
    for (int decode = 0; decode < NUM_DECODES; decode++) {
        fprintf(file, "  {\"m\": %lld", (long long)decode_rows[decode]);
        for (int type = 0; type < NUM_TYPES; type++)
            fprintf(file, ", \"%s\": %.2f, \"%s_read\": %.2f, \"%s_peak\": %.2f",
                    type_names[type], b->decode_gbps[decode][type], type_names[type],
                    b->read_gbps[decode][type], type_names[type],
                    peak_gbps(b, decode, type));
        fprintf(file, "}%s\n", decode + 1 < NUM_DECODES ? "," : "");
    }
}

static int write_json(const bench *b, const char *path)
{
    FILE *file = fopen(path, "w");
    if (!file) {
        perror(path);
        return 1;
    }
    fputc('{', file);
    for (int type = 0; type < NUM_TYPES; type++)
        fprintf(file, "\"%s_kernel\": \"%s\", ", type_names[type],
                b->types[type].gemm.kernel->name);
    fprintf(file, "\"side\": %d,\n \"samples\": %d, \"noisy\": %d,\n \"gflops\": [\n", SIDE,
            b->samples, b->noisy);
    write_depths(b, file);
    fprintf(file, " ],\n \"decode_gbps\": [\n");
    write_decodes(b, file);
    fprintf(file, " ]}\n");
    return fclose(file) == 0 ? 0 : 1;
}

static void load_rivals(void)
{
    setenv("BLIS_NUM_THREADS", "1", 1);
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    for (int i = 0; i < NUM_RIVALS; i++) {
        void *library = dlopen(rivals[i].library, RTLD_NOW | RTLD_LOCAL);
        if (library) /* POSIX promises that this conversion works */
            *(void **)(void *)&rivals[i].call = dlsym(library, "cblas_sgemm");
    }
}

int main(int argc, char **argv)
{
    static bench b = {.samples = 9};
    int core = sched_getcpu();
    const char *json = NULL;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--core") == 0)
            core = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--samples") == 0)
            b.samples = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--json") == 0)
            json = argv[i + 1];
        else
            argc = 0;
    }
    if (argc % 2 == 0 || b.samples < 1 || b.samples > MAX_SAMPLES) {
        fprintf(stderr, "usage: kernel_bench [--core N] [--samples 1..99] [--json FILE]\n");
        return 2;
    }
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(core, &cores);
    sched_setaffinity(0, sizeof cores, &cores);
    load_rivals();
    b.types[FP32] = operands_create(EW_FP32);
    b.types[BF16] = operands_create(EW_BF16);
    b.types[FP16] = operands_create(EW_FP16);
    for (int i = 0; i < NUM_DEPTHS; i++)
        measure_depth(&b, i);
    share_peaks(&b);
    verify(&b);
    measure_decode(&b);
    print_table(&b);
    return json ? write_json(&b, json) : 0;
}
