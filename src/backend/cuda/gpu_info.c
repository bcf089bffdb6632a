#include "backend/cuda/gpu_info.h"

#include <stdio.h>
#include <string.h>

#include "backend/cuda/cuda_occupancy.h"

int ewx_cuda_gpu_count(void)
{
    const ewx_driver *driver;
    int count = 0;
    if (ewx_driver_get(&driver) != EW_OK || cudaGetDeviceCount(&count) != cudaSuccess)
        return 0;
    return count;
}

static ew_status check_index(int index)
{
    const ewx_driver *driver;
    EW_TRY(ewx_driver_get(&driver));
    const int count = ewx_cuda_gpu_count();
    if (index < 0 || index >= count)
        return ewx_fail(EW_ERR_ARGUMENT, "there is no GPU %d\n  fix: use 0 to %d", index,
                        count - 1);
    return EW_OK;
}

/* ---- GPUs ---- */

static void print_uuid(const struct cudaDeviceProp *properties, bool mig, ew_gpu *gpu)
{
    const unsigned char *bytes = (const unsigned char *)properties->uuid.bytes;
    ewx_text text = ewx_text_in(gpu->uuid, sizeof gpu->uuid);
    ewx_text_add(&text, "%s", mig ? "MIG" : "GPU");
    for (int i = 0; i < 16; i++) {
        const bool starts_group = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
        ewx_text_add(&text, "%s%02x", starts_group ? "-" : "", bytes[i]);
    }
}

static ew_status read_numbers(int index, ew_gpu *gpu)
{
    int clock_khz, mode;
    const struct {
        enum cudaDeviceAttr attribute;
        int *value;
    } queries[] = {
        {cudaDevAttrClockRate, &clock_khz},
        {cudaDevAttrComputeMode, &mode},
    };
    for (size_t i = 0; i < sizeof queries / sizeof queries[0]; i++)
        EW_CUDA_TRY(cudaDeviceGetAttribute(queries[i].value, queries[i].attribute, index),
                    "reading the GPU");
    gpu->clock_mhz = clock_khz / 1000;
    gpu->exclusive = mode != cudaComputeModeDefault;
    EW_CUDA_TRY(cudaDriverGetVersion(&gpu->driver_version), "reading the driver's version");
    EW_CUDA_TRY(cudaRuntimeGetVersion(&gpu->runtime_version), "reading CUDA's version");
    return EW_OK;
}

ew_status ewx_cuda_gpu_describe(int index, ew_gpu *gpu_out)
{
    struct cudaDeviceProp properties;
    EW_TRY(check_index(index));
    EW_CUDA_TRY(cudaGetDeviceProperties(&properties, index), "reading the GPU");
    ew_gpu gpu = {.sms = properties.multiProcessorCount,
                  .arch = properties.major * 10 + properties.minor,
                  .memory_bytes = (int64_t)properties.totalGlobalMem};
    snprintf(gpu.name, sizeof gpu.name, "%.63s", properties.name);
    /* Only the name shows it: "NVIDIA H200 MIG 1g.18gb". */
    gpu.mig = strstr(properties.name, " MIG ") != NULL;
    print_uuid(&properties, gpu.mig, &gpu);
    EW_TRY(read_numbers(index, &gpu));
    *gpu_out = gpu;
    return EW_OK;
}

/* ---- Kernels ---- */

static const ew_dtype gpu_dtypes[] = {EW_BF16, EW_FP16};
static const int gpu_columns[] = {256, 128};
static const int reducer_threads[] = {128, 256, 512};
static const int reducer_ranks[] = {2, 4, 8, 3}; /* 3 stands for any other W */

#define COUNT_OF(list) ((int)(sizeof(list) / sizeof *(list)))

typedef struct kernel_list {
    ewx_device device; /* the whole GPU, as far as its occupancy is concerned */
    ew_gpu_kernel *kernels;
    int capacity;
    int count;
} kernel_list;

