/* Groups of a GPU's SMs, for ranks that share it.  The driver does not give back all memory
 * of a green context that is destroyed (4 MiB each, CUDA 13.0): a group that its rank has
 * returned waits for the next one, until the process ends. */
#ifndef EWX_CUDA_SM_GROUPS_H
#define EWX_CUDA_SM_GROUPS_H

#include "backend/cuda/driver.h"

typedef struct ewx_sm_group {
    struct ewx_sm_group *next;
    int ordinal;   /* of the GPU */
    int share_sms; /* that were asked for */
    int index;     /* which of such groups */
    int sms;       /* that it has */
    bool is_taken;
    unsigned long long primary_id; /* of the GPU's context that it belongs to */
    CUgreenCtx green;
    CUcontext context;
} ewx_sm_group;

/* The index-th group of share_sms SMs.  `primary`, the GPU's context, is the caller's. */
ew_status ewx_sm_group_take(const ewx_driver *driver, int ordinal, CUcontext primary,
                            int share_sms, int index, ewx_sm_group **group_out);
void ewx_sm_group_return(ewx_sm_group *group); /* NULL is fine */

#endif
