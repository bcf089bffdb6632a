/* Running code on W ranks and getting one answer back, whichever way the ranks came to
 * be: forked, threads, or the world of a launcher. */
#ifndef ENTWINE_CLI_RANKS_H
#define ENTWINE_CLI_RANKS_H

#include "run/launcher.h"

enum { CLI_ERROR_BYTES = 512 };

typedef struct cli_ranks {
    ew_ranks_as kind;
    ew_world_options options;
    cli_launch *launch; /* joined: its world is used and kind is ignored */
} cli_ranks;

/* Runs on every rank.  What it wants to hand back goes through memory from
 * cli_shared_alloc; its status and ew_last_error() are collected by cli_ranks_run. */
typedef ew_status (*cli_rank_body)(ew_world *world, void *argument);

/* Returns the status of the rank that knows the cause best, with its text in `error`
 * (CLI_ERROR_BYTES): of W ranks that fail together only one has something to say. */
ew_status cli_ranks_run(const cli_ranks *ranks, int num_ranks, cli_rank_body body,
                        void *argument, char *error);

/* "processes", "threads", or the variable of the launcher that started them. */
const char *cli_ranks_as_name(const cli_ranks *ranks);

/* Zeroed memory that forked ranks share with the launcher.  NULL: none left. */
void *cli_shared_alloc(size_t bytes);
void cli_shared_free(void *memory, size_t bytes);

/* Runs `body` in a forked child and waits; what it makes of its argument comes back.  For
 * library calls that may load a BLAS: its threads must not exist in a process that is going
 * to fork ranks. */
ew_status cli_run_in_child(void (*body)(void *argument), void *argument, size_t bytes);

#endif
