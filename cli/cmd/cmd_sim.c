/* entwine sim: the profiles of hardware that can be simulated. */
#include "cmd/commands.h"

#include "entwine/sim.h"
#include "base/json_file.h"

static void print_profile(const ew_sim_hardware *h)
{
    if (h->is_cpu)
        printf("%-14s %5s %6d %-5s %22s", h->name, "-", (int)h->sms,
               h->sms == 1 ? "core" : "cores", "shared memory");
    else
        printf("%-14s %5d %6d SMs %15.0f GB/s link", h->name, (int)h->gpus, (int)h->sms,
               h->link_gbs);
    if (h->nic_gbs > 0)
        printf(", %.0f GB/s NIC", h->nic_gbs);
    putchar('\n');
}

cli_exit cli_sim_main(const cli_settings *settings, int argc, char **argv)
{
    (void)argc, (void)argv;
    const bool as_json = settings->format == CLI_FORMAT_JSON;
    json_t *array = json_array();
    if (!as_json)
        printf("# %-12s %5s %s\n", "profile", "GPUs", "each with");
    for (const char *const *name = ew_sim_profiles(); *name; name++) {
        ew_sim_hardware h;
        ew_status status = ew_sim_describe(*name, 1, &h);
        if (status) {
            json_decref(array);
            return cli_fail_status(status, ew_last_error());
        }
        if (!as_json)
            print_profile(&h);
        json_array_append_new(array, json_pack("{ss sb si si sf sf}", "name", h.name, "cpu",
                                               (int)h.is_cpu, "gpus", (int)h.gpus, "sms",
                                               (int)h.sms, "link_gbs", h.link_gbs,
                                               "nic_gbs", h.nic_gbs));
    }
    if (as_json)
        cli_json_print(
            json_pack("{ss sO}", "schema", "entwine-profiles/1", "profiles", array));
    json_decref(array);
    return CLI_EXIT_OK;
}
