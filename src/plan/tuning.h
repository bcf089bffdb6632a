/* Tuning entries: their key, their text, and finding the one that serves a problem. */
#ifndef EWX_PLAN_TUNING_H
#define EWX_PLAN_TUNING_H

#include "entwine/tune.h"
#include "plan/spec.h"

/* Rows are rounded up to a power of two: shapes in between share an entry. */
int64_t ewx_tuning_bucket(int64_t rows);

/* Names in keys come from drivers and files: only letters that need no escaping stay. */
char ewx_tuning_plain(char letter);

/* `device` names what the times depend on: the processor or GPU, how much of it a rank has,
 * its driver. */
void ewx_tuning_key(const ew_problem *problem, int num_ranks, ew_backend backend,
                    const char *device, int64_t bucket, ewx_text *text);

/* Whether a request leaves all to the library but for the backend, so that a tuning entry
 * may serve it. */
bool ewx_tuning_serves(const ew_config *request);

/* Where a config came from. */
typedef struct ewx_tuning_origin {
    int64_t bucket; /* of the entry that was used; 0: none */
    double time_us, default_us;
    char profile[64];  /* as in ew_tuning */
    char ignored[128]; /* why an entry that is there was not used; empty: none was */
} ewx_tuning_origin;

/* Tiles that a worker of a tuned config reduces in a row, at most. */
#define EWX_TUNED_MOST_BATCH 4
/* Rows and columns of its blocks, at most. */
#define EWX_TUNED_MOST_BLOCK 1024
/* Reducing CTAs of a tuned config on each SM, at most. */
#define EWX_TUNED_MOST_CTAS 4

/* Whether a tuned spec asks for no more than this machine has: a tuning here would not have
 * found anything else, so such an entry was made elsewhere or by hand.  Otherwise says why
 * in `origin->ignored`. */
bool ewx_tuning_fits(const ewx_spec *spec, const ewx_machine *machine,
                     ewx_tuning_origin *origin);

/* Whether plans may use entries: not with ENTWINE_TUNING=off. */
ew_status ewx_tuning_wanted(bool *wanted_out);

/* The entry of the problem's bucket, else of the nearest; false when there is none. Entries
 * of other users than this one and root are ignored.  The origin must be zeroed. */
bool ewx_tuning_find(const ew_problem *problem, int num_ranks, ew_backend backend,
                     const char *device, ew_config *config_out,
                     ewx_tuning_origin *origin_out);

#endif
