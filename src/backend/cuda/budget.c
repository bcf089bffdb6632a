#include "backend/cuda/budget.h"

#include "base/limits.h"

#define REGISTER_UNIT 256 /* registers are handed out to warps in such units */
#define SHARED_UNIT 128

ew_status ewx_cuda_entry_prepare(ewx_cuda_entry *entry)
{
    struct cudaFuncAttributes attributes;
    EW_CUDA_TRY(cudaFuncGetAttributes(&attributes, entry->function), "loading a kernel");
    if (entry->dynamic_smem > 0)
        EW_CUDA_TRY(cudaFuncSetAttribute(entry->function,
                                         cudaFuncAttributeMaxDynamicSharedMemorySize,
                                         entry->dynamic_smem),
                    "giving a kernel its shared memory");
    /* Kernels that are to share an SM must agree on how its memory is split. */
    EW_CUDA_TRY(cudaFuncSetAttribute(entry->function,
                                     cudaFuncAttributePreferredSharedMemoryCarveout,
                                     cudaSharedmemCarveoutMaxShared),
                "setting a kernel's carveout");
    EW_CUDA_TRY(cudaGetFuncBySymbol(&entry->handle, entry->function), "finding a kernel");
    return EW_OK;
}

/* What an SM has, or what a CTA takes of it. */
typedef struct resources {
    int registers, shared, threads, ctas;
} resources;

static int round_up(int value, int unit)
{
    return (value + unit - 1) / unit * unit;
}

static ew_status sm_resources(int ordinal, resources *sm, int *reserved_out)
{
    const struct {
        enum cudaDeviceAttr attribute;
        int *value;
    } queries[] = {
        {cudaDevAttrMaxRegistersPerMultiprocessor, &sm->registers},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, &sm->shared},
        {cudaDevAttrMaxThreadsPerMultiProcessor, &sm->threads},
        {cudaDevAttrMaxBlocksPerMultiprocessor, &sm->ctas},
        {cudaDevAttrReservedSharedMemoryPerBlock, reserved_out},
    };
    for (size_t i = 0; i < sizeof queries / sizeof queries[0]; i++)
        EW_CUDA_TRY(cudaDeviceGetAttribute(queries[i].value, queries[i].attribute, ordinal),
                    "reading the GPU's resources");
    return EW_OK;
}

static ew_status cta_resources(const ewx_cuda_entry *entry, int reserved, resources *cta)
{
    struct cudaFuncAttributes attributes;
    EW_CUDA_TRY(cudaFuncGetAttributes(&attributes, entry->function), "reading a kernel");
    const int warps = (entry->threads + 31) / 32;
    cta->registers = warps * round_up(attributes.numRegs * 32, REGISTER_UNIT);
    cta->shared = reserved + round_up((int)attributes.sharedSizeBytes + entry->dynamic_smem,
                                      SHARED_UNIT);
    cta->threads = warps * 32;
    cta->ctas = 1;
    return EW_OK;
}

/* How many more CTAs of `kind` fit after `count` of `resident`. */
static int fits(const resources *sm, const resources *resident, int count,
                const resources *kind)
{
    const int left[] = {(sm->registers - count * resident->registers) / kind->registers,
                        (sm->shared - count * resident->shared) / kind->shared,
                        (sm->threads - count * resident->threads) / kind->threads,
                        sm->ctas - count};
    int least = left[0];
    for (size_t i = 1; i < sizeof left / sizeof left[0]; i++)
        least = left[i] < least ? left[i] : least;
    return least > 0 ? least : 0;
}

static ew_status resident_producers(const ewx_device *device,
                                    const ewx_cuda_entry *producer, int cluster, int per_sm,
                                    int *producers_out)
{
    *producers_out = per_sm * device->sms;
    if (cluster == 1)
        return EW_OK;
    cudaLaunchAttribute attribute = {.id = cudaLaunchAttributeClusterDimension,
                                     .val.clusterDim = {(unsigned)cluster, 1, 1}};
    cudaLaunchConfig_t config = {
        .gridDim = {(unsigned)(device->sms / cluster * cluster), 1, 1},
        .blockDim = {(unsigned)producer->threads, 1, 1},
        .dynamicSmemBytes = (size_t)producer->dynamic_smem,
        .attrs = &attribute,
        .numAttrs = 1};
    int clusters;
    EW_CUDA_TRY(cudaOccupancyMaxActiveClusters(&clusters, producer->function, &config),
                "counting resident clusters");
    *producers_out = clusters * cluster;
    return EW_OK;
}

