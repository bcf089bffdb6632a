#include "backend/cuda/cuda_occupancy.h"

ew_status ewx_cuda_entry_prepare(ewx_cuda_entry *entry)
{
    struct cudaFuncAttributes attributes;
    EW_CUDA_TRY(cudaFuncGetAttributes(&attributes, entry->function), "loading a kernel");
    /* A plan made before may launch it with more. */
    if (entry->dynamic_smem > attributes.maxDynamicSharedSizeBytes)
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

static ew_status sm_resources(int ordinal, ewx_sm_resources *sm, int *reserved_out)
{
    const struct {
        enum cudaDeviceAttr attribute;
        int *value;
    } queries[] = {
        {cudaDevAttrMaxRegistersPerMultiprocessor, &sm->registers},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, &sm->shared_bytes},
        {cudaDevAttrMaxThreadsPerMultiProcessor, &sm->threads},
        {cudaDevAttrMaxBlocksPerMultiprocessor, &sm->ctas},
        {cudaDevAttrReservedSharedMemoryPerBlock, reserved_out},
    };
    for (size_t i = 0; i < sizeof queries / sizeof queries[0]; i++)
        EW_CUDA_TRY(cudaDeviceGetAttribute(queries[i].value, queries[i].attribute, ordinal),
                    "reading the GPU's resources");
    return EW_OK;
}

ew_status ewx_cuda_entry_needs(const ewx_cuda_entry *entry, ewx_kernel_needs *needs_out)
{
    struct cudaFuncAttributes attributes;
    EW_CUDA_TRY(cudaFuncGetAttributes(&attributes, entry->function), "reading a kernel");
    *needs_out = (ewx_kernel_needs){.threads = entry->threads,
                                    .registers = attributes.numRegs,
                                    .shared_bytes = (int)attributes.sharedSizeBytes +
                                                    entry->dynamic_smem};
    return EW_OK;
}

/* A pair on this GPU. */
typedef struct room {
    ewx_sm_resources sm, awaited, waiter;
    int awaited_per_sm;
} room;

static ew_status look_at(const ewx_device *device, ewx_kernel_pair pair, room *room_out)
{
    room r = {.awaited_per_sm = 0};
    const ewx_sm_resources nothing = {0};
    ewx_kernel_needs awaited = {0}, waiter = {0};
    int reserved = 0;
    EW_TRY(sm_resources(device->ordinal, &r.sm, &reserved));
    EW_TRY(ewx_cuda_entry_needs(pair.awaited, &awaited));
    EW_TRY(ewx_cuda_entry_needs(pair.waiter, &waiter));
    r.awaited = ewx_cta_resources(awaited, reserved);
    r.waiter = ewx_cta_resources(waiter, reserved);
    r.awaited_per_sm = ewx_fits(&r.sm, &nothing, 0, &r.awaited);
    *room_out = r;
    return EW_OK;
}

static ew_status count_resident(const ewx_device *device, ewx_kernel_pair pair, int per_sm,
                                int *ctas_out)
{
    *ctas_out = per_sm * device->sms;
    if (pair.cluster == 1)
        return EW_OK;
    cudaLaunchAttribute attribute = {.id = cudaLaunchAttributeClusterDimension,
                                     .val.clusterDim = {(unsigned)pair.cluster, 1, 1}};
    cudaLaunchConfig_t config = {
        .gridDim = {(unsigned)(device->sms / pair.cluster * pair.cluster), 1, 1},
        .blockDim = {(unsigned)pair.awaited->threads, 1, 1},
        .dynamicSmemBytes = (size_t)pair.awaited->dynamic_smem,
        .attrs = &attribute,
        .numAttrs = 1};
    int clusters;
    EW_CUDA_TRY(cudaOccupancyMaxActiveClusters(&clusters, pair.awaited->function, &config),
                "counting resident clusters");
    *ctas_out = clusters * pair.cluster;
    return EW_OK;
}

ew_status ewx_occupancy_measure(const ewx_device *device, ewx_kernel_pair pair,
                                ewx_occupancy *occupancy_out)
{
    room r;
    ewx_occupancy occupancy;
    const ewx_sm_resources nothing = {0};
    EW_TRY(look_at(device, pair, &r));
    if (r.awaited_per_sm == 0)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "the producer needs %d registers and %d bytes of shared memory, an "
                        "SM has %d and %d\n  fix: use kernel=sm80 or block=128x128",
                        r.awaited.registers, r.awaited.shared_bytes, r.sm.registers,
                        r.sm.shared_bytes);
    occupancy.waiters_beside = ewx_fits(&r.sm, &r.awaited, r.awaited_per_sm, &r.waiter);
    occupancy.most_waiters =
        ewx_most_waiters(occupancy.waiters_beside, device->sms, pair.cluster);
    occupancy.waiters_alone = ewx_fits(&r.sm, &nothing, 0, &r.waiter) * device->sms;
    EW_TRY(count_resident(device, pair, r.awaited_per_sm, &occupancy.awaited));
    *occupancy_out = occupancy;
    return EW_OK;
}

