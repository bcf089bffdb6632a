/* The checks of calls with several weights, before any rank can see that such a call was
 * made. */
#ifndef EWX_PRODUCTS_H
#define EWX_PRODUCTS_H

#include "backend/backend.h"

/* Products as a backend reads them, if a plan of that world and spec can compute them. */
ew_status ewx_products_take(const char *function, const ew_world *world,
                            const ewx_spec *spec, const ew_product *products, int count,
                            ewx_product *taken);

/* Checks for a call with products that all matrices are there and nothing overlaps. */
ew_status ewx_products_check(const char *function, const ewx_spec *spec, int rank,
                             const ewx_call *call);

#endif
