/* SIGUSR1 asks for the flight recording: a thread writes it, since a signal handler may
 * not. */
#ifndef ENTWINE_CLI_DUMP_H
#define ENTWINE_CLI_DUMP_H

#include <stdbool.h>

#include "entwine/measure.h"

/* The world whose recording this process writes from now on, until it is closed.  Only one
 * at a time: ranks that are threads share a recording, and all but the first are ignored.
 * Without memory or threads there is no recording, and nothing else. */
void cli_dump_open(ew_world *world);
void cli_dump_close(ew_world *world);

/* Async-signal-safe.  False: this process has no world. */
bool cli_dump_request(void);

#endif
