/* The public view of GPUs, in builds with and without the CUDA backend. */
#include "backend/backend.h"
#include "base/status.h"
#include "entwine/measure.h"

#ifdef EW_HAVE_CUDA

#include "backend/cuda/gpu_info.h"

int ew_gpu_count(void)
{
    return ewx_cuda_gpu_count();
}

ew_status ew_gpu_describe(int index, ew_gpu *gpu_out)
{
    if (!gpu_out)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_gpu_describe needs a place for its answer");
    return ewx_cuda_gpu_describe(index, gpu_out);
}

ew_status ew_gpu_kernels(int index, ew_gpu_kernel *kernels, int capacity, int *count_out)
{
    if (!count_out || (capacity > 0 && !kernels))
        return ewx_fail(EW_ERR_ARGUMENT, "ew_gpu_kernels needs places for its answer");
    return ewx_cuda_gpu_kernels(index, kernels, capacity, count_out);
}

static int gpu_of(const ew_world *world)
{
    return ewx_backend_cuda.gpu_of(world);
}

#else

static ew_status fail_no_backend(void)
{
    return ewx_fail(EW_ERR_UNSUPPORTED,
                    "this build has no cuda backend\n"
                    "  fix: build where nvcc is installed with make CUDA=1");
}

int ew_gpu_count(void)
{
    return 0;
}

ew_status ew_gpu_describe(int index, ew_gpu *gpu_out)
{
    (void)index, (void)gpu_out;
    return fail_no_backend();
}

ew_status ew_gpu_kernels(int index, ew_gpu_kernel *kernels, int capacity, int *count_out)
{
    (void)index, (void)kernels, (void)capacity, (void)count_out;
    return fail_no_backend();
}

static int gpu_of(const ew_world *world)
{
    (void)world;
    return -1;
}

#endif

int ew_world_gpu(const ew_world *world)
{
    if (!world || ewx_handle_check(world, EWX_KIND_WORLD, "ew_world_gpu") != EW_OK ||
        ewx_world_enter(world) != EW_OK)
        return -1;
    const int gpu = gpu_of(world);
    ewx_world_leave(world);
    return gpu;
}
