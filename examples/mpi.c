/* Ranks of mpirun.  The library does not link MPI: it asks for one all-gather, and
 * MPI_Allgather is one.
 *
 *     mpicc mpi.c $(pkg-config --cflags --libs entwine) -o mpi && mpirun -np 4 ./mpi
 *
 * All ranks must be on one host (for several see docs/CLUSTER.md).  Inputs are small
 * integers whose result is known exactly; exits with 0 when every rank has its bits. */
#include <entwine/entwine.h>
#include <entwine/measure.h>
#include <mpi.h>

#include <limits.h>
#include <stdio.h>

enum { M = 250, N = 384, K = 128, SEED = 1 };

static float A[M * K], B[N * K], C[M * N];

/* Called a few times, inside ew_world_create only. */
static int allgather(void *context, const void *mine, void *all, size_t bytes)
{
    MPI_Comm *comm = context;
    if (bytes > INT_MAX)
        return 1;
    return MPI_Allgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, *comm);
}

static ew_status compute(ew_world *world, int rank, int num_ranks, ew_check *check)
{
    ew_plan *plan = NULL;
    ew_problem problem = EW_PROBLEM(M, N, K, EW_FP32);
    ew_status status = ew_exact_fill_a(EW_FP32, SEED, rank, num_ranks, M, K, A);
    if (status == EW_OK)
        status = ew_exact_fill_b(EW_FP32, SEED, rank, EW_WEIGHT_NK, N, K, B);
    if (status == EW_OK)
        status = ew_plan_create(world, &problem, NULL, &plan);
    if (status == EW_OK)
        status = ew_gemm_rs(plan, M, A, B, C, NULL);
    if (status == EW_OK)
        status = ew_exact_verify(&problem, SEED, rank, num_ranks, M, C, check);
    ew_plan_destroy(plan);
    return status;
}

int main(int argc, char **argv)
{
    MPI_Comm comm = MPI_COMM_WORLD;
    int rank = 0, num_ranks = 1;
    ew_world *world = NULL;
    ew_check check = {0, 0.0};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &num_ranks);

    ew_status status = ew_world_create(rank, num_ranks, allgather, &comm, NULL, &world);
    if (status == EW_OK)
        status = compute(world, rank, num_ranks, &check);
    if (status != EW_OK || check.wrong > 0) {
        fprintf(stderr, "rank %d: %s\n", rank,
                status != EW_OK ? ew_last_error() : "wrong values");
        MPI_Abort(comm, 1);
    }
    ew_world_destroy(world);
    MPI_Barrier(comm);
    if (rank == 0)
        printf("%d ranks of mpirun: every value exact\n", num_ranks);
    MPI_Finalize();
    return 0;
}
