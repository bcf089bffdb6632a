#include "backend/cuda/cuda_memory.h"

#include <string.h>

#include "backend/cuda/capture.h"
#include "backend/cuda/cuda_engine.h"

#define CTAS_PER_SM 8 /* of kernels that only fill or compare */

/* Every function here works on the world's device, behind the calls that it has been given,
 * and returns when the work is done. */
static ew_status begin(ew_world *world, const ewx_device **device_out)
{
    EW_TRY(ewx_device_of(world, device_out));
    EW_TRY(ewx_check_not_captured(*device_out, "memory is used through the world"));
    return ewx_device_enter(*device_out);
}

/* Keeps the first error. */
static ew_status end(const ewx_device *device, cudaError_t error, const char *what)
{
    const cudaError_t finished = cudaStreamSynchronize(device->producing);
    if (error == cudaSuccess)
        error = finished;
    const ew_status status = error == cudaSuccess ? EW_OK : ewx_cuda_fail(error, what);
    ewx_device_leave(device);
    return status;
}

ew_status ewx_cuda_allocate(ew_world *world, size_t bytes, void **memory_out)
{
    const ewx_device *device;
    EW_TRY(begin(world, &device));
    return end(device, cudaMalloc(memory_out, bytes > 0 ? bytes : 1),
               "allocating a matrix");
}

void ewx_cuda_release(ew_world *world, void *memory)
{
    const ewx_device *device;
    if (begin(world, &device) == EW_OK)
        (void)end(device, cudaFree(memory), "freeing a matrix");
}

ew_status ewx_cuda_copy(ew_world *world, void *to, const void *from, size_t bytes)
{
    const ewx_device *device;
    EW_TRY(begin(world, &device));
    return end(device,
               cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, device->producing),
               "copying a matrix");
}

ew_status ewx_cuda_fill(ew_world *world, void *to, int byte, size_t bytes)
{
    const ewx_device *device;
    EW_TRY(begin(world, &device));
    return end(device, cudaMemsetAsync(to, byte, bytes, device->producing),
               "filling a matrix");
}

static cudaError_t launch(const ewx_device *device, const ewx_cuda_entry *entry,
                          void **arguments)
{
    const cudaLaunchConfig_t config = {
        .gridDim = {(unsigned)(CTAS_PER_SM * device->sms), 1, 1},
        .blockDim = {(unsigned)entry->threads, 1, 1},
        .stream = device->producing};
    return cudaLaunchKernelExC(&config, entry->function, arguments);
}

ew_status ewx_cuda_generate(ew_world *world, const ewx_input *input, void *matrix)
{
    const ewx_device *device;
    ewx_input copy = *input;
    const ewx_cuda_entry entry = ewx_cuda_generator(input->dtype);
    void *arguments[] = {&copy, &matrix};
    cudaError_t error = cudaSuccess;
    if (input->rows == 0)
        return EW_OK;
    EW_TRY(begin(world, &device));
    if (input->kind == EWX_INPUT_EXACT_A)
        error = cudaMemsetAsync(
            matrix, 0, (size_t)(input->rows * input->depth) * ew_dtype_bytes(input->dtype),
            device->producing);
    if (error == cudaSuccess)
        error = launch(device, &entry, arguments);
    return end(device, error, "generating a matrix");
}

ew_status ewx_cuda_verify(ew_world *world, const ew_problem *problem, uint32_t seed,
                          int64_t m, const void *C, ew_check *check_out)
{
    const ewx_device *device;
    ewx_cuda_expectation expected = {.seed = seed,
                                     .num_ranks = world->num_ranks,
                                     .gathers = ewx_op_of(problem)->gemm_waits,
                                     .rank = world->rank,
                                     .all_rows = m,
                                     .cols = problem->n,
                                     .depth = problem->k};
    ewx_cuda_verdict *verdict = NULL;
    const ewx_cuda_entry entry = ewx_cuda_verifier(problem->dtype);
    void *arguments[] = {&expected, &C, &verdict};
    const ewx_rows rows = ewx_op_of(problem)->rows_c(m, world->num_ranks, world->rank);
    expected.first_row = rows.first;
    expected.rows = rows.count;
    *check_out = (ew_check){0};
    if (expected.rows == 0)
        return EW_OK;
    EW_TRY(begin(world, &device));
    /* Host memory that the kernel can reach: a few atomics at most, when all is well none.
     */
    cudaError_t error =
        cudaHostAlloc((void **)&verdict, sizeof *verdict, cudaHostAllocMapped);
    if (error == cudaSuccess) {
        memset(verdict, 0, sizeof *verdict);
        error = launch(device, &entry, arguments);
    }
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(device->producing);
    if (error == cudaSuccess) {
        check_out->wrong = (int64_t)verdict->wrong;
        memcpy(&check_out->max_abs_err, &verdict->worst_bits, sizeof(double));
    }
    cudaFreeHost(verdict);
    return end(device, error, "verifying a matrix");
}
