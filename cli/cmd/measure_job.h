/* What run and bench have in common. */
#ifndef ENTWINE_CLI_MEASURE_JOB_H
#define ENTWINE_CLI_MEASURE_JOB_H

#include "options/options.h"

cli_exit cli_measure(const cli_settings *settings, const char *default_methods, int argc,
                     char **argv);

#endif
