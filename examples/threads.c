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

/* For up to FEW rows, and for any number up to MAX_M; the weight was packed once. */
typedef struct plans {
    ew_weight *weight;
    ew_plan *few, *many;
} plans;

static ew_status create_plans(ew_world *world, ew_problem problem, const float *B, plans *p)
{
    ew_status status = ew_weight_create(world, &problem, NULL, B, &p->weight);
    if (status == EW_OK)
        status = ew_plan_create(world, &problem, NULL, &p->many);
    problem.max_m = FEW;
    if (status == EW_OK)
        status = ew_plan_create(world, &problem, NULL, &p->few);
    if (status == EW_OK)
        status = ew_plan_bind_weight(p->many, p->weight);
    if (status == EW_OK)
        status = ew_plan_bind_weight(p->few, p->weight);
    return status;
}

static void destroy_plans(plans *p)
{
    ew_plan_destroy(p->few);
    ew_plan_destroy(p->many);
    ew_weight_destroy(p->weight);
}

static ew_status compute(int rank, const plans *p, const ew_problem *problem, float *A,
                         float *C, int64_t *wrong_out)
{
    static const int64_t rows[] = {MAX_M, 1, FEW, 17, MAX_M};
    ew_status status = EW_OK;
    for (size_t call = 0; status == EW_OK && call < sizeof rows / sizeof rows[0]; call++) {
        ew_plan *plan = rows[call] <= FEW ? p->few : p->many;
        ew_check check = {0, 0.0};
        status = ew_exact_fill_a(EW_FP32, SEED, rank, W, rows[call], K, A);
        if (status == EW_OK)
            status = ew_gemm_rs(plan, rows[call], A, NULL, C, NULL);
        if (status == EW_OK)
            status = ew_exact_verify(problem, SEED, rank, W, rows[call], C, &check);
        *wrong_out += check.wrong;
    }
    return status;
}

static int rank_main(ew_world *world, void *argument)
{
    const int rank = ew_world_rank(world);
    int64_t wrong = 0;
    plans p = {NULL, NULL, NULL};
    ew_problem problem = EW_PROBLEM(MAX_M, N, K, EW_FP32);
    float *A = malloc(sizeof(float) * MAX_M * K);
    float *B = malloc(sizeof(float) * N * K);
    float *C = malloc(sizeof(float) * MAX_M * N); /* more than the rows that a rank owns */
    ew_status status = A && B && C ? EW_OK : EW_ERR_MEMORY;
    if (status == EW_OK)
        status = ew_exact_fill_b(EW_FP32, SEED, rank, EW_WEIGHT_NK, N, K, B);
    if (status == EW_OK)
        status = create_plans(world, problem, B, &p);
    if (status == EW_OK)
        status = compute(rank, &p, &problem, A, C, &wrong);
    if (status != EW_OK || wrong > 0)
        fprintf(stderr, "rank %d: %s\n", rank, status ? ew_last_error() : "wrong values");
    destroy_plans(&p);
    free(C);
    free(B);
    free(A);
    (void)argument;
    return status != EW_OK || wrong > 0; /* non-zero: the other ranks get an error */
}

int main(void)
{
    if (ew_run_ranks(EW_RANKS_AS_THREADS, W, NULL, rank_main, NULL, NULL) != EW_OK) {
        fprintf(stderr, "%s\n", ew_last_error());
        return 1;
    }
    printf("%d threads: every value exact\n", W);
    return 0;
}
