/* The backends' facts. */
#include "options/bed.h"

static const cli_bed beds[] = {{.backend = EW_BACKEND_CPU, .on_cores = true},
                               {.backend = EW_BACKEND_CUDA, .on_gpus = true},
                               {.backend = EW_BACKEND_SIM, .is_simulated = true}};

const cli_bed *cli_bed_of(ew_backend backend)
{
    for (size_t at = 0; at < sizeof beds / sizeof *beds; at++)
        if (beds[at].backend == backend)
            return &beds[at];
    return &beds[0]; /* a config that leaves it open is the cpu's */
}
