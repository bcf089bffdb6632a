/* One job and what is done to it: drawn from a seed, carried out, and judged. */
#ifndef TESTS_CHAOS_ORDEAL_H
#define TESTS_CHAOS_ORDEAL_H

#include "board.h"

/* How the ranks of a job are started. */
typedef enum job_way {
    WAY_RUN_RANKS, /* by ew_run_ranks */
    WAY_CREATE,    /* forked by the harness, with its own all-gather */
    WAY_CLI,       /* by `entwine run` */
    WAY_MPI,       /* by mpirun, on emulated hosts */
    NUM_WAYS
} job_way;

typedef struct tools {
    const char *self, *cli, *mpi_module, *mpirun;
    char folder[64];  /* where jobs run: empty again after each */
    char freezer[64]; /* a cgroup of ours that can be frozen, or "" */
    bool freezer_is_v2;
} tools;

#define LAUNCHER (-1) /* a victim that is no rank */
enum { MOST_VICTIMS = 2 };

/* What the seed decides.  Delays are parts of how long such a job takes here. */
typedef struct fate {
    uint64_t seed, number;
    job_way way;
    int num_ranks, num_hosts, num_worlds, num_turns;
    uint32_t job_seed, timeout_ms;
    int num_victims; /* 0: the whole job is frozen */
    int victims[MOST_VICTIMS], signals[MOST_VICTIMS];
    bool in_meeting; /* the delay is a part of the time until the first world is there */
    double delay;
    bool
        wakes; /* a stopped victim goes on after the others have ended; else it is killed */
    bool in_freezer; /* frozen by the cgroup instead of by SIGSTOP */
} fate;

/* One process of a job. */
typedef struct member {
    pid_t pid;
    int pidfd;
    int64_t ended_ns;  /* 0: it runs */
    int64_t queued_ns; /* when the blow came */
} member;

typedef struct ordeal {
    fate fate;
    board *board;
    int64_t started_ns; /* under mpirun when all ranks are there */
    int64_t blow_ns, ended_ns;
    member ranks[MOST_RANKS], launcher;
    bool hit[MOST_VICTIMS]; /* it was running when the blow came */
    bool frozen;            /* it was running then */
    int exit_status;        /* of what the harness started itself, as waitpid has it */
    bool hung, left_files;
    int left_processes;
    char output[2000]; /* of `entwine run` */
} ordeal;

/* ---- fate.c ---- */

/* Which ways may be drawn: bits 1 << WAY_... */
fate fate_draw(uint64_t seed, uint64_t number, unsigned ways, bool freezes);
void fate_describe(const fate *f, char *text, size_t bytes);

/* ---- attack.c ---- */

void attack_prepare(tools *t);
void attack_clean_up(const tools *t);
/* Runs the job, with the blow if there is one; `spans` are how long such a job takes until
 * it has a world, and as a whole. */
typedef struct spans {
    int64_t meeting_ns, whole_ns;
} spans;
void attack_run(ordeal *o, const tools *t, spans usual, bool with_blow);

/* ---- judge.c ---- */

typedef enum verdict {
    VERDICT_GOOD,
    VERDICT_HANG,
    VERDICT_LATE,    /* out, but later than it should */
    VERDICT_STORY,   /* a wrong status or culprit, or not the same on all survivors */
    VERDICT_WRONG,   /* values */
    VERDICT_LEFT,    /* something was left behind */
    VERDICT_STARVED, /* a rank had no core for a whole timeout: nothing can be said */
    NUM_VERDICTS
} verdict;
extern const char *const verdict_names[NUM_VERDICTS];

/* `why` receives what was wrong. */
verdict judge(const ordeal *o, char *why, size_t bytes);
void judge_describe(const ordeal *o); /* to standard error */
/* From the blow until the last survivor was out. */
int64_t judge_took_ns(const ordeal *o);
/* A death that a survivor sees at once; all else is noticed when the timeout is over. */
bool judge_is_noticed(const ordeal *o);
bool judge_was_hit(const ordeal *o);

#endif
