/* What the tool must know about the backend that a job runs on.  Other files ask for one of
 * these facts, not for the backend by its name. */
#ifndef ENTWINE_CLI_BED_H
#define ENTWINE_CLI_BED_H

#include <stdbool.h>

#include "entwine/entwine.h"

typedef struct cli_bed {
    ew_backend backend;
    bool is_simulated; /* nothing is computed: no memory, no right or wrong values */
    bool on_gpus;      /* ranks run on GPUs of this machine */
    bool on_cores;     /* ranks run on cores of this machine */
} cli_bed;

const cli_bed *cli_bed_of(ew_backend backend);

#endif
