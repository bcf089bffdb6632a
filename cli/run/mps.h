/* NVIDIA's multi-process service.  Ranks that are processes and share a GPU take turns on
 * it, unless they meet in an MPS daemon: the user's, or a private one that lives no longer
 * than this program. */
#ifndef ENTWINE_CLI_MPS_H
#define ENTWINE_CLI_MPS_H

#include <sys/types.h>

typedef enum cli_mps_kind {
    CLI_MPS_UNUSED,  /* every rank has a GPU of its own, or ranks are threads */
    CLI_MPS_NONE,    /* wanted, but there is none */
    CLI_MPS_RUNNING, /* the user's, left alone */
    CLI_MPS_PRIVATE  /* ours */
} cli_mps_kind;

typedef struct cli_mps {
    cli_mps_kind kind;
    char why[160]; /* of CLI_MPS_NONE */
    char folder[32];
    int lifeline; /* closed, or lost with us, it ends the private daemon */
    pid_t keeper;
} cli_mps;

/* What open would find: NONE, RUNNING or PRIVATE (it can be started). */
cli_mps_kind cli_mps_probe(void);

/* Finds or starts a daemon and sets the variables by which CUDA finds it, in this process
 * and those that it forks.  Call before CUDA is used and before threads are started. */
void cli_mps_open(cli_mps *mps);

/* Ends a private daemon, with its servers, and removes its folder; bounded. */
void cli_mps_close(cli_mps *mps);

/* "private MPS daemon", "the running MPS daemon", "no MPS"; NULL when unused. */
const char *cli_mps_text(const cli_mps *mps);

#endif
