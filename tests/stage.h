/* The stage on which ranks come to grief: what is to happen, where and on whom, shared by
 * the parent, the ranks and their probes; and what the ranks then said and when. */
#ifndef TESTS_STAGE_H
#define TESTS_STAGE_H

#include <stdatomic.h>
#include <sys/types.h>

#include "base/probe.h"
#include "faultkit.h"
#include "harness.h"

enum { MAX_W = 8 };
#define LONG_TIMEOUT_MS 30000
#define SOON_NS 10000000000 /* well below the long timeout */

typedef enum act { ACT_NOTHING, ACT_KILL, ACT_STOP, ACT_SLEEP, ACT_DROP, ACT_JITTER } act;

typedef struct stage {
    act act;
    ewx_probe_point point;
    int rank;      /* that acts; -1: all */
    int64_t where; /* -1: anywhere */
    int nth;       /* which time; -1: every time */
    int sleep_ms;
    atomic_int hits;
    _Atomic int64_t acted_ns;
    atomic_int excuses[MAX_W]; /* that each has given the one that acted, since then */
    atomic_int finished;
    pid_t pids[MAX_W];
    /* What the ranks saw. */
    ew_status statuses[MAX_W];
    char texts[MAX_W][512];
    int64_t out_ns[MAX_W];
    /* What they are to do. */
    int64_t rows;
    const char *config;
    double timeout_s[MAX_W]; /* of each rank's plan; 0: the world's */
    uint32_t seed;
} stage;

stage *stage_open(void);
void stage_close(stage *s);
/* Runs `body` on ranks whose probes act as the stage says. */
ew_status stage_run(stage *s, ew_ranks_as kind, int num_ranks, uint32_t timeout_ms,
                    ew_rank_main body, int *exits);

/* ---- In the ranks ---- */

/* A rank's last words; returns its exit code. */
int stage_tell(stage *s, ew_world *world, ew_status status);
/* The end of a rank whose call gave `status`: one that misses nothing only listens for a
 * fault, so that it starts no wait of its own; then it tells, and closes its duty. */
int stage_listen(stage *s, ew_world *world, duty *d, ew_status status);
/* Until so many have told. */
void stage_await(stage *s, int count);
/* Until the stage has acted. */
void stage_await_act(const stage *s);

/* Exact calls until one fails, which must then fail again in the same words. */
int work_on(ew_world *world, stage *s, int64_t m, const char *config, int calls);
int work_for_ever(ew_world *world, void *argument);

/* ---- In the parent ---- */

void expect_story(const stage *s, int rank, ew_status status, const char *text);
/* All ranks but `except` tell the same story. */
void expect_same_story(const stage *s, int num_ranks, int except, ew_status status,
                       const char *text);
/* Kills ranks at these points in turn, among 2 to 4; the others name them.  The two configs
 * take turns; NULL: none is given. */
void expect_kills_named(const ewx_probe_point *points, int num_points,
                        const char *const *configs, ew_rank_main body);
void expect_world_still_works(void);

#endif
