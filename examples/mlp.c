/* The MLP of a Llama layer whose activations are shared out by rows: gate and up on one
 * gather with SwiGLU after them, then down and ReduceScatter.
 *
 *     cc mlp.c $(pkg-config --cflags --libs entwine) -lm -o mlp
 *
 * Exits with 0 when every rank's rows are what plain loops compute. */
#include <entwine/entwine.h>

#include <math.h>
#include <stdio.h>

enum { W = 2, M = 75, HIDDEN = 64, INNER = 48 /* of a rank */, SIZE = INNER * HIDDEN };

/* Ranks are processes, so each has these for itself. */
static float x[M * HIDDEN], h[M * INNER], y[M * HIDDEN]; /* room for all rows */
static float gate[SIZE], up[SIZE], down[SIZE];

/* Any numbers: element i of matrix `which`; weights differ by rank. */
static float element(int which, int rank, int i)
{
    return (float)((i * 37 + which * 11 + rank * 5) % 23 - 11) / 64.0f;
}

/* Element i of the whole result. */
static double expected(int i)
{
    const int row = i / HIDDEN, col = i % HIDDEN;
    double sum = 0;
    for (int r = 0; r < W; r++)
        for (int j = 0; j < INNER; j++) {
            double g = 0, u = 0;
            for (int k = 0; k < HIDDEN; k++) {
                g += element(0, 0, row * HIDDEN + k) * element(1, r, j * HIDDEN + k);
                u += element(0, 0, row * HIDDEN + k) * element(2, r, j * HIDDEN + k);
            }
            sum += g / (1 + exp(-g)) * u * element(3, r, col * INNER + j);
        }
    return sum;
}

static int rank_main(ew_world *world, void *argument)
{
    ew_problem into = EW_PROBLEM(M, 2 * INNER, HIDDEN, EW_FP32);
    ew_problem out = EW_PROBLEM(M, HIDDEN, INNER, EW_FP32);
    const ew_product weights[] = {{.n = INNER, .B = gate}, {.n = INNER, .B = up}};
    ew_plan *enter = NULL, *leave = NULL;
    int64_t first = 0, count = 0;
    const int rank = ew_world_rank(world);
    into.op = EW_OP_AG_GEMM;
    for (int i = 0; i < SIZE; i++) {
        gate[i] = element(1, rank, i);
        up[i] = element(2, rank, i);
        down[i] = element(3, rank, i);
    }
    ew_owned_rows(M, W, rank, &first, &count);
    for (int i = 0; i < count * HIDDEN; i++)
        x[i] = element(0, 0, (int)first * HIDDEN + i);
    int ok = ew_plan_create(world, &into, NULL, &enter) == EW_OK &&
             ew_plan_create(world, &out, NULL, &leave) == EW_OK &&
             ew_ag_gemm_act(enter, M, x, weights, 2, EW_ACTIVATION_SILU, h, NULL, NULL) ==
                 EW_OK &&
             ew_gemm_rs(leave, M, h, down, y, NULL) == EW_OK;
    for (int i = 0; i < count * HIDDEN; i += 7)
        ok = ok && fabs(y[i] - expected((int)first * HIDDEN + i)) < 1e-4;
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
    printf("%d ranks, %d rows through gate, up and down: every value right\n", W, M);
    return 0;
}
