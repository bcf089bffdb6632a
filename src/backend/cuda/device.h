/* A rank's GPU, or its group of the SMs, shared by all of the rank's plans.
 *
 * A rank that has a CUDA context when its first plan is created keeps that device; else it
 * gets device number i mod count, as the i-th rank of its host.  Ranks that find themselves
 * on the same GPU split its SMs into disjoint groups of equal size (green contexts): a
 * virtual node. */
#ifndef EWX_CUDA_DEVICE_H
#define EWX_CUDA_DEVICE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "backend/cuda/driver.h"
#include "backend/cuda/sm_groups.h"
#include "plan/spec.h"
#include "world/world.h"

typedef struct ewx_symmetric_list ewx_symmetric_list; /* cuda_symmetric.h */

typedef struct ewx_device {
    const ewx_driver *driver;
    int ordinal;
    int arch;
    int sms;                /* of this rank */
    int sharers;            /* ranks on this GPU */
    int index;              /* which of them this one is */
    int lowest_rank;        /* of them */
    CUcontext primary;      /* the one that programs use */
    CUcontext context;      /* this rank's: the same, or one with its group of SMs */
    ewx_sm_group *sm_group; /* NULL: the whole GPU */
    /* Shared by all plans of the rank, which therefore never run side by side: the budget
     * of one would not hold for two.  It also keeps the number of streams below that of the
     * hardware's queues, in which a waiting kernel holds up whatever lies behind it. */
    cudaStream_t producing; /* default priority */
    cudaStream_t reducing;  /* high priority */
    cudaStream_t carrying;  /* several hosts: copies and flags, no kernels */
    bool direct;            /* ... whose fabric is given this GPU's memory, no copies */
    bool flushes;           /* ... and flushes what comes there, for kernels to see it */
    bool lends_context;     /* ... and lends a thread of the caller's a context for that */
    pthread_t borrower;     /* ... this one */
    const uint64_t *abort;  /* the world's abort word, as kernels see it */
    uint32_t *calls_made;   /* counted by kernels; several hosts: NULL, the hosts compare */
    void *abort_page;       /* of the host, if this device mapped it */
    int *num_apart;         /* plans whose exchange runs beside the GEMM */
    ewx_symmetric_list *symmetric; /* memory that the world's ranks have in common */
} ewx_device;

/* The world's device, kept until the world ends.  Collective the first time. */
ew_status ewx_device_of(ew_world *world, const ewx_device **device_out);

/* Its number; -1: the world has none yet. */
int ewx_device_ordinal(const ew_world *world);

/* What a rank would get if num_ranks ranks were started here. */
ew_status ewx_device_survey(int num_ranks, ewx_machine *machine_out);

/* Between enter and leave this thread's CUDA calls go to the device; whatever context it
 * had before comes back. */
ew_status ewx_device_enter(const ewx_device *device);
void ewx_device_leave(const ewx_device *device);

#endif
