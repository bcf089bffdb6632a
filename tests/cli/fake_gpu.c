/* A machine with GPUs, for golden tests where there is none: preloaded, it answers for the
 * library's GPU functions and lets the cpu backend stand in for cuda.  FAKE_GPUS says how
 * many there are (default 1); rank 0 notes in the file FAKE_LOG what CUDA would read. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "entwine/measure.h"

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int ew_gpu_count(void)
{
    const char *count = getenv("FAKE_GPUS");
    return count ? atoi(count) : 1;
}

ew_status ew_gpu_describe(int index, ew_gpu *gpu_out)
{
    *gpu_out = (ew_gpu){.name = "Fake H200",
                        .uuid = "GPU-00000000-0000-0000-0000-000000000000",
                        .sms = 132,
                        .arch = getenv("FAKE_ARCH") ? atoi(getenv("FAKE_ARCH")) : 90,
                        .driver_version = 13000,
                        .runtime_version = 13000,
                        .clock_mhz = 1980,
                        .memory_bytes = (int64_t)1 << 30,
                        .mig = getenv("FAKE_MIG") != NULL,
                        .exclusive = getenv("FAKE_EXCLUSIVE") != NULL};
    return index < ew_gpu_count() ? EW_OK : EW_ERR_UNSUPPORTED;
}

ew_status ew_gpu_kernels(int index, ew_gpu_kernel *kernels, int capacity, int *count_out)
{
    (void)index, (void)capacity;
    kernels[0] = (ew_gpu_kernel){
        "gemm_sm90 128x256 cluster 2 bf16", 384, 128, 229504, 0, 1, {2, 1, 1}};
    kernels[1] = (ew_gpu_kernel){"reducer W=8 b=256 bf16", 256, 64, 0, 0, 4, {-1, -1, -1}};
    *count_out = 2;
    return EW_OK;
}

static ew_config on_cpu(const ew_config *config)
{
    ew_config other = EW_CONFIG_INIT;
    if (config)
        other = *config;
    if (other.backend == EW_BACKEND_CUDA)
        other.backend = EW_BACKEND_CPU;
    return other;
}

ew_status ew_forecast_build(const ew_problem *problem, int num_ranks,
                            const ew_config *config, ew_forecast *forecast_out)
{
    const ew_config other = on_cpu(config);
    return REAL(ew_forecast_build)(problem, num_ranks, &other, forecast_out);
}

ew_status ew_forecast_explain(const ew_problem *problem, int num_ranks,
                              const ew_config *config, char *text, size_t bytes)
{
    const ew_config other = on_cpu(config);
    return REAL(ew_forecast_explain)(problem, num_ranks, &other, text, bytes);
}

static void note(const ew_world *world)
{
    const char *path = getenv("FAKE_LOG"), *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    FILE *file = path && ew_world_rank(world) == 0 ? fopen(path, "a") : NULL;
    if (!file)
        return;
    fprintf(file, "connections=%s loading=%s mps=%.17s\n",
            getenv("CUDA_DEVICE_MAX_CONNECTIONS"), getenv("CUDA_MODULE_LOADING"),
            folder ? folder : "");
    fclose(file);
}

ew_status ew_bench_run(ew_world *world, const ew_problem *problem,
                       const ew_bench_options *options, const ew_bench_entry *entries,
                       int count, ew_bench_result *results)
{
    ew_bench_entry others[64];
    for (int at = 0; at < count; at++) {
        others[at] = entries[at];
        others[at].config = on_cpu(&entries[at].config);
    }
    note(world);
    return REAL(ew_bench_run)(world, problem, options, others, count, results);
}
