/* A way into opaque objects for the tests; only test builds (EW_TESTING) have it. */
#ifndef EWX_TESTING_H
#define EWX_TESTING_H

#include "entwine/entwine.h"

#ifdef EW_TESTING
/* The backend's state: an ewx_cpu_engine on the cpu backend. */
void *ewx_plan_state(const ew_plan *plan);
#endif

#endif
