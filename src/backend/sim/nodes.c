/* Where ranks lie, and what is between them. */
#include "backend/sim/simulate.h"

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
