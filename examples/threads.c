/* Ranks as threads of one program: a long prompt, then single tokens, with a plan for each
 * and one packed weight for both.
 *
 *     cc threads.c $(pkg-config --cflags --libs entwine) -o threads && ./threads
 *
 * Inputs are small integers whose result is known exactly; exits with 0 when every rank has
 * its bits. */
#include <entwine/entwine.h>
#include <entwine/measure.h>

#include <stdio.h>
#include <stdlib.h>

enum { W = 4, FEW = 16, MAX_M = 300, N = 384, K = 128, SEED = 1 };

/* A plan for any number of rows up to MAX_M, and one for few; the weight was packed once.
 */
typedef struct plans {
    ew_weight *weight;
    ew_plan *many, *few;
} plans;

static int create(ew_world *world, ew_problem problem, const float *B, plans *p)
{
    ew_problem small = problem;
    small.max_m = FEW;
    return ew_weight_create(world, &problem, NULL, B, &p->weight) == EW_OK &&
           ew_plan_create(world, &problem, NULL, &p->many) == EW_OK &&
           ew_plan_create(world, &small, NULL, &p->few) == EW_OK &&
           ew_plan_bind_weight(p->many, p->weight) == EW_OK &&
           ew_plan_bind_weight(p->few, p->weight) == EW_OK;
}

/* One call; m may be another in each. */
static int compute(int rank, const plans *p, const ew_problem *problem, int64_t rows,
                   float *A, float *C)
{
    ew_check check = {0, 0.0};
    return ew_exact_fill_a(EW_FP32, SEED, rank, W, rows, K, A) == EW_OK &&
           ew_gemm_rs(rows <= FEW ? p->few : p->many, rows, A, NULL, C, NULL) == EW_OK &&
           ew_exact_verify(problem, SEED, rank, W, rows, C, &check) == EW_OK &&
           check.wrong == 0;
}

static int rank_main(ew_world *world, void *argument)
{
    static const int64_t rows[] = {MAX_M, 1, FEW, 17, MAX_M};
    const int rank = ew_world_rank(world);
    const ew_problem problem = EW_PROBLEM(MAX_M, N, K, EW_FP32);
    plans p = {NULL, NULL, NULL};
    float *A = malloc(sizeof(float) * MAX_M * K);
    float *B = malloc(sizeof(float) * N * K);
    float *C = malloc(sizeof(float) * MAX_M * N); /* more than the rows that a rank owns */
    int ok = A && B && C &&
             ew_exact_fill_b(EW_FP32, SEED, rank, EW_WEIGHT_NK, N, K, B) == EW_OK &&
             create(world, problem, B, &p);
    for (size_t call = 0; ok && call < sizeof rows / sizeof rows[0]; call++)
        ok = compute(rank, &p, &problem, rows[call], A, C);
    if (!ok)
        fprintf(stderr, "rank %d: wrong values, or %s\n", rank, ew_last_error());
    ew_plan_destroy(p.few);
    ew_plan_destroy(p.many);
    ew_weight_destroy(p.weight);
    free(C);
    free(B);
    free(A);
    (void)argument;
    return !ok; /* non-zero: the other ranks get an error */
}

int main(void)
{
    if (ew_run_ranks(EW_RANKS_AS_THREADS, W, NULL, rank_main, NULL, NULL) != EW_OK)
        return 1;
    printf("%d threads: every value exact\n", W);
    return 0;
}
