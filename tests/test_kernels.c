/* The CPU backend's GEMM: every kernel this machine can run, packing, the macro-kernel and
 * the stores of its results. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/cpu/gemm.h"
#include "backend/cpu/kernels/convert.h"
#include "random_inputs.h"

static const ew_dtype dtypes[] = {EW_FP32, EW_BF16, EW_FP16};
enum { NUM_DTYPES = sizeof dtypes / sizeof dtypes[0], POISON = 0xa5 };

/* ---- Helpers ------------------------------------------------------------------- */

static uint32_t random_state = 1;

static uint32_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state;
}

/* Begins with a cache line. */
static void *allocate(size_t bytes)
{
    void *memory = NULL;
    assert_int_equal(posix_memalign(&memory, 64, bytes ? bytes : 1), 0);
    memset(memory, POISON, bytes);
    return memory;
}

/* rows x depth elements: small integers, or fractions in -1..1. */
static void *random_matrix(ew_dtype dtype, int64_t rows, int64_t depth, bool integers)
{
    void *matrix = allocate((size_t)(rows * depth) * ew_dtype_bytes(dtype));
    for (int64_t i = 0; i < rows * depth; i++) {
        const float integer = (float)(int)(random_bits() % 7) - 3.0f;
        const float fraction = (float)(random_bits() % 2001) / 1000.0f - 1.0f;
        element_put(dtype, matrix, i, integers ? integer : fraction);
    }
    return matrix;
}

/* A problem small enough to be checked element by element.  Element (i, k) of an operand
 * lies at i * depth + k, or transposed at k * rows + i. */
typedef struct problem {
    ew_dtype dtype;
    int64_t rows, cols, depth;
    bool transposed;
    void *a, *b;
} problem;

static problem problem_build(ew_dtype dtype, int64_t rows, int64_t cols, int64_t depth,
                             bool transposed, bool integers)
{
    return (problem){dtype,
                     rows,
                     cols,
                     depth,
                     transposed,
                     random_matrix(dtype, rows, depth, integers),
                     random_matrix(dtype, cols, depth, integers)};
}

static void problem_free(problem *p)
{
    free(p->a);
    free(p->b);
}

static int64_t operand_at(const problem *p, int64_t rows, int64_t i, int64_t k)
{
    return p->transposed ? k * rows + i : i * p->depth + k;
}

/* The block of `rows` x `cols` at (i0, j0), packed and multiplied on its own. */
static void multiply_part(const problem *p, const ewx_gemm *gemm, int64_t i0, int64_t j0,
                          int64_t rows, int64_t cols, void *dst, int64_t dst_stride)
{
    const size_t elem = ew_dtype_bytes(p->dtype);
    void *packed_a = allocate(ewx_packed_a_bytes(gemm, rows));
    void *packed_b = allocate(ewx_packed_b_bytes(gemm, cols));
    void *scratch = allocate(ewx_gemm_scratch_bytes(gemm, rows, cols));
    const char *a = (const char *)p->a + (size_t)operand_at(p, p->rows, i0, 0) * elem;
    const char *b = (const char *)p->b + (size_t)operand_at(p, p->cols, j0, 0) * elem;
    ewx_pack_a(gemm, a, p->transposed ? 1 : p->depth, p->transposed ? p->rows : 1, rows,
               packed_a);
    ewx_pack_b(gemm, b, p->transposed ? 1 : p->depth, p->transposed ? p->cols : 1, cols,
               packed_b);
    ewx_gemm_tile(gemm, packed_a, packed_b, rows, cols, dst, dst_stride, scratch);
    free(packed_a);
    free(packed_b);
    free(scratch);
}

static void check_element(const problem *p, const void *dst, int64_t stride, int64_t i,
                          int64_t j, bool exact)
{
    double sum = 0.0, magnitude = 0.0;
    for (int64_t k = 0; k < p->depth; k++) {
        const double product =
            (double)element_get(p->dtype, p->a, operand_at(p, p->rows, i, k)) *
            (double)element_get(p->dtype, p->b, operand_at(p, p->cols, j, k));
        sum += product;
        magnitude += fabs(product);
    }
    const float got = element_get(p->dtype, dst, i * stride + j);
    if (exact) {
        float rounded[1];
        element_put(p->dtype, rounded, 0, (float)sum);
        assert_int_equal(ewx_f32_bits(got),
                         ewx_f32_bits(element_get(p->dtype, rounded, 0)));
    } else {
        const double unit = p->dtype == EW_FP32   ? 0.0
                            : p->dtype == EW_BF16 ? 0x1p-8
                                                  : 0x1p-11;
        /* Subnormals of fp16 are 2^-24 apart, however small they are. */
        const double least = p->dtype == EW_FP16 ? 0x1p-25 : 0.0;
        const double allowed =
            fmax(unit * fabs(sum), least) + 0x1p-23 * (double)(p->depth + 1) * magnitude;
        assert_true(fabs((double)got - sum) <= allowed);
    }
}

