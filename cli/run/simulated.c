/* Names for what is simulated. */
#include "run/simulated.h"

#include "base/json_file.h"
#include "entwine/sim.h"
#include "base/text.h"

bool cli_ranks_are_gpus(const cli_bed *bed)
{
    ew_sim_hardware hardware;
    if (!bed->is_simulated)
        return bed->on_gpus;
    return ew_sim_describe(NULL, 1, &hardware) != EW_OK || !hardware.is_cpu;
}

void cli_sim_text(const char *profile, int num_ranks, char *text, size_t bytes)
{
    ew_sim_hardware hardware;
    if (ew_sim_describe(profile, num_ranks, &hardware) != EW_OK)
        snprintf(text, bytes, "SIMULATED : nothing was computed or measured");
    else
        snprintf(text, bytes,
                 "SIMULATED : profile %s, %d rank%s of %d %s%s; nothing was computed or "
                 "measured",
                 hardware.name, num_ranks, ewx_text_plural(num_ranks), (int)hardware.sms,
                 hardware.is_cpu ? "core" : "SM", ewx_text_plural((int)hardware.sms));
}

const char *cli_op_text(ew_op op)
{
    if (op == EW_OP_AG_GEMM)
        return "# op : ag-gemm, AllGather then GEMM\n";
    return op == EW_OP_GEMM_AR ? "# op : gemm-ar, GEMM then AllReduce\n" : "";
}

void cli_sim_params(json_t *params, int num_ranks)
{
    ew_sim_hardware hardware;
    json_object_set_new(params, "simulated", json_true());
    if (ew_sim_describe(NULL, num_ranks, &hardware) == EW_OK)
        json_object_set_new(params, "profile", json_string(hardware.name));
    else
        cli_json_lack();
}
