/* The public weight inside the library, and its bindings to plans. */
#ifndef EWX_WEIGHT_H
#define EWX_WEIGHT_H

#include "backend/backend.h"

/* A plan's link to the weight it is bound to; zeroed: to none.  The weight's bindings form
 * a list, so that a weight that goes can tell them all. */
typedef struct ewx_binding ewx_binding;
struct ewx_binding {
    ew_weight *weight;
    ewx_binding *next, **link; /* what points at this one */
};

/* Room for a weight of the spec, which has been checked; nothing is packed yet. */
ew_status ewx_weight_open(ew_world *world, const ewx_backend *backend, const ewx_spec *spec,
                          ew_weight **weight_out);

/* Packs B into it, and frees it: ew_weight_update and ew_weight_destroy inside a call.
 * Closing accepts NULL. */
ew_status ewx_weight_pack(ew_weight *weight, const void *B);
void ewx_weight_close(ew_weight *weight);

/* Whether `function` can read it in plans of that world and spec, as n columns. */
ew_status ewx_weight_check(const ew_weight *weight, const char *function,
                           const ew_world *world, const ewx_spec *spec, int64_t n);

/* NULL unbinds. */
void ewx_weight_bind(ewx_binding *binding, ew_weight *weight);

/* What calls read; NULL: there is no weight, or nothing is packed in it. */
const void *ewx_weight_packed(const ew_weight *weight);

#endif
