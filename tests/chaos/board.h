/* The memory that the harness shares with the ranks of the job that it attacks: what they
 * are to do, how far each has come, and how it ended.  Ranks only write here what they know
 * already, so that looking at it holds nobody up. */
#ifndef TESTS_CHAOS_BOARD_H
#define TESTS_CHAOS_BOARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "entwine/entwine.h"

enum { MOST_RANKS = 32, MOST_WORLDS = 3, HELLO_BYTES = 1024, TEXT_BYTES = 400 };

/* What a rank does, in the order in which it does it. */
#define CHAOS_STEPS(X)          \
    X(BORN, "before it meets")  \
    X(MEET, "meeting")          \
    X(PLAN, "creating a plan")  \
    X(GATHER, "all-gather")     \
    X(CALL, "call")             \
    X(LAYER, "call with layer") \
    X(BARRIER, "barrier")       \
    X(UNPLAN, "destroying")     \
    X(LEAVE, "leaving")         \
    X(DONE, "done")

typedef enum chaos_step {
#define CHAOS_STEP_ENUM(name, text) STEP_##name,
    CHAOS_STEPS(CHAOS_STEP_ENUM)
#undef CHAOS_STEP_ENUM
        NUM_STEPS
} chaos_step;

typedef struct seat {
    _Atomic pid_t pid;
    _Atomic int step, world, turn;
    _Atomic int64_t met_ns; /* when its first world was there */
    atomic_bool gone;       /* the harness saw that its process had ended */
    atomic_bool offered[MOST_WORLDS];
    unsigned char hello[MOST_WORLDS][HELLO_BYTES];
    /* Written before `told`. */
    ew_status status;
    bool refused; /* by the harness's own all-gather, since a rank had ended or did not come
                   */
    bool wrong;   /* a call returned EW_OK and other values than it should */
    char text[TEXT_BYTES];
    int64_t out_ns, queued_ns; /* the latter from its start on */
    atomic_bool told;
} seat;

typedef struct board {
    int num_ranks, num_worlds, num_turns;
    uint32_t timeout_ms, seed;
    uint32_t gather_turns;     /* of our own all-gather, until it gives up */
    atomic_bool dismissed;     /* ranks under mpirun may end */
    ew_status launcher_status; /* of ew_run_ranks, written before launcher_told */
    char launcher_text[TEXT_BYTES];
    atomic_bool launcher_told;
    seat seats[MOST_RANKS];
} board;

/* ---- What a rank does (job.c) ---- */

/* All return the exit code of the process. */
int job_under_run_ranks(board *b);
int job_with_own_bootstrap(board *b, int rank);
int job_under_mpi(board *b, const char *module);

#endif