static ew_status measure(const ewx_cuda_entry *entry, ew_gpu_kernel *kernel)
{
    struct cudaFuncAttributes attributes;
    ewx_kernel_needs needs;
    ewx_cuda_entry loaded = *entry;
    EW_TRY(ewx_cuda_entry_prepare(&loaded));
    EW_TRY(ewx_cuda_entry_needs(entry, &needs));
    EW_CUDA_TRY(cudaFuncGetAttributes(&attributes, entry->function), "reading a kernel");
    EW_CUDA_TRY(cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                    &kernel->ctas_per_sm, entry->function, entry->threads,
                    (size_t)entry->dynamic_smem),
                "reading a kernel's occupancy");
    kernel->threads = needs.threads;
    kernel->registers = needs.registers;
    kernel->shared_bytes = needs.shared_bytes;
    kernel->spill_bytes = (int32_t)attributes.localSizeBytes;
    return EW_OK;
}

/* The fewest over all W, so that the figure holds for any. */
static ew_status count_beside(const kernel_list *list, const ewx_cuda_entry *gemm,
                              int cluster, ew_dtype dtype, ew_gpu_kernel *kernel)
{
    for (int width = 0; width < COUNT_OF(reducer_threads); width++) {
        int32_t *least = &kernel->reducers_beside[width];
        for (int i = 0; i < COUNT_OF(reducer_ranks); i++) {
            ewx_cuda_entry reducer =
                ewx_cuda_reducer(dtype, reducer_ranks[i], reducer_threads[width]);
            const ewx_kernel_pair pair = {gemm, cluster, &reducer};
            ewx_occupancy occupancy;
            EW_TRY(ewx_occupancy_measure(&list->device, pair, &occupancy));
            if (*least < 0 || occupancy.waiters_beside < *least)
                *least = occupancy.waiters_beside;
        }
    }
    return EW_OK;
}

/* cluster > 0: a GEMM. */
static ew_status add_kernel(kernel_list *list, const ewx_cuda_entry *entry, int cluster,
                            ew_dtype dtype, const char *name)
{
    ew_gpu_kernel kernel = {.reducers_beside = {-1, -1, -1}};
    if (!entry->function)
        return EW_OK; /* there is no such variant */
    snprintf(kernel.name, sizeof kernel.name, "%s", name);
    EW_TRY(measure(entry, &kernel));
    if (cluster > 0 && kernel.ctas_per_sm > 0)
        EW_TRY(count_beside(list, entry, cluster, dtype, &kernel));
    if (list->count < list->capacity)
        list->kernels[list->count] = kernel;
    list->count++;
    return EW_OK;
}

static ew_status add_gemms(kernel_list *list, ew_dtype dtype)
{
    char name[64];
    for (int i = 0; i < COUNT_OF(gpu_columns); i++) {
        const int columns = gpu_columns[i];
        for (int cluster = 1; cluster <= 2 && list->device.arch / 10 == 9; cluster++) {
            const ewx_cuda_entry entry = ewx_cuda_gemm_sm90(
                EW_OP_GEMM_RS, EWX_CUDA_ONE_WEIGHT, dtype, columns, cluster);
            snprintf(name, sizeof name, "gemm_sm90 128x%d cluster %d %s", columns, cluster,
                     ew_dtype_name(dtype));
            EW_TRY(add_kernel(list, &entry, cluster, dtype, name));
        }
        const ewx_cuda_entry entry =
            ewx_cuda_gemm_sm80(EW_OP_GEMM_RS, EWX_CUDA_ONE_WEIGHT, dtype, columns);
        snprintf(name, sizeof name, "gemm_sm80 128x%d %s", columns, ew_dtype_name(dtype));
        EW_TRY(add_kernel(list, &entry, 1, dtype, name));
    }
    return EW_OK;
}

