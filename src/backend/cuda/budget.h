/* How many CTAs of each kind an SM holds at once.  A reducer that waits for a producer
 * which cannot become resident waits for ever, so the budget is checked before launch. */
#ifndef EWX_CUDA_BUDGET_H
#define EWX_CUDA_BUDGET_H

#include "backend/cuda/device.h"
#include "backend/cuda/kernels/kernels.h"

typedef struct ewx_budget {
    int producers;           /* CTAs that are resident at once on this rank's SMs */
    int reducers_beside;     /* reducing CTAs that fit on an SM beside its producers */
    int largest_safe_budget; /* x */
} ewx_budget;

/* The device is entered. */
ew_status ewx_budget_measure(const ewx_device *device, const ewx_cuda_entry *producer,
                             int cluster, const ewx_cuda_entry *reducer,
                             ewx_budget *budget_out);

/* Gives x reducing CTAs SMs of their own: the reducer asks for so much shared memory that
 * none fits beside a producer, and fewer producers are launched. */
ew_status ewx_budget_reserve(const ewx_device *device, const ewx_cuda_entry *producer,
                             const ew_config *config, ewx_cuda_entry *reducer,
                             ewx_budget *budget);

/* Refuses a spec whose reducers could keep its producers out. */
ew_status ewx_budget_check(const ewx_budget *budget, const ew_config *config);

/* Loads a kernel and sets what its launches need: nothing is loaded later, while another
 * kernel waits. */
ew_status ewx_cuda_entry_prepare(ewx_cuda_entry *entry);

#endif
