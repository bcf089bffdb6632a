/* What must be the same on all ranks, compared before anything is built on it. */
#ifndef EWX_AGREEMENT_H
#define EWX_AGREEMENT_H

#include "plan/spec.h"
#include "world/world.h"

#define EWX_FACTS_BYTES 1024

/* Collective.  `facts` is "key=value,key=value,..." with the same keys on all ranks.
 * EW_ERR_MISMATCH names two ranks and the first fact in which they differ.  Otherwise the
 * status of a rank that came with an error is returned: no rank goes on unless all can.  A
 * rank's own status stays with it, and so does its text; it may come without facts, as "".
 */
ew_status ewx_agree_on(ew_world *world, ew_status own, const char *facts);

/* What was asked for: the problem and every key of the config. */
void ewx_facts_asked(const ew_problem *problem, int num_ranks, const ew_config *request,
                     ewx_text *text);
/* What was decided: every key of the config and where everything lies. */
void ewx_facts_decided(const ewx_spec *spec, ewx_text *text);

#endif
