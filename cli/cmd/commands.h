/* The commands of the tool; main.c lists them. */
#ifndef ENTWINE_CLI_COMMANDS_H
#define ENTWINE_CLI_COMMANDS_H

#include "options/options.h"

cli_exit cli_run_main(const cli_settings *settings, int argc, char **argv);
cli_exit cli_bench_main(const cli_settings *settings, int argc, char **argv);
cli_exit cli_plan_main(const cli_settings *settings, int argc, char **argv);
cli_exit cli_doctor_main(const cli_settings *settings, int argc, char **argv);
cli_exit cli_demo_main(const cli_settings *settings, int argc, char **argv);
cli_exit cli_tune_main(const cli_settings *settings, int argc, char **argv);
cli_exit cli_cache_main(const cli_settings *settings, int argc, char **argv);
cli_exit cli_compare_main(const cli_settings *settings, int argc, char **argv);
cli_exit cli_trace_main(const cli_settings *settings, int argc, char **argv);
cli_exit cli_sim_main(const cli_settings *settings, int argc, char **argv);
cli_exit cli_report_main(const cli_settings *settings, int argc, char **argv);
cli_exit cli_status_main(const cli_settings *settings, int argc, char **argv);

/* plan with a profile: what to expect of every method on that hardware, and why. */
cli_exit cli_plan_profile(const cli_settings *settings);

#endif
