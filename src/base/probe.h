/* Points at which tests may delay, drop or kill.  Only test builds (EW_TESTING) carry
 * them; elsewhere a probe is the constant 0. */
#ifndef EWX_BASE_PROBE_H
#define EWX_BASE_PROBE_H

#include <stdint.h>

typedef enum ewx_probe_point {
    EWX_PROBE_BOOTSTRAP, /* a rank is about to join its world */
    EWX_PROBE_BLOCK,     /* a producer block is about to be computed; where = p */
    EWX_PROBE_PUBLISH,   /* a tile is about to be published; where = heap slot */
    EWX_PROBE_PUBLISHED, /* a tile was published; where = heap slot */
    EWX_PROBE_WAIT,      /* a wait is about to take its first turn; rank = -1 */
    EWX_PROBE_REDUCE,    /* an owned tile is about to be reduced; where = task */
    EWX_PROBE_RESULT,    /* a sum or norm is about to be published; where = its bytes */
    EWX_PROBE_COLLECT,   /* another rank's is about to be copied; where = its number */
    EWX_PROBE_DONE,      /* a call is about to be marked done; where = epoch */
    EWX_PROBE_TEARDOWN,  /* a plan is about to be destroyed */
    EWX_PROBE_HELLO,     /* a rank introduces itself; where = the fact to bend, or -1: to
                            hide what its pid means */
    EWX_PROBE_FACT,      /* ... tells its plan; where = the fact to bend */
    EWX_PROBE_WAITING,   /* a rank has said whom it waits for in a call; where = whom */
    EWX_PROBE_EXCUSE,    /* a wait outlasts its time, since the rank it is for waits itself;
                            where = that rank */
    EWX_PROBE_MEETING    /* ranks know each other; where = 0, this one has yet to connect to
                            the owner of the control block; 1, it has the block; 2, it has
                            connected to all below */
} ewx_probe_point;

#ifdef EW_TESTING
/* Returns non-zero to drop what the point announces. */
typedef int (*ewx_probe)(void *context, ewx_probe_point point, int rank, int64_t where);
void ewx_probe_install(ewx_probe probe, void *context); /* NULL removes it */
int ewx_probe_fire(ewx_probe_point point, int rank, int64_t where);
#define EWX_PROBE(point, rank, where) ewx_probe_fire(point, rank, where)
#else
#define EWX_PROBE(point, rank, where) 0
#endif

#endif
