/* Where ranks lie, what each of them has, and what is between them. */
#include "backend/sim/simulate.h"

#include <string.h>

#include "base/status.h"
#include "base/text.h"

ewx_sim_nodes ewx_sim_nodes_of(const ewx_sim_profile *profile, int num_ranks)
{
    const int nodes = (int)profile->nodes, gpus = (int)profile->gpus;
    const int sharers =
        profile->is_cpu ? 1 : (num_ranks + gpus * nodes - 1) / (gpus * nodes);
    const int each = profile->is_cpu ? (num_ranks + nodes - 1) / nodes : gpus * sharers;
    return (ewx_sim_nodes){(num_ranks + each - 1) / each, each};
}

double ewx_sim_nic_gbs(const ewx_sim_request *request)
{
    return request->nic_gbs > 0 ? request->nic_gbs : request->profile->nic_gbs;
}

bool ewx_sim_nic_is_shared(const ewx_sim_request *request)
{
    return request->nic_shared ? request->nic_shared > 0 : request->profile->nic_shared > 0;
}

ew_status ewx_sim_share(const ewx_sim_profile *profile, int num_ranks, int *sms_out,
                        int *sharers_out)
{
    if (num_ranks < 1 || num_ranks > EWX_SIM_MAX_RANKS)
        return ewx_fail(EW_ERR_SHAPE, "W=%d is out of range\n  fix: use 1 to %d ranks",
                        num_ranks, EWX_SIM_MAX_RANKS);
    if (profile->is_cpu) {
        const int cores =
            (int)profile->cores / ewx_sim_nodes_of(profile, num_ranks).ranks_each;
        *sms_out = cores > 1 ? cores : 1;
        *sharers_out = 1;
        return EW_OK;
    }
    const int gpus = (int)(profile->gpus * profile->nodes);
    *sharers_out = (num_ranks + gpus - 1) / gpus;
    if (*sharers_out > 1 && !(profile->virtual_node > 0))
        return ewx_fail(EW_ERR_SHAPE,
                        "profile %s has %d GPUs, not enough for W=%d\n"
                        "  fix: use fewer ranks, or a profile with more GPUs or nodes",
                        profile->name, gpus, num_ranks);
    /* As the cuda backend cuts a GPU: in whole groups of 8 SMs. */
    *sms_out =
        *sharers_out > 1 ? (int)profile->sms / 8 / *sharers_out * 8 : (int)profile->sms;
    return *sms_out > 0
               ? EW_OK
               : ewx_fail(EW_ERR_SHAPE,
                          "profile %s has %g SMs, not enough for %d ranks on a GPU\n"
                          "  fix: use fewer ranks",
                          profile->name, profile->sms, *sharers_out);
}

ew_status ewx_sim_machine(const ewx_sim_profile *profile, int num_ranks,
                          ewx_machine *machine_out)
{
    int sms = 0, sharers = 0;
    EW_TRY(ewx_sim_share(profile, num_ranks, &sms, &sharers));
    const int hosts = profile->is_cpu ? ewx_sim_nodes_of(profile, num_ranks).count : 1;
    *machine_out = (ewx_machine){.cores = profile->is_cpu ? hosts * (int)profile->cores : 1,
                                 .hosts = hosts,
                                 .gpu_sms = profile->is_cpu ? 0 : sms,
                                 .gpu_arch = (int)profile->arch,
                                 .gpu_sharers = sharers,
                                 .has_nccl = profile->nccl_gbs > 0 && sharers == 1};
    ewx_text text = ewx_text_in(machine_out->device, sizeof machine_out->device);
    ewx_text_add(&text, "SIMULATED %s/%d", profile->name, sms);
    memcpy(machine_out->profile, profile->name, sizeof machine_out->profile);
    return EW_OK;
}