/* Multiplies into a poisoned buffer and checks each element and all around them. */
static void check_problem(const ewx_kernel *kernel, problem p, bool exact)
{
    const size_t elem = ew_dtype_bytes(p.dtype);
    const int64_t stride = p.cols + 3, guard = 5;
    const size_t bytes = (size_t)(guard + p.rows * stride + guard) * elem;
    const ewx_gemm gemm = ewx_gemm_build(kernel, p.dtype, p.depth);
    char *buffer = allocate(bytes), *dst = buffer + (size_t)guard * elem;
    multiply_part(&p, &gemm, 0, 0, p.rows, p.cols, dst, stride);
    for (int64_t i = 0; i < p.rows; i++)
        for (int64_t j = 0; j < p.cols; j++)
            check_element(&p, dst, stride, i, j, exact);
    for (int64_t i = 0; i < p.rows; i++)
        memset(dst + (size_t)(i * stride) * elem, POISON, (size_t)p.cols * elem);
    for (size_t at = 0; at < bytes; at++)
        assert_int_equal((unsigned char)buffer[at], POISON);
    free(buffer);
    problem_free(&p);
}

/* Calls `check` with every kernel that can run here and every type it serves. */
static void for_each_kernel(void (*check)(const ewx_kernel *kernel, ew_dtype dtype))
{
    for (const ewx_kernel *const *kernel = ewx_kernel_list(); *kernel; kernel++)
        for (int i = 0; i < NUM_DTYPES; i++)
            if (ewx_kernel_select(dtypes[i], (*kernel)->name) == *kernel)
                check(*kernel, dtypes[i]);
}

/* ---- Kernels and GEMM ---------------------------------------------------------- */

static void ragged_shapes(const ewx_kernel *kernel, ew_dtype dtype)
{
    static const int64_t sides[] = {1, 2, 3, 5, 7, 8, 12, 13, 16, 17, 23, 31, 32, 37, 40};
    static const int64_t depths[] = {1, 2, 3, 4, 5, 7, 8, 13, 16, 31, 33, 64, 70};
    enum {
        SIDES = sizeof sides / sizeof sides[0],
        DEPTHS = sizeof depths / sizeof depths[0]
    };
    int turn = 0;
    for (int i = 0; i < SIDES; i++)
        for (int j = 0; j < SIDES; j++, turn++) {
            const int64_t depth = depths[turn % DEPTHS];
            const bool transposed = turn / DEPTHS % 2 == 1;
            check_problem(kernel,
                          problem_build(dtype, sides[i], sides[j], depth, transposed, true),
                          true);
            check_problem(
                kernel, problem_build(dtype, sides[i], sides[j], depth, !transposed, false),
                false);
        }
}

static void test_ragged_shapes(void **state)
{
    (void)state;
    for_each_kernel(ragged_shapes);
}

static void several_chunks(const ewx_kernel *kernel, ew_dtype dtype)
{
    check_problem(kernel, problem_build(dtype, 9, 35, 2500, false, true), true);
    check_problem(kernel, problem_build(dtype, 16, 32, 2048, true, false), false);
    check_problem(kernel, problem_build(dtype, 131, 290, 33, false, true), true);
    check_problem(kernel, problem_build(dtype, 128, 256, 40, true, true), true);
}

static void test_several_chunks_and_groups(void **state)
{
    (void)state;
    for_each_kernel(several_chunks);
}

static void check_same_bits(const problem *p, const ewx_gemm *gemm, const char *whole,
                            int64_t i0, int64_t j0, int64_t rows, int64_t cols)
{
    const size_t elem = ew_dtype_bytes(p->dtype);
    char *part = allocate((size_t)(rows * cols) * elem);
    multiply_part(p, gemm, i0, j0, rows, cols, part, cols);
    for (int64_t i = 0; i < rows; i++)
        assert_memory_equal(part + (size_t)(i * cols) * elem,
                            whole + (size_t)((i0 + i) * p->cols + j0) * elem,
                            (size_t)cols * elem);
    free(part);
}

