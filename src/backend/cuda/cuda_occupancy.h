/* Whether a kernel that others wait for always finds room on the GPU.  Of two kernels that
 * run beside each other one waits for the other, or each for an earlier launch of the
 * other; a waiter whose awaited kernel cannot become resident waits for ever, so their
 * numbers are checked before the first launch. */
#ifndef EWX_CUDA_OCCUPANCY_H
#define EWX_CUDA_OCCUPANCY_H

#include "backend/cuda/device.h"
#include "backend/cuda/kernels/kernels.h"
#include "plan/occupancy.h"

/* Two kernels of a call that run beside each other: the GEMM, and the one that is launched
 * in as many CTAs as the budget says. */
typedef struct ewx_kernel_pair {
    const ewx_cuda_entry *awaited;
    int cluster; /* of the awaited kernel's CTAs */
    ewx_cuda_entry *waiter;
} ewx_kernel_pair;

typedef struct ewx_occupancy {
    int awaited;        /* awaited CTAs that are resident at once on this rank's SMs */
    int waiters_beside; /* waiting CTAs that fit on an SM full of awaited ones */
    int most_waiters;   /* while no more are resident, the awaited kernel finds room */
    int waiters_alone;  /* waiting CTAs that are resident at once where nothing else is */
} ewx_occupancy;

/* The device is entered, here and below. */
ew_status ewx_occupancy_measure(const ewx_device *device, ewx_kernel_pair pair,
                                ewx_occupancy *occupancy_out);

/* pool=static: gives x waiting CTAs SMs of their own.  The waiter asks for so much shared
 * memory that none fits beside an awaited CTA, and fewer of those are launched. */
ew_status ewx_occupancy_reserve(const ewx_device *device, ewx_kernel_pair pair,
                                const ew_config *config, ewx_occupancy *occupancy);

/* Where both kernels wait for each other, the GEMM for this call's other kernel and that
 * one for the GEMM of an earlier call: takes from the GEMM the CTAs whose room the x CTAs
 * of the other need, if they find none beside it. */
ew_status ewx_occupancy_share(const ew_config *config, ewx_occupancy *occupancy);

/* Whether a waiting CTA finds room while the GEMM's CTAs fill the SMs. */
bool ewx_occupancy_fits_beside(const ewx_occupancy *occupancy, const ew_config *config);

/* Refuses a config whose x waiting CTAs could keep the awaited kernel out. */
ew_status ewx_occupancy_check(const ewx_occupancy *occupancy, const ew_config *config);

/* Refuses a config whose x waiting CTAs, which wait for each other across ranks, are not
 * all resident together once nothing else is. */
ew_status ewx_occupancy_check_meeting(const ewx_occupancy *occupancy,
                                      const ew_config *config);

/* What nvcc made of a kernel, with the shared memory of its launches. */
ew_status ewx_cuda_entry_needs(const ewx_cuda_entry *entry, ewx_kernel_needs *needs_out);

/* Loads a kernel and sets what its launches need: nothing is loaded later, while another
 * kernel waits. */
ew_status ewx_cuda_entry_prepare(ewx_cuda_entry *entry);

#endif
