/* On GPUs, in a stream of the caller's: copies, call and copy back are enqueued, and
 * nothing waits in between.  One rank per GPU; on a single GPU two ranks share it.
 *
 *     cc cuda_stream.c $(pkg-config --cflags --libs entwine) -lcudart -o cuda_stream
 *
 * Inputs are small integers whose result is known exactly; exits with 0 when every rank has
 * its bits, with 77 where there is no GPU. */
#include <cuda_runtime_api.h>
#include <entwine/entwine.h>
#include <entwine/measure.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { M = 1000, N = 1024, K = 512, SEED = 1, BYTES = 2 };
enum { A_BYTES = M * K * BYTES, B_BYTES = N * K * BYTES, C_BYTES = M * N * BYTES };

static ew_status cuda(cudaError_t result)
{
    if (result != cudaSuccess)
        fprintf(stderr, "CUDA: %s\n", cudaGetErrorString(result));
    return result == cudaSuccess ? EW_OK : EW_ERR_SYSTEM;
}
#define TRY(call) status = status != EW_OK ? status : (call)

static int rank_main(ew_world *world, void *argument)
{
    const int rank = ew_world_rank(world), num_ranks = ew_world_size(world);
    const int gpus = *(const int *)argument;
    uint16_t *A = malloc(A_BYTES), *B = malloc(B_BYTES), *C = malloc(C_BYTES);
    void *dA = NULL, *dB = NULL, *dC = NULL;
    int64_t first = 0, rows = 0;
    cudaStream_t stream = NULL;
    ew_plan *plan = NULL;
    ew_config config = EW_CONFIG_INIT;
    ew_problem problem = EW_PROBLEM(M, N, K, EW_BF16);
    ew_check check = {0, 0.0};
    config.backend = EW_BACKEND_CUDA;

    ew_status status = A && B && C ? EW_OK : EW_ERR_MEMORY;
    TRY(ew_exact_fill_a(EW_BF16, SEED, rank, num_ranks, M, K, A));
    TRY(ew_exact_fill_b(EW_BF16, SEED, rank, EW_WEIGHT_NK, N, K, B));
    TRY(ew_owned_rows(M, num_ranks, rank, &first, &rows));
    TRY(cuda(cudaSetDevice(rank % gpus))); /* the plan computes there, too */
    TRY(cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)));
    TRY(cuda(cudaMalloc(&dA, A_BYTES)));
    TRY(cuda(cudaMalloc(&dB, B_BYTES)));
    TRY(cuda(cudaMalloc(&dC, C_BYTES)));
    TRY(ew_plan_create(world, &problem, &config, &plan));
    TRY(cuda(cudaMemcpyAsync(dA, A, A_BYTES, cudaMemcpyHostToDevice, stream)));
    TRY(cuda(cudaMemcpyAsync(dB, B, B_BYTES, cudaMemcpyHostToDevice, stream)));
    TRY(ew_gemm_rs(plan, M, dA, dB, dC, stream));
    TRY(cuda(
        cudaMemcpyAsync(C, dC, (size_t)rows * N * BYTES, cudaMemcpyDeviceToHost, stream)));
    TRY(cuda(cudaStreamSynchronize(stream)));
    TRY(ew_plan_wait(plan)); /* reports a peer's fault */
    TRY(ew_exact_verify(&problem, SEED, rank, num_ranks, M, C, &check));
    if (status != EW_OK || check.wrong > 0)
        fprintf(stderr, "rank %d: %s\n", rank, status ? ew_last_error() : "wrong values");
    ew_plan_destroy(plan); /* the process ends: CUDA frees the rest */
    free(A), free(B), free(C);
    return status != EW_OK || check.wrong > 0;
}

int main(void)
{
    /* For ranks that share a GPU as threads; must be set before CUDA starts. */
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    int gpus = ew_gpu_count();
    if (gpus == 0) {
        fputs("no GPU here, or no cuda backend in the library\n", stderr);
        return 77;
    }
    return ew_run_ranks(EW_RANKS_AS_THREADS, gpus > 1 ? gpus : 2, NULL, rank_main, &gpus,
                        NULL) != EW_OK;
}