ew_status ewx_budget_measure(const ewx_device *device, const ewx_cuda_entry *producer,
                             int cluster, const ewx_cuda_entry *reducer,
                             ewx_budget *budget_out)
{
    resources sm = {0}, producing = {0}, reducing = {0};
    const resources nothing = {0};
    int reserved = 0;
    EW_TRY(sm_resources(device->ordinal, &sm, &reserved));
    EW_TRY(cta_resources(producer, reserved, &producing));
    EW_TRY(cta_resources(reducer, reserved, &reducing));
    const int per_sm = fits(&sm, &nothing, 0, &producing);
    if (per_sm == 0)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "the producer needs %d registers and %d bytes of shared memory, an "
                        "SM has %d and %d\n  fix: use kernel=sm80 or block=128x128",
                        producing.registers, producing.shared, sm.registers, sm.shared);
    ewx_budget budget = {.reducers_beside = fits(&sm, &producing, per_sm, &reducing)};
    EW_TRY(resident_producers(device, producer, cluster, per_sm, &budget.producers));
    /* With room beside every producer, that many can never keep one out.  Without, each
     * reducer may cost an SM, and a producer (cluster) must still find its own. */
    budget.largest_safe_budget = budget.reducers_beside > 0
                                     ? budget.reducers_beside * device->sms
                                     : device->sms / cluster - 1;
    if (budget.largest_safe_budget < 1)
        budget.largest_safe_budget = 1;
    *budget_out = budget;
    return EW_OK;
}

static ew_status fail_reserve(const ew_config *config, int reducers_per_sm, int reserved,
                              int sms)
{
    const int most = (sms - config->cluster) * reducers_per_sm;
    return ewx_fail(
        EW_ERR_CONFIG,
        "pool=static with x=%d reducing CTAs of b=%d threads takes %d of %d SMs "
        "and leaves too few for the GEMM\n  fix: use x=%d or fewer",
        config->budget, config->batch, reserved, sms, most > 0 ? most : 1);
}

ew_status ewx_budget_reserve(const ewx_device *device, const ewx_cuda_entry *producer,
                             const ew_config *config, ewx_cuda_entry *reducer,
                             ewx_budget *budget)
{
    resources sm = {0}, producing = {0}, reducing = {0};
    const resources nothing = {0};
    int reserved_bytes = 0;
    EW_TRY(sm_resources(device->ordinal, &sm, &reserved_bytes));
    EW_TRY(cta_resources(producer, reserved_bytes, &producing));
    EW_TRY(cta_resources(reducer, reserved_bytes, &reducing));
    const int producers_per_sm = fits(&sm, &nothing, 0, &producing);
    const int left = sm.shared - producers_per_sm * producing.shared;
    const int by_shared = sm.shared / (left + SHARED_UNIT);
    const int by_others = fits(&sm, &nothing, 0, &reducing);
    const int reducers_per_sm = by_shared < by_others ? by_shared : by_others;
    const int reserved = (config->budget + reducers_per_sm - 1) / reducers_per_sm;
    const int producers = (device->sms - reserved) * producers_per_sm;
    if (producers < config->cluster)
        return fail_reserve(config, reducers_per_sm, reserved, device->sms);
    reducer->dynamic_smem +=
        (sm.shared / reducers_per_sm - reducing.shared) / SHARED_UNIT * SHARED_UNIT;
    if (producers < budget->producers)
        budget->producers = producers / config->cluster * config->cluster;
    return ewx_cuda_entry_prepare(reducer);
}

ew_status ewx_budget_check(const ewx_budget *budget, const ew_config *config)
{
#if EW_MUTANT == 13 /* planted bug: what could wait for ever is not refused */
    return EW_OK;
#endif
    if (config->pool == EW_POOL_AFTER || config->budget <= budget->largest_safe_budget)
        return EW_OK;
    return ewx_fail(
        EW_ERR_CONFIG,
        "x=%d reducing CTAs of b=%d threads could keep the producer off its SMs "
        "for ever\n  fix: use x=%d or fewer%s",
        config->budget, config->batch, budget->largest_safe_budget,
        config->batch > 128 ? ", or a smaller b" : "");
}