static void same_bits_at_depth(const ewx_kernel *kernel, ew_dtype dtype, int64_t depth)
{
    enum { ROWS = 139, COLS = 173 };
    static const int64_t parts[][4] = {
        {0, 0, 1, 1},     {1, 1, 8, 32},     {5, 130, 7, 43},  {130, 3, 9, 64},
        {77, 77, 62, 96}, {138, 172, 1, 1},  {17, 0, 1, COLS}, {40, 0, 2, COLS},
        {63, 0, 5, COLS}, {90, 0, 17, COLS}, {31, 0, 33, COLS}};
    problem p = problem_build(dtype, ROWS, COLS, depth, false, false);
    ewx_gemm gemm = ewx_gemm_build(kernel, dtype, depth);
    char *whole = allocate(ROWS * COLS * ew_dtype_bytes(dtype));
    multiply_part(&p, &gemm, 0, 0, ROWS, COLS, whole, COLS);
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        check_same_bits(&p, &gemm, whole, parts[i][0], parts[i][1], parts[i][2],
                        parts[i][3]);
    gemm.chunk = 5 * kernel->kr;
    check_same_bits(&p, &gemm, whole, 3, 5, 20, 40);
    gemm.chunk = kernel->max_chunk;
    check_same_bits(&p, &gemm, whole, 3, 5, 20, 40);
    free(whole);
    problem_free(&p);
}

/* Over several chunks, and over a single one, of every kernel. */
static void same_bits_anywhere(const ewx_kernel *kernel, ew_dtype dtype)
{
    same_bits_at_depth(kernel, dtype, 1101);
    same_bits_at_depth(kernel, dtype, 101);
}

/* Products of fp16 numbers are exact in fp32, so kernels that add one k after the other
 * have the same bits, whatever they multiply with. */
static void same_bits_as_portable(const ewx_kernel *kernel, ew_dtype dtype)
{
    enum { ROWS = 29, COLS = 155, DEPTH = 1107 };
    if (dtype != EW_FP16 || kernel->kr != 1)
        return;
    const ewx_kernel *portable = ewx_kernel_select(dtype, "portable-4x8-fp32");
    const size_t bytes = ROWS * COLS * ew_dtype_bytes(dtype);
    problem p = problem_build(dtype, ROWS, COLS, DEPTH, false, false);
    const ewx_gemm gemms[] = {ewx_gemm_build(kernel, dtype, DEPTH),
                              ewx_gemm_build(portable, dtype, DEPTH)};
    char *got = allocate(bytes), *want = allocate(bytes);
    multiply_part(&p, &gemms[0], 0, 0, ROWS, COLS, got, COLS);
    multiply_part(&p, &gemms[1], 0, 0, ROWS, COLS, want, COLS);
    assert_memory_equal(got, want, bytes);
    free(got);
    free(want);
    problem_free(&p);
}

static void test_fp16_has_the_bits_of_fp32_arithmetic(void **state)
{
    (void)state;
    for_each_kernel(same_bits_as_portable);
}

/* Memory that ends (but for alignment) where reading is a fault, which no sanitizer sees in
 * assembly. */
typedef struct guarded {
    char *map, *start;
    size_t map_bytes;
} guarded;

static guarded guarded_create(size_t bytes)
{
    enum { ALIGNMENT = 64 };
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    const size_t usable = (rounded + page - 1) / page * page;
    guarded g = {.map_bytes = usable + page};
    g.map =
        mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.map != MAP_FAILED);
    assert_int_equal(mprotect(g.map + usable, page, PROT_NONE), 0);
    g.start = g.map + usable - rounded;
    return g;
}

static void guarded_free(guarded g)
{
    assert_int_equal(munmap(g.map, g.map_bytes), 0);
}

static void reads_only_panels(const ewx_kernel *kernel, ew_dtype dtype)
{
    const int64_t sizes[][2] = {{1, kernel->nr},
                                {2, kernel->nr},
                                {1, kernel->narrow_nr ? kernel->narrow_nr : 1},
                                {kernel->mr, kernel->narrow_nr ? kernel->narrow_nr : 1},
                                {kernel->mr, kernel->nr}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int64_t depth = 1; depth <= 48; depth++) {
            const int64_t rows = sizes[i][0], cols = sizes[i][1];
            problem p = problem_build(dtype, rows, cols, depth, false, true);
            const ewx_gemm gemm = ewx_gemm_build(kernel, dtype, depth);
            const guarded a = guarded_create(ewx_packed_a_bytes(&gemm, rows));
            const guarded b = guarded_create(ewx_packed_b_bytes(&gemm, cols));
            char *scratch = allocate(ewx_gemm_scratch_bytes(&gemm, rows, cols));
            char *dst = allocate((size_t)(rows * cols) * ew_dtype_bytes(dtype));
            ewx_pack_a(&gemm, p.a, depth, 1, rows, a.start);
            ewx_pack_b(&gemm, p.b, depth, 1, cols, b.start);
            ewx_gemm_tile(&gemm, a.start, b.start, rows, cols, dst, cols, scratch);
            check_element(&p, dst, cols, rows - 1, cols - 1, true);
            guarded_free(a);
            guarded_free(b);
            free(scratch);
            free(dst);
            problem_free(&p);
        }
}