static ew_status add_reducers(kernel_list *list, ew_dtype dtype)
{
    char name[64], ranks[16];
    for (int i = 0; i < COUNT_OF(reducer_ranks); i++) {
        snprintf(ranks, sizeof ranks, "%d", reducer_ranks[i]);
        for (int width = 0; width < COUNT_OF(reducer_threads); width++) {
            const ewx_cuda_entry entry =
                ewx_cuda_reducer(dtype, reducer_ranks[i], reducer_threads[width]);
            snprintf(name, sizeof name, "reducer W=%s b=%d %s",
                     reducer_ranks[i] == 3 ? "any" : ranks, reducer_threads[width],
                     ew_dtype_name(dtype));
            EW_TRY(add_kernel(list, &entry, 0, dtype, name));
        }
    }
    return EW_OK;
}

/* The reducer with an epilogue at the W of a node, and what follows it. */
static ew_status add_epilogues(kernel_list *list, ew_dtype dtype)
{
    char name[64];
    for (int width = 0; width < COUNT_OF(reducer_threads); width++) {
        const ewx_cuda_entry entry =
            ewx_cuda_fused_reducer(dtype, 8, reducer_threads[width]);
        snprintf(name, sizeof name, "fused reducer W=8 b=%d %s", reducer_threads[width],
                 ew_dtype_name(dtype));
        EW_TRY(add_kernel(list, &entry, 0, dtype, name));
    }
    const ewx_cuda_entry rest = ewx_cuda_epilogue_rest(dtype);
    const ewx_cuda_entry whole = ewx_cuda_epilogue_whole(dtype);
    snprintf(name, sizeof name, "epilogue rest %s", ew_dtype_name(dtype));
    EW_TRY(add_kernel(list, &rest, 0, dtype, name));
    snprintf(name, sizeof name, "epilogue whole %s", ew_dtype_name(dtype));
    return add_kernel(list, &whole, 0, dtype, name);
}

static ew_status add_all(kernel_list *list)
{
    for (int i = 0; i < COUNT_OF(gpu_dtypes); i++)
        EW_TRY(add_gemms(list, gpu_dtypes[i]));
    for (int i = 0; i < COUNT_OF(gpu_dtypes); i++)
        EW_TRY(add_reducers(list, gpu_dtypes[i]));
    for (int i = 0; i < COUNT_OF(gpu_dtypes); i++)
        EW_TRY(add_epilogues(list, gpu_dtypes[i]));
    const ewx_cuda_entry open_call = ewx_cuda_open_call(), transpose = ewx_cuda_transpose();
    EW_TRY(add_kernel(list, &open_call, 0, EW_BF16, "open_call"));
    return add_kernel(list, &transpose, 0, EW_BF16, "transpose");
}

/* Leaves the caller's context as it was, also where it had none: a plan goes to the GPU of
 * the current one. */
static ew_status add_all_there(kernel_list *list)
{
    const ewx_driver *driver;
    CUcontext primary, ours;
    EW_TRY(ewx_driver_get(&driver));
    EW_DRIVER_TRY(driver->cuDevicePrimaryCtxRetain(&primary, list->device.ordinal),
                  "opening the GPU");
    ew_status status = EW_OK;
    const CUresult entered = driver->cuCtxPushCurrent(primary);
    if (entered == CUDA_SUCCESS) {
        status = add_all(list);
        driver->cuCtxPopCurrent(&ours);
    } else {
        status = ewx_driver_fail(entered, "entering the GPU");
    }
    driver->cuDevicePrimaryCtxRelease(list->device.ordinal);
    return status;
}

ew_status ewx_cuda_gpu_kernels(int index, ew_gpu_kernel *kernels, int capacity,
                               int *count_out)
{
    ew_gpu gpu;
    EW_TRY(ewx_cuda_gpu_describe(index, &gpu));
    if (gpu.arch < 80)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "GPU %d has compute capability %d.%d\n"
                        "  fix: use one of 8.0 or later",
                        index, gpu.arch / 10, gpu.arch % 10);
    kernel_list list = {.device = {.ordinal = index, .arch = gpu.arch, .sms = gpu.sms},
                        .kernels = kernels,
                        .capacity = capacity};
    EW_TRY(add_all_there(&list));
    *count_out = list.count;
    return EW_OK;
}
