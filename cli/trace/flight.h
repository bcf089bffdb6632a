/* A flight recording as the library writes it: read from JSON that anybody may have
 * written, put together from several files, and asked who went another way first. */
#ifndef ENTWINE_CLI_RECORDING_H
#define ENTWINE_CLI_RECORDING_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "options/options.h"

enum { CLI_RECORDS = 1024, CLI_WORD_BYTES = 24 };

/* One operation of a rank. */
typedef struct cli_deed {
    int64_t sequence, m, n, k, plan, begin_ns, end_ns, steps;
    bool is_plan;
    char state[CLI_WORD_BYTES], status[CLI_WORD_BYTES], config[CLI_WORD_BYTES];
} cli_deed;

typedef struct cli_lane {
    bool known; /* the recording speaks of this rank */
    bool left;
    int pid;
    int waits_for;   /* a rank, or -1 */
    int64_t seen_ns; /* when it was read */
    int64_t sequence, meetings, position;
    char process[CLI_WORD_BYTES], waits_at[CLI_WORD_BYTES], step[CLI_WORD_BYTES];
    int num_deeds;
    cli_deed *deeds; /* by sequence */
} cli_lane;

typedef struct cli_recording {
    int num_ranks;
    int64_t started_ns, now_ns;
    char ranks_as[CLI_WORD_BYTES];
    char fault[CLI_WORD_BYTES]; /* a status, or "" */
    int culprit;                /* -1: unknown */
    cli_lane lanes[CLI_MAX_RANKS];
} cli_recording;

/* Reads a recording.  False: `why` (CLI_WHY_BYTES) says what is wrong with it. */
bool cli_recording_parse(const json_t *root, cli_recording **recording_out, char *why);
void cli_recording_free(cli_recording *recording);

/* For every rank what `other` knows, where that is newer. */
void cli_recording_merge(cli_recording *recording, const cli_recording *other);

const cli_deed *cli_lane_last(const cli_lane *lane); /* NULL: none */
/* "call m=100 N=512 K=64" */
void cli_deed_text(const cli_deed *deed, char *text, size_t bytes);

/* The table of ranks, and under it the first rank that went another way.  True when there
 * is one. */
bool cli_recording_print(const cli_recording *recording);

#endif