static void test_kernels_read_only_their_panels(void **state)
{
    (void)state;
    for_each_kernel(reads_only_panels);
}

/* Those who wait for a rank see it work also within a tile, where K is deep. */
static void signs_of_life(const ewx_kernel *kernel, ew_dtype dtype)
{
    _Atomic uint32_t signs = 0;
    for (int64_t chunks = 1; chunks <= 65; chunks *= 65) {
        const int64_t depth = chunks * kernel->max_chunk;
        problem p = problem_build(dtype, 3, 5, depth, false, false);
        ewx_gemm gemm = ewx_gemm_build(kernel, dtype, depth);
        char *whole = allocate(3 * 5 * ew_dtype_bytes(dtype));
        gemm.progress = &signs;
        multiply_part(&p, &gemm, 0, 0, 3, 5, whole, 5);
        assert_in_range(signs, chunks / 32, chunks);
        free(whole);
        problem_free(&p);
    }
}

static void test_deep_tiles_give_signs_of_life(void **state)
{
    (void)state;
    for_each_kernel(signs_of_life);
}

/* Several groups of rows at a time, chunk by chunk, as an engine's large blocks do it, into
 * rows that are whole cache lines, or not. */
static void multiplied_together(const ewx_kernel *kernel, ew_dtype dtype, int64_t cols,
                                bool rests)
{
    enum { GROUPS = 3, ROWS = 2 * EWX_PACK_GROUP + 37, DEPTH = 1101 };
    const size_t elem = ew_dtype_bytes(dtype);
    problem p = problem_build(dtype, ROWS, cols, DEPTH, false, false);
    const ewx_gemm gemm = ewx_gemm_build(kernel, dtype, DEPTH);
    char *whole = allocate((size_t)(ROWS * cols) * elem),
         *got = allocate((size_t)(ROWS * cols) * elem);
    char *packed_a = allocate(ewx_packed_a_bytes(&gemm, ROWS));
    char *packed_b = allocate(ewx_packed_b_bytes(&gemm, cols));
    ewx_gemm_rows groups[GROUPS];
    multiply_part(&p, &gemm, 0, 0, ROWS, cols, whole, cols);
    ewx_pack_a(&gemm, p.a, DEPTH, 1, ROWS, packed_a);
    ewx_pack_b(&gemm, p.b, DEPTH, 1, cols, packed_b);
    for (int at = 0; at < GROUPS; at++) {
        const int64_t row = at * EWX_PACK_GROUP;
        groups[at] = (ewx_gemm_rows){
            packed_a + ewx_packed_a_bytes(&gemm, row), at < 2 ? EWX_PACK_GROUP : 37,
            got + (size_t)(row * cols) * elem,
            allocate(ewx_gemm_scratch_bytes(&gemm, EWX_PACK_GROUP, cols)), rests};
    }
    for (int64_t first = 0; first < gemm.padded_depth; first += gemm.chunk) {
        const int64_t end = first + gemm.chunk;
        ewx_gemm_rows_multiply(&gemm, first,
                               end < gemm.padded_depth ? end : gemm.padded_depth, groups,
                               GROUPS, packed_b, cols, cols);
    }
    assert_memory_equal(got, whole, (size_t)(ROWS * cols) * elem);
    for (int at = 0; at < GROUPS; at++)
        free(groups[at].scratch);
    free(packed_a);
    free(packed_b);
    free(got);
    free(whole);
    problem_free(&p);
}

static void same_bits_together(const ewx_kernel *kernel, ew_dtype dtype)
{
    multiplied_together(kernel, dtype, 93, false);
    multiplied_together(kernel, dtype, 93, true);
    multiplied_together(kernel, dtype, 96, false);
    multiplied_together(kernel, dtype, 96, true);
}

