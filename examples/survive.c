/* Going on after a fault: ranks are killed one after the other, and those that are left
 * make a smaller world each time, until one of them does all the work.
 *
 *     cc survive.c $(pkg-config --cflags --libs entwine) -o survive && ./survive
 *
 * Exits with 0 when the last rank has the result, which is known exactly. */
#include <entwine/entwine.h>
#include <entwine/measure.h>

#include <signal.h>
#include <stdio.h>

enum { W = 4, M = 250, N = 384, K = 128, CALLS = 20, SEED = 1 };

/* Every process has its own copy. */
static float A[M * K], B[N * K], C[M * N];

/* One of the ranks dies in the middle, unless it is alone. */
static ew_status work(ew_world *world, ew_check *check)
{
    const int rank = ew_world_rank(world), size = ew_world_size(world);
    ew_plan *plan = NULL;
    ew_problem problem = EW_PROBLEM(M, N, K, EW_FP32);
    ew_status status = ew_plan_create(world, &problem, NULL, &plan);
    for (int call = 0; call < CALLS && status == EW_OK; call++) {
        if (call == CALLS / 2 && size > 1 && rank == size / 2)
            raise(SIGKILL);
        status = ew_exact_fill_a(EW_FP32, SEED, rank, size, M, K, A);
        if (status == EW_OK)
            status = ew_exact_fill_b(EW_FP32, SEED, rank, EW_WEIGHT_NK, N, K, B);
        if (status == EW_OK)
            status = ew_gemm_rs(plan, M, A, B, C, NULL);
        if (status == EW_OK)
            status = ew_exact_verify(&problem, SEED, rank, size, M, C, check);
    }
    ew_plan_destroy(plan);
    return status;
}

static int is_a_fault(ew_status status)
{
    return status == EW_ERR_PEER_DIED || status == EW_ERR_TIMEOUT;
}

static int rank_main(ew_world *first, void *argument)
{
    (void)argument;
    ew_check check = {0, 0.0};
    ew_world *world = first;
    ew_status status = work(world, &check);
    while (is_a_fault(status)) {
        ew_world *smaller;
        do /* again when another rank dies meanwhile */
            status = ew_world_shrink(world, &smaller);
        while (status == EW_ERR_PEER_DIED);
        if (status != EW_OK)
            break;
        if (world != first) /* which ew_run_ranks destroys */
            ew_world_destroy(world);
        world = smaller;
        status = work(world, &check);
    }
    if (status != EW_OK)
        fprintf(stderr, "%s\n", ew_last_error());
    if (world != first)
        ew_world_destroy(world);
    return status != EW_OK || check.wrong > 0;
}

/* ew_run_ranks reports the first rank that died; the exits tell who has come through. */
int main(void)
{
    int exits[W] = {0}, well = 0;
    ew_run_ranks(EW_RANKS_AS_PROCESSES, W, NULL, rank_main, NULL, exits);
    for (int rank = 0; rank < W; rank++)
        well += exits[rank] == 0;
    printf("%d of %d ranks came through\n", well, W);
    return well == 1 ? 0 : 1;
}
