#include "backend/cuda/cuda_weight.h"

#include "backend/cuda/capture.h"
#include "backend/cuda/cuda_occupancy.h"
#include "backend/cuda/cuda_engine.h"

#define OPERAND_ALIGNMENT 16 /* of TMA, and of 16-byte loads */
#define MOST_CTAS_IN_Y 65535 /* of any grid */

size_t ewx_cuda_weight_bytes(const ewx_spec *spec)
{
    return (size_t)(spec->problem.n * spec->problem.k) * spec->elem_bytes;
}

ew_status ewx_cuda_check_pointer(const char *name, const void *pointer)
{
    if ((uintptr_t)pointer % OPERAND_ALIGNMENT == 0)
        return EW_OK;
    return ewx_fail(EW_ERR_ARGUMENT,
                    "%s=%p is not aligned to %d bytes\n"
                    "  fix: start the matrix at an aligned address",
                    name, pointer, OPERAND_ALIGNMENT);
}

ew_status ewx_cuda_weight_enqueue(const ewx_device *device, const ewx_spec *spec, int64_t n,
                                  const ewx_cuda_entry *transpose, const void *B,
                                  void *packed)
{
    const ew_problem *problem = &spec->problem;
    if (problem->weight_layout == EW_WEIGHT_NK) {
        const size_t bytes = (size_t)(n * problem->k) * spec->elem_bytes;
        EW_CUDA_TRY(cudaMemcpyAsync(packed, B, bytes, cudaMemcpyDefault, device->producing),
                    "copying the weight");
        return EW_OK;
    }
    int64_t rows = problem->k, cols = n;
    void *arguments[] = {&B, &packed, &rows, &cols};
    const dim3 grid = {(unsigned)ewx_div_up(cols, 32),
                       (unsigned)ewx_min64(ewx_div_up(rows, 32), MOST_CTAS_IN_Y), 1};
    const dim3 block = {32, (unsigned)transpose->threads / 32, 1};
    return ewx_cuda_launch(device, transpose, grid, block, (ewx_launch_how){0},
                           device->producing, arguments);
}

/* Behind this no call of this rank reads any weight, and all ranks have enqueued theirs.
 * Allocating and freeing may still wait for ranks as threads that are in a later call: see
 * ew_weight_destroy, and cuda_launch.c, "Ranks as threads". */
static cudaError_t drain(const ewx_device *device)
{
    const cudaError_t produced = cudaStreamSynchronize(device->producing);
    const cudaError_t reduced = cudaStreamSynchronize(device->reducing);
    return produced != cudaSuccess ? produced : reduced;
}

ew_status ewx_cuda_weight_open(ew_world *world, const ewx_spec *spec, void **packed_out)
{
    const ewx_device *device;
    EW_TRY(ewx_device_of(world, &device));
    EW_TRY(ewx_check_not_captured(device, "a weight is created"));
    EW_TRY(ewx_device_enter(device));
    cudaError_t error = drain(device);
    if (error == cudaSuccess)
        error = cudaMalloc(packed_out, ewx_cuda_weight_bytes(spec));
    ewx_device_leave(device);
    return error == cudaSuccess ? EW_OK : ewx_cuda_fail(error, "allocating the weight");
}

/* B may just have been made by work on the default stream, which the rank's own streams do
 * not wait for.  Ranks that are threads have it in common: there it may hold another
 * rank's work, which waits for us. */
static ew_status await_default_stream(const ew_world *world, const ewx_device *device)
{
    enum cudaStreamCaptureStatus capture;
    cudaError_t error = cudaSuccess;
#if EW_MUTANT == 90 /* planted bug: B is packed before it is there */
    return EW_OK;
#endif
    if (world->in_threads && device->sharers > 1)
        return EW_OK;
    EW_DRIVER_TRY(device->driver->cuCtxPushCurrent(device->primary), "entering the GPU");
    if (cudaStreamIsCapturing(cudaStreamLegacy, &capture) == cudaSuccess)
        error = cudaStreamSynchronize(cudaStreamLegacy);
    else /* it must be left alone while another stream is captured */
        (void)cudaGetLastError();
    ewx_device_leave(device);
    return error == cudaSuccess ? EW_OK : ewx_cuda_fail(error, "waiting for the weight");
}

static ew_status pack_entered(const ewx_device *device, const ewx_spec *spec, void *packed,
                              const void *B)
{
    ewx_cuda_entry transpose = ewx_cuda_transpose();
    EW_TRY(ewx_cuda_entry_prepare(&transpose));
    EW_TRY(ewx_cuda_weight_enqueue(device, spec, spec->problem.n, &transpose, B, packed));
    EW_CUDA_TRY(cudaStreamSynchronize(device->producing), "copying the weight");
    return EW_OK;
}

ew_status ewx_cuda_weight_pack(ew_world *world, const ewx_spec *spec, void *packed,
                               const void *B)
{
    const ewx_device *device;
    EW_TRY(ewx_cuda_check_pointer("B", B));
    EW_TRY(ewx_device_of(world, &device));
    EW_TRY(ewx_check_not_captured(device, "a weight is packed"));
    EW_TRY(await_default_stream(world, device));
    EW_TRY(ewx_device_enter(device));
    const ew_status status = pack_entered(device, spec, packed, B);
    ewx_device_leave(device);
    return status;
}

void ewx_cuda_weight_close(ew_world *world, void *packed)
{
    const ewx_device *device;
    if (ewx_device_of(world, &device) != EW_OK || ewx_device_enter(device) != EW_OK)
        return;
    (void)drain(device);
    cudaFree(packed);
    (void)cudaGetLastError();
    ewx_device_leave(device);
}
