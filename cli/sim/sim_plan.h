/* Forecasts for hardware that a profile describes. */
#ifndef ENTWINE_CLI_SIM_PLAN_H
#define ENTWINE_CLI_SIM_PLAN_H

#include "options/options.h"

/* entwine plan with a profile: what to expect of every method, and why. */
cli_exit cli_sim_plan(const cli_settings *settings);

#endif