static ew_status fail_reserve(const ew_config *config, int waiters_per_sm, int reserved,
                              int sms)
{
    const int most = (sms - config->cluster) * waiters_per_sm;
    return ewx_fail(
        EW_ERR_CONFIG,
        "pool=static with x=%d reducing CTAs of b=%d threads takes %d of %d SMs "
        "and leaves too few for the GEMM\n  fix: use x=%d or fewer",
        config->budget, config->batch, reserved, sms, most > 0 ? most : 1);
}

ew_status ewx_occupancy_reserve(const ewx_device *device, ewx_kernel_pair pair,
                                const ew_config *config, ewx_occupancy *occupancy)
{
    room r;
    const ewx_sm_resources nothing = {0};
    EW_TRY(look_at(device, pair, &r));
    const int left = r.sm.shared_bytes - r.awaited_per_sm * r.awaited.shared_bytes;
    const int by_shared = r.sm.shared_bytes / (left + EWX_SHARED_UNIT);
    const int by_others = ewx_fits(&r.sm, &nothing, 0, &r.waiter);
    const int waiters_per_sm = by_shared < by_others ? by_shared : by_others;
    const int reserved = (config->budget + waiters_per_sm - 1) / waiters_per_sm;
    const int awaited = (device->sms - reserved) * r.awaited_per_sm;
    if (awaited < pair.cluster)
        return fail_reserve(config, waiters_per_sm, reserved, device->sms);
    pair.waiter->dynamic_smem +=
        (r.sm.shared_bytes / waiters_per_sm - r.waiter.shared_bytes) / EWX_SHARED_UNIT *
        EWX_SHARED_UNIT;
    if (awaited < occupancy->awaited)
        occupancy->awaited = awaited / pair.cluster * pair.cluster;
    return ewx_cuda_entry_prepare(pair.waiter);
}

/* Beside a GEMM that fills the SMs there is room for `waiters_beside` on each, whoever
 * comes first.  If there is none, every CTA of either kernel takes at most the room of one
 * of the GEMM's (whose kernel is the larger), so together they must not be more than of
 * these fit; then none keeps another out. */
ew_status ewx_occupancy_share(const ew_config *config, ewx_occupancy *occupancy)
{
    if (config->pool == EW_POOL_AFTER || occupancy->waiters_beside > 0)
        return EW_OK;
    if (config->budget >= occupancy->awaited)
        return ewx_fail(EW_ERR_CONFIG,
                        "x=%d moving CTAs leave no room for the GEMM that waits for them\n"
                        "  fix: use x=%d or fewer",
                        config->budget,
                        occupancy->awaited > 1 ? occupancy->awaited - 1 : 1);
    occupancy->awaited -= config->budget;
    occupancy->awaited -= occupancy->awaited % config->cluster;
    return EW_OK;
}

/* With pool=static there are SMs without the GEMM, unless several of its CTAs fit on one:
 * then they lie one on each SM first. */
bool ewx_occupancy_fits_beside(const ewx_occupancy *occupancy, const ew_config *config)
{
    return occupancy->waiters_beside > 0 ||
           (config->pool == EW_POOL_STATIC && config->kernel == EW_KERNEL_SM90);
}

ew_status ewx_occupancy_check(const ewx_occupancy *occupancy, const ew_config *config)
{
#if EW_MUTANT == 13 /* planted bug: what could wait for ever is not refused */
    return EW_OK;
#endif
    if (config->pool == EW_POOL_AFTER || config->budget <= occupancy->most_waiters)
        return EW_OK;
    return ewx_fail(
        EW_ERR_CONFIG,
        "x=%d reducing CTAs of b=%d threads could keep the producer off its SMs "
        "for ever\n  fix: use x=%d or fewer%s",
        config->budget, config->batch, occupancy->most_waiters,
        config->batch > 128 ? ", or a smaller b" : "");
}

ew_status ewx_occupancy_check_meeting(const ewx_occupancy *occupancy,
                                      const ew_config *config)
{
    if (config->budget <= occupancy->waiters_alone)
        return EW_OK;
    return ewx_fail(EW_ERR_CONFIG,
                    "x=%d reducing CTAs of b=%d threads wait for those of other ranks, and "
                    "only %d run at once\n  fix: use x=%d or fewer",
                    config->budget, config->batch, occupancy->waiters_alone,
                    occupancy->waiters_alone);
}