static void test_bits_are_the_same_together(void **state)
{
    (void)state;
    for_each_kernel(same_bits_together);
}

static void test_bits_depend_on_row_and_column_only(void **state)
{
    (void)state;
    for_each_kernel(same_bits_anywhere);
}

/* Of every 32 k's the even and the odd ones are added apart, then both, then all to what
 * was there: entwine.h says so. */
static float amx_sum(ew_dtype dtype, const void *a, const void *b, int64_t depth)
{
    float sum = 0.0f;
    for (int64_t first = 0; first < depth; first += 32) {
        float even = 0.0f, odd = 0.0f;
        for (int64_t k = first; k < first + 32 && k < depth; k += 2) {
            even = fmaf(element_get(dtype, a, k), element_get(dtype, b, k), even);
            if (k + 1 < depth)
                odd = fmaf(element_get(dtype, a, k + 1), element_get(dtype, b, k + 1), odd);
        }
        sum += even + odd;
    }
    return sum;
}

static void amx_adds_in_its_order(const ewx_kernel *kernel, ew_dtype dtype)
{
    enum { ROWS = 35, COLS = 37, DEPTH = 1101 };
    if (strncmp(kernel->name, "amx", 3) != 0)
        return;
    problem p = problem_build(dtype, ROWS, COLS, DEPTH, false, false);
    const ewx_gemm gemm = ewx_gemm_build(kernel, dtype, DEPTH);
    uint16_t got[ROWS * COLS];
    multiply_part(&p, &gemm, 0, 0, ROWS, COLS, got, COLS);
    for (int64_t i = 0; i < ROWS * COLS; i++) {
        uint16_t want[2]; /* room for any type */
        const uint16_t *a = (uint16_t *)p.a + i / COLS * DEPTH;
        const uint16_t *b = (uint16_t *)p.b + i % COLS * DEPTH;
        element_put(dtype, want, 0, amx_sum(dtype, a, b, DEPTH));
        assert_int_equal(got[i], want[0]);
    }
    problem_free(&p);
}

static void test_amx_adds_in_its_order(void **state)
{
    (void)state;
    for_each_kernel(amx_adds_in_its_order);
}

static void assert_mixed(const ewx_kernel *kernel, const ewx_mixed *mixed)
{
    assert_true(!mixed->widen == !mixed->multiply);
    assert_true(!mixed->multiply_few == !(mixed->widen && kernel->few_rows));
    if (!mixed->widen)
        return;
    assert_int_equal(kernel->packs, EW_FP32);
    assert_int_equal(kernel->narrow_nr, 0);
    assert_null(kernel->multiply_row);
    assert_in_range(kernel->max_chunk * kernel->nr, 1, EWX_WIDE_PANEL);
}

static void test_select(void **state)
{
    (void)state;
    assert_null(ewx_kernel_select(EW_FP32, "no-such-kernel"));
    for (int i = 0; i < NUM_DTYPES; i++)
        assert_non_null(ewx_kernel_select(dtypes[i], NULL));
    for (const ewx_kernel *const *kernel = ewx_kernel_list(); *kernel; kernel++) {
        const bool here = (*kernel)->available();
        for (int i = 0; i < NUM_DTYPES; i++) {
            const bool serves =
                (*kernel)->packs == EW_FP32 || (*kernel)->packs == dtypes[i];
            assert_ptr_equal(ewx_kernel_select(dtypes[i], (*kernel)->name),
                             here && serves ? *kernel : NULL);
        }
        assert_true(!here || !(*kernel)->refusal || !(*kernel)->refusal());
        assert_true((*kernel)->mr <= EWX_PACK_GROUP && (*kernel)->nr <= EWX_PACK_GROUP);
        assert_true((*kernel)->packs != EW_FP32 || (*kernel)->kr == 1);
        assert_mixed(*kernel, &(*kernel)->bf16);
        assert_mixed(*kernel, &(*kernel)->fp16);
    }
}

