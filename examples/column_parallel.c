/* Both halves of a tensor-parallel layer whose activations are shared out by rows:
 * AllGather and GEMM into it, GEMM and ReduceScatter out of it.  Every rank has M/W rows
 * before and after, and between the two all rows of its own columns.
 *
 *     cc column_parallel.c $(pkg-config --cflags --libs entwine) -o column_parallel
 *
 * Exits with 0 when the first half is exact, hands out all rows of A, and the second half
 * has a rank's rows of the sum. */
#include <entwine/entwine.h>
#include <entwine/measure.h>

#include <stdio.h>
#include <string.h>

enum { W = 4, M = 202, HIDDEN = 128, INNER = 96 /* of a rank */, SEED = 1 };

/* Ranks are processes, so each has these for itself. */
static float x[M * HIDDEN], gathered[M * HIDDEN]; /* room for all rows of x */
static float up[INNER * HIDDEN], h[M * INNER];
static float down[HIDDEN * INNER], y[M * HIDDEN];

/* h = all rows of x, times this rank's columns. */
static int enter_layer(ew_plan *plan, const ew_problem *problem, int rank)
{
    ew_check check = {0, 0.0};
    int64_t first, count;
    return ew_owned_rows(M, W, rank, &first, &count) == EW_OK &&
           ew_exact_fill_a(EW_FP32, SEED, rank, W, count, HIDDEN, x) == EW_OK &&
           ew_ag_gemm(plan, M, x, NULL, h, gathered, NULL) == EW_OK &&
           ew_exact_verify(problem, SEED, rank, W, M, h, &check) == EW_OK &&
           check.wrong == 0 &&
           memcmp(gathered + first * HIDDEN, x, (size_t)(count * HIDDEN) * sizeof *x) == 0;
}

/* y = this rank's rows of the sum over ranks of h * down^T.  With ones for down, every
 * column of y is the sum of all h in its row: all columns are equal. */
static int leave_layer(ew_plan *plan, int rank)
{
    int64_t first, count;
    if (ew_gemm_rs(plan, M, h, NULL, y, NULL) != EW_OK ||
        ew_owned_rows(M, W, rank, &first, &count) != EW_OK)
        return 0;
    for (int64_t i = 0; i < count * HIDDEN; i++)
        if (y[i] != y[i / HIDDEN * HIDDEN])
            return 0;
    return 1;
}

static int rank_main(ew_world *world, void *argument)
{
    const int rank = ew_world_rank(world);
    ew_problem into = EW_PROBLEM(M, INNER, HIDDEN, EW_FP32);
    ew_problem out = EW_PROBLEM(M, HIDDEN, INNER, EW_FP32);
    ew_plan *enter = NULL, *leave = NULL;
    into.op = EW_OP_AG_GEMM;
    for (int i = 0; i < HIDDEN * INNER; i++)
        down[i] = 1.0f;
    const int ok =
        ew_exact_fill_b(EW_FP32, SEED, rank, EW_WEIGHT_NK, INNER, HIDDEN, up) == EW_OK &&
        ew_plan_create(world, &into, NULL, &enter) == EW_OK &&
        ew_plan_create(world, &out, NULL, &leave) == EW_OK &&
        ew_plan_set_weight(enter, up) == EW_OK &&
        ew_plan_set_weight(leave, down) == EW_OK && enter_layer(enter, &into, rank) &&
        leave_layer(leave, rank);
    if (!ok)
        fprintf(stderr, "rank %d: wrong values, or %s\n", rank, ew_last_error());
    ew_plan_destroy(enter);
    ew_plan_destroy(leave);
    (void)argument;
    return !ok; /* non-zero: the other ranks get an error */
}

int main(void)
{
    if (ew_run_ranks(EW_RANKS_AS_PROCESSES, W, NULL, rank_main, NULL, NULL) != EW_OK)
        return 1;
    printf("%d ranks, %d rows into the layer and out of it: every value exact\n", W, M);
    return 0;
}
