/* The test builds' one hook. */
#include "base/probe.h"

#include "base/inject.h"

#ifdef EW_TESTING
static ewx_probe installed;
static void *installed_context;

void ewx_probe_install(ewx_probe probe, void *context)
{
    installed_context = context;
    installed = probe;
}

int ewx_probe_fire(ewx_probe_point point, int rank, int64_t where)
{
    return installed ? installed(installed_context, point, rank, where)
                     : ewx_inject_act(point, rank, where);
}
#else
typedef int ewx_probe_is_for_tests;
#endif
