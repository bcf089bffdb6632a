/* The end of a row-parallel layer: GEMM, AllReduce, residual and RMSNorm in one call. Every
 * rank gets all rows of the norm.  The residual is shared out, so that a rank adds and
 * normalises only its own rows, or every rank has all of it; the bits are the same.
 *
 *     cc allreduce.c $(pkg-config --cflags --libs entwine) -o allreduce && ./allreduce
 *
 * Exits with 0 when the sum is exact and both forms of the layer agree in every bit. */
#include <entwine/entwine.h>
#include <entwine/measure.h>

#include <stdio.h>
#include <string.h>

enum { W = 4, M = 200, N = 256, K = 128, SEED = 1 };

/* Ranks are processes, so each has these for itself. */
static float A[M * K], B[N * K], C[M * N], norm_weight[N];
static float owned_residual[M * N]; /* room for all rows; a rank uses those it owns */
static float whole_residual[M * N], normed[M * N], normed_again[M * N];

static int call_sum(ew_plan *plan, const ew_problem *problem, int rank)
{
    ew_check check = {0, 0.0};
    return ew_gemm_ar(plan, M, A, NULL, C, NULL) == EW_OK &&
           ew_exact_verify(problem, SEED, rank, W, M, C, &check) == EW_OK &&
           check.wrong == 0;
}

static int call_layer(ew_plan *plan, float *residual, ew_residual_rows rows, float *out)
{
    ew_epilogue epilogue = EW_EPILOGUE_INIT;
    epilogue.residual = residual; /* holds the sum with it afterwards */
    epilogue.residual_rows = rows;
    epilogue.norm_weight = norm_weight;
    epilogue.normed = out; /* all M rows, on every rank */
    return ew_gemm_ar_layer(plan, M, A, NULL, NULL, &epilogue, NULL) == EW_OK;
}

static int rank_main(ew_world *world, void *argument)
{
    const int rank = ew_world_rank(world);
    ew_problem problem = EW_PROBLEM(M, N, K, EW_FP32);
    ew_plan *plan = NULL;
    problem.op = EW_OP_GEMM_AR;
    for (int n = 0; n < N; n++)
        norm_weight[n] = 1.0f;
    const int ok = ew_exact_fill_a(EW_FP32, SEED, rank, W, M, K, A) == EW_OK &&
                   ew_exact_fill_b(EW_FP32, SEED, rank, EW_WEIGHT_NK, N, K, B) == EW_OK &&
                   ew_plan_create(world, &problem, NULL, &plan) == EW_OK &&
                   ew_plan_set_weight(plan, B) == EW_OK && call_sum(plan, &problem, rank) &&
                   call_layer(plan, owned_residual, EW_RESIDUAL_OWNED, normed) &&
                   call_layer(plan, whole_residual, EW_RESIDUAL_ALL, normed_again) &&
                   memcmp(normed, normed_again, sizeof normed) == 0 &&
                   memcmp(whole_residual, C, sizeof C) == 0; /* zeros and the sum */
    if (!ok)
        fprintf(stderr, "rank %d: wrong values, or %s\n", rank, ew_last_error());
    ew_plan_destroy(plan);
    (void)argument;
    return !ok; /* non-zero: the other ranks get an error */
}

int main(void)
{
    if (ew_run_ranks(EW_RANKS_AS_PROCESSES, W, NULL, rank_main, NULL, NULL) != EW_OK)
        return 1;
    printf("%d ranks, each with all %d rows: every value exact\n", W, M);
    return 0;
}
