/* The public plan, as the files of this folder share it. */
#ifndef EWX_API_PLAN_H
#define EWX_API_PLAN_H

#include "api/weight.h"
#include "backend/backend.h"
#include "base/handle.h"
#include "plan/tuning.h"

struct ew_plan {
    ewx_handle handle;
    ew_world *world;
    ewx_spec spec;
    ew_config request;
    ewx_machine machine;
    ewx_tuning_origin origin; /* of the config, if it was tuned */
    const ewx_backend *backend;
    void *state;
    uint32_t number;      /* in the world, from 1 on */
    int64_t timeout_ns;   /* of its calls */
    uint32_t fingerprint; /* of the problem and the chosen config */
    ewx_binding binding;  /* to the weight of calls without a B */
    ew_weight *own;       /* of ew_plan_set_weight; NULL before the first */
};

/* A graph replays calls that the host does not see, unless it has a part in them. */
static inline bool ewx_plan_replays(const ew_world *world, const ewx_traits *traits)
{
    return traits->enqueues && world->num_hosts == 1;
}

#endif
