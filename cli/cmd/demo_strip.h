/* The picture in the demo: for one rank and one order, which destination each producer
 * block served and when the rank's own tiles were reduced, on one time axis. */
#ifndef ENTWINE_CLI_DEMO_STRIP_H
#define ENTWINE_CLI_DEMO_STRIP_H

#include "trace/trace.h"

/* Settings of a call with few enough blocks for a line of text. */
cli_settings cli_strip_settings(const cli_settings *demo, int cores, double link_gbs);

/* Two lines about the last rank; the full width stands for `axis_us`. */
void cli_strip_print(const cli_trace *trace, double axis_us);

#endif
