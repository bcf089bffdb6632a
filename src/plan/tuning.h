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
    char profile[64]; /* as in ew_tuning */
} ewx_tuning_origin;

/* The entry of the problem's bucket, else of the nearest; false when there is none, or
 * ENTWINE_TUNING=off. */
bool ewx_tuning_find(const ew_problem *problem, int num_ranks, ew_backend backend,
                     const char *device, ew_config *config_out,
                     ewx_tuning_origin *origin_out);

#endif
