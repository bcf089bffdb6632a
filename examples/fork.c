/* Ranks as processes of this machine, in bf16; rank 0 prints the schedule and the reasons.
 *
 *     cc fork.c $(pkg-config --cflags --libs entwine) -o fork && ./fork
 *
 * Inputs are small integers whose result is known exactly; exits with 0 when every rank has
 * its bits. */
#include <entwine/entwine.h>
#include <entwine/measure.h>

#include <stdint.h>
#include <stdio.h>

enum { W = 4, M = 250, N = 384, K = 128, SEED = 1 };

/* Every process has its own copy. */
static uint16_t A[M * K], B[N * K], C[M * N];

static void explain(const ew_plan *plan)
{
    char text[EW_EXPLAIN_BYTES];
    if (ew_plan_explain(plan, text, sizeof text) == EW_OK)
        fputs(text, stdout);
    fflush(stdout); /* a forked rank ends without flushing */
}

/* The return value is the process's exit status. */
static int rank_main(ew_world *world, void *argument)
{
    const int rank = ew_world_rank(world);
    ew_plan *plan = NULL;
    ew_problem problem = EW_PROBLEM(M, N, K, EW_BF16);
    ew_check check = {0, 0.0};
    ew_status status = ew_exact_fill_a(EW_BF16, SEED, rank, W, M, K, A);
    if (status == EW_OK)
        status = ew_exact_fill_b(EW_BF16, SEED, rank, EW_WEIGHT_NK, N, K, B);
    if (status == EW_OK)
        status = ew_plan_create(world, &problem, NULL, &plan);
    if (status == EW_OK && rank == 0)
        explain(plan);
    if (status == EW_OK)
        status = ew_gemm_rs(plan, M, A, B, C, NULL);
    if (status == EW_OK)
        status = ew_exact_verify(&problem, SEED, rank, W, M, C, &check);
    if (status != EW_OK)
        fprintf(stderr, "rank %d: %s\n", rank, ew_last_error());
    ew_plan_destroy(plan);
    (void)argument;
    return status != EW_OK ? 1 : check.wrong > 0 ? 2 : 0;
}

int main(void)
{
    int exits[W] = {0}; /* 128 + the signal for a rank that was killed */
    ew_status status = ew_run_ranks(EW_RANKS_AS_PROCESSES, W, NULL, rank_main, NULL, exits);
    for (int rank = 0; rank < W; rank++)
        if (exits[rank] != 0)
            fprintf(stderr, "rank %d ended with %d\n", rank, exits[rank]);
    if (status != EW_OK) {
        fprintf(stderr, "%s\n", ew_last_error());
        return 1;
    }
    printf("%d processes: every value exact\n", W);
    return 0;
}
