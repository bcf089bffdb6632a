/* Slices of a GPU's SMs, for ranks that share it.  The driver does not give back all memory
 * of a green context that is destroyed (4 MiB each, CUDA 13.0): a slice that its rank has
 * returned waits for the next one, until the process ends. */
#ifndef EWX_CUDA_SLICES_H
#define EWX_CUDA_SLICES_H

#include "backend/cuda/driver.h"

typedef struct ewx_slice {
    struct ewx_slice *next;
    int ordinal;   /* of the GPU */
    int share_sms; /* that were asked for */
    int index;     /* which of such slices */
    int sms;       /* that it has */
    bool is_taken;
    unsigned long long primary_id; /* of the GPU's context that it belongs to */
    CUgreenCtx green;
    CUcontext context;
} ewx_slice;

/* The index-th slice of share_sms SMs.  `primary`, the GPU's context, is the caller's. */
ew_status ewx_slice_take(const ewx_driver *driver, int ordinal, CUcontext primary,
                         int share_sms, int index, ewx_slice **slice_out);
void ewx_slice_return(ewx_slice *slice); /* NULL is fine */

#endif