static void packed_sizes(const ewx_kernel *kernel, ew_dtype dtype)
{
    const ewx_gemm gemm = ewx_gemm_build(kernel, dtype, 20);
    const size_t row = (size_t)gemm.padded_depth * ewx_packed_a_elem_bytes(&gemm);
    const size_t col = (size_t)gemm.padded_depth * ewx_packed_b_elem_bytes(&gemm);
    const size_t group = ewx_packed_b_bytes(&gemm, EWX_PACK_GROUP);
    assert_int_equal(ewx_packed_a_bytes(&gemm, 0), 0);
    assert_int_equal(ewx_packed_a_bytes(&gemm, 1), row * (size_t)kernel->mr);
    assert_int_equal(ewx_packed_b_bytes(&gemm, kernel->nr), col * (size_t)kernel->nr);
    if (kernel->narrow_nr)
        assert_int_equal(ewx_packed_b_bytes(&gemm, kernel->nr + 1),
                         col * (size_t)(kernel->nr + kernel->narrow_nr));
    assert_in_range(group, col * EWX_PACK_GROUP,
                    col * (size_t)(EWX_PACK_GROUP + kernel->nr - 1));
    for (int64_t cols = 0; cols <= EWX_PACK_GROUP; cols++)
        assert_int_equal(ewx_packed_b_bytes(&gemm, 3 * EWX_PACK_GROUP + cols),
                         3 * group + ewx_packed_b_bytes(&gemm, cols));
}

static void test_packed_sizes(void **state)
{
    (void)state;
    for_each_kernel(packed_sizes);
}

/* Values that trip a conversion: NaN, infinities, subnormals, ties, overflow. */
static const uint32_t special_bits[] = {
    0x00000000, 0x80000000, 0x7f800000, 0xff800000, 0x7f800001, 0xffc00000, 0x7fffffff,
    0x00000001, 0x807fffff, 0x00008000, 0x00018000, 0x3f808000, 0x3f818000, 0x3f808001,
    0x7f7fffff, 0x7f7f8000, 0x7f7f7fff, 0xff7f8000, 0x7f80ffff, 0x7f810000, 0x3f7fffff};

enum { STORE_SIDE = 32, STORE_STRIDE = 37, STORE_COUNT = STORE_SIDE * STORE_STRIDE };

static void check_store(ew_dtype dtype, ewx_store_half *store, const float *acc, int rows,
                        int cols)
{
    uint16_t dst[STORE_COUNT], want[STORE_COUNT];
    memset(dst, POISON, sizeof dst);
    memset(want, POISON, sizeof want);
    for (int i = 0; i < STORE_COUNT; i++)
        if (i / STORE_STRIDE < rows && i % STORE_STRIDE < cols)
            element_put(dtype, want, i, acc[i]);
    store(acc, STORE_STRIDE, rows, cols, dst, STORE_STRIDE);
    assert_memory_equal(dst, want, sizeof want);
}

/* A kernel for bf16 alone never has subnormal sums, and need not round them. */
static void store_agrees(const ewx_kernel *kernel, ew_dtype dtype)
{
    enum { SPECIALS = sizeof special_bits / sizeof special_bits[0] };
    float acc[STORE_COUNT];
    for (int i = 0; i < STORE_COUNT; i++) {
        acc[i] = ewx_f32_from_bits(i % 2 ? random_bits() : special_bits[i / 2 % SPECIALS]);
        if (kernel->packs == EW_BF16 && fpclassify(acc[i]) == FP_SUBNORMAL)
            acc[i] = 0.0f;
    }
    for (int rows = 1; dtype != EW_FP32 && rows <= kernel->mr; rows++)
        for (int cols = 1; cols <= kernel->nr; cols++)
            check_store(dtype, dtype == EW_BF16 ? kernel->store_bf16 : kernel->store_fp16,
                        acc, rows, cols);
}

static void test_stores_agree_with_scalars(void **state)
{
    (void)state;
    for_each_kernel(store_agrees);
}

/* For ctest, which then says what was not tested here: whether the machine has a kernel. */
static int has(const char *name)
{
    enum { SKIPPED = 77 };
    for (const ewx_kernel *const *kernel = ewx_kernel_list(); *kernel; kernel++)
        if (strcmp((*kernel)->name, name) == 0)
            return (*kernel)->available() ? 0 : SKIPPED;
    return 1;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--has") == 0)
        return has(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_select),
        cmocka_unit_test(test_packed_sizes),
        cmocka_unit_test(test_ragged_shapes),
        cmocka_unit_test(test_several_chunks_and_groups),
        cmocka_unit_test(test_bits_depend_on_row_and_column_only),
        cmocka_unit_test(test_fp16_has_the_bits_of_fp32_arithmetic),
        cmocka_unit_test(test_kernels_read_only_their_panels),
        cmocka_unit_test(test_deep_tiles_give_signs_of_life),
        cmocka_unit_test(test_bits_are_the_same_together),
        cmocka_unit_test(test_amx_adds_in_its_order),
        cmocka_unit_test(test_stores_agree_with_scalars),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
