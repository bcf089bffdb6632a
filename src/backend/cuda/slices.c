#include "backend/cuda/slices.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static ewx_slice *slices;

/* After a reset the GPU has another context, and slices of the old one are gone. */
static ewx_slice *find_free(int ordinal, unsigned long long primary_id, int share_sms,
                            int index)
{
    ewx_slice *at = slices;
    while (at && (at->is_taken || at->ordinal != ordinal || at->share_sms != share_sms ||
                  at->index != index || at->primary_id != primary_id))
        at = at->next;
    return at;
}

static ew_status create(const ewx_driver *driver, ewx_slice *slice)
{
    const CUdevice handle = slice->ordinal; /* the runtime's ordinals are the driver's */
    CUdevResource whole, groups[64], rest;
    unsigned count = sizeof groups / sizeof groups[0];
    CUdevResourceDesc description;
    CUcontext kept;
    EW_DRIVER_TRY(driver->cuDeviceGetDevResource(handle, &whole, CU_DEV_RESOURCE_TYPE_SM),
                  "reading the GPU's SMs");
    EW_DRIVER_TRY(driver->cuDevSmResourceSplitByCount(groups, &count, &whole, &rest, 0,
                                                      (unsigned)slice->share_sms),
                  "splitting the GPU's SMs");
    if (slice->index >= (int)count)
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "the GPU splits into %u groups of %d SMs, too few for rank %d of "
                        "its ranks\n  fix: use %u ranks or fewer per GPU",
                        count, slice->share_sms, slice->index, count);
    slice->sms = (int)groups[slice->index].sm.smCount;
    EW_DRIVER_TRY(driver->cuDevResourceGenerateDesc(&description, &groups[slice->index], 1),
                  "describing a slice of the GPU");
    EW_DRIVER_TRY(driver->cuGreenCtxCreate(&slice->green, description, handle,
                                           CU_GREEN_CTX_DEFAULT_STREAM),
                  "opening a slice of the GPU");
    EW_DRIVER_TRY(driver->cuCtxFromGreenCtx(&slice->context, slice->green),
                  "opening a slice of the GPU");
    /* It lives as long as the context that it is a part of. */
    EW_DRIVER_TRY(driver->cuDevicePrimaryCtxRetain(&kept, handle), "opening the GPU");
    return EW_OK;
}

static ew_status add(const ewx_driver *driver, const ewx_slice *wanted,
                     ewx_slice **slice_out)
{
    ewx_slice *slice = malloc(sizeof *slice);
    if (!slice)
        return ewx_fail(EW_ERR_MEMORY, "no memory for a slice of the GPU");
    *slice = *wanted;
    const ew_status status = create(driver, slice);
    if (status != EW_OK) {
        if (slice->green)
            driver->cuGreenCtxDestroy(slice->green);
        free(slice);
        return status;
    }
    slice->next = slices;
    slices = slice;
    *slice_out = slice;
    return EW_OK;
}

ew_status ewx_slice_take(const ewx_driver *driver, int ordinal, CUcontext primary,
                         int share_sms, int index, ewx_slice **slice_out)
{
    ewx_slice wanted = {.ordinal = ordinal, .share_sms = share_sms, .index = index};
    ew_status status = EW_OK;
    EW_DRIVER_TRY(driver->cuCtxGetId(primary, &wanted.primary_id), "identifying the GPU");
    pthread_mutex_lock(&lock);
    ewx_slice *slice = find_free(ordinal, wanted.primary_id, share_sms, index);
    if (!slice)
        status = add(driver, &wanted, &slice);
    if (slice)
        slice->is_taken = true;
    pthread_mutex_unlock(&lock);
    *slice_out = slice;
    return status;
}

void ewx_slice_return(ewx_slice *slice)
{
    if (!slice)
        return;
    pthread_mutex_lock(&lock);
    slice->is_taken = false;
    pthread_mutex_unlock(&lock);
}
