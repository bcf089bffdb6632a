#include "backend/cuda/sm_groups.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ewx_sm_group *known;

/* After a reset the GPU has another context, and groups of the old one are gone. */
static ewx_sm_group *find_free(int ordinal, unsigned long long primary_id, int share_sms,
                               int index)
{
    ewx_sm_group *at = known;
    while (at && (at->is_taken || at->ordinal != ordinal || at->share_sms != share_sms ||
                  at->index != index || at->primary_id != primary_id))
        at = at->next;
    return at;
}

static ew_status create(const ewx_driver *driver, ewx_sm_group *group)
{
    const CUdevice handle = group->ordinal; /* the runtime's ordinals are the driver's */
    CUdevResource whole, parts[64], rest;
    unsigned count = sizeof parts / sizeof parts[0];
    CUdevResourceDesc description;
    CUcontext kept;
    EW_DRIVER_TRY(driver->cuDeviceGetDevResource(handle, &whole, CU_DEV_RESOURCE_TYPE_SM),
                  "reading the GPU's SMs");
    EW_DRIVER_TRY(driver->cuDevSmResourceSplitByCount(parts, &count, &whole, &rest, 0,
                                                      (unsigned)group->share_sms),
                  "splitting the GPU's SMs");
    if (group->index >= (int)count)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "the GPU splits into %u groups of %d SMs, too few for rank %d of "
                        "its ranks\n  fix: use %u ranks or fewer per GPU",
                        count, group->share_sms, group->index, count);
    group->sms = (int)parts[group->index].sm.smCount;
    EW_DRIVER_TRY(driver->cuDevResourceGenerateDesc(&description, &parts[group->index], 1),
                  "describing a group of SMs");
    EW_DRIVER_TRY(driver->cuGreenCtxCreate(&group->green, description, handle,
                                           CU_GREEN_CTX_DEFAULT_STREAM),
                  "opening a group of SMs");
    EW_DRIVER_TRY(driver->cuCtxFromGreenCtx(&group->context, group->green),
                  "opening a group of SMs");
    /* It lives as long as the context that it is a part of. */
    EW_DRIVER_TRY(driver->cuDevicePrimaryCtxRetain(&kept, handle), "opening the GPU");
    return EW_OK;
}

static ew_status add(const ewx_driver *driver, const ewx_sm_group *wanted,
                     ewx_sm_group **group_out)
{
    ewx_sm_group *group = malloc(sizeof *group);
    if (!group)
        return ewx_fail(EW_ERR_MEMORY, "no memory for a group of SMs");
    *group = *wanted;
    const ew_status status = create(driver, group);
    if (status != EW_OK) {
        if (group->green)
            driver->cuGreenCtxDestroy(group->green);
        free(group);
        return status;
    }
    group->next = known;
    known = group;
    *group_out = group;
    return EW_OK;
}

ew_status ewx_sm_group_take(const ewx_driver *driver, int ordinal, CUcontext primary,
                            int share_sms, int index, ewx_sm_group **group_out)
{
    ewx_sm_group wanted = {.ordinal = ordinal, .share_sms = share_sms, .index = index};
    ew_status status = EW_OK;
    EW_DRIVER_TRY(driver->cuCtxGetId(primary, &wanted.primary_id), "identifying the GPU");
    pthread_mutex_lock(&lock);
    ewx_sm_group *group = find_free(ordinal, wanted.primary_id, share_sms, index);
    if (!group)
        status = add(driver, &wanted, &group);
    if (group)
        group->is_taken = true;
    pthread_mutex_unlock(&lock);
    *group_out = group;
    return status;
}

void ewx_sm_group_return(ewx_sm_group *group)
{
    if (!group)
        return;
    pthread_mutex_lock(&lock);
    group->is_taken = false;
    pthread_mutex_unlock(&lock);
}
