/* Ctrl-C, SIGTERM and SIGHUP.  The launcher ends its ranks at once and lives on, so that
 * what was measured can still be written.  A second signal ends the launcher too. */
#ifndef ENTWINE_CLI_INTERRUPT_H
#define ENTWINE_CLI_INTERRUPT_H

#include <stdbool.h>

#include "entwine/entwine.h"

enum { CLI_MAX_RANKS = 256 }; /* on one host, or of a launcher */

/* Call first: from then on a signal ends the process with CLI_EXIT_INTERRUPTED, at once as
 * long as it has no ranks. */
void cli_interrupt_init(void);

/* Makes the board on which ranks enter themselves.  False: no memory.  Call once, before
 * ranks are started. */
bool cli_interrupt_open(void);
void cli_interrupt_close(void);

bool cli_interrupted(void);

/* A rank's first and last act.  Forked ranks enter their pid, thread ranks and ranks of a
 * launcher their world.  Enter returns false when it is already too late to start. */
bool cli_interrupt_enter_process(int rank);
bool cli_interrupt_enter_world(int rank, ew_world *world);
void cli_interrupt_leave(int rank);

#endif
