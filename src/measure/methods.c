/* The methods of the evaluation, ours and the rivals' ideas, as configs of one engine: what
 * each fixes.  The rest is chosen, or tuned, as for any config. */
#include <string.h>

#include "base/status.h"
#include "base/versioned.h"
#include "entwine/measure.h"
#include "plan/backend_traits.h"

typedef struct method {
    const char *name;
    const char *cpu;
    const char *gpu; /* and sim */
} method;

static const method methods[] = {
    {"entwine", "producer=own", "producer=own"},
    {"sequential", "producer=own,release=output", "producer=own,release=output"},
    {"blas", "producer=blas,release=output", "producer=blas,release=output"},
    {"static", "producer=own,pool=static", "producer=own,pool=static"},
    {"wavegroup", "producer=own,release=4", "producer=own,launches=unit"},
    {"chunked", "producer=own,order=contiguous,release=partition",
     "producer=own,transport=copy,order=contiguous,release=partition"},
    {"blas-chunked", "producer=blas,transport=copy,release=partition",
     "producer=blas,transport=copy,release=partition"},
    {"chunk-signals", "producer=own,transport=copy,pool=shared",
     "producer=own,transport=copy,pool=shared"},
    {"fused-push", "producer=own,transport=push,release=output",
     "producer=own,transport=push,release=output"},
    {"fused-add", "producer=own,transport=add", "producer=own,transport=add"},
    {"fused-tma-add", "producer=own,transport=tma-add", "producer=own,transport=tma-add"},
};
#define NUM_METHODS (sizeof methods / sizeof methods[0])

const char *const *ew_method_list(void)
{
    static const char *const names[] = {"entwine",      "sequential",    "blas",
                                        "static",       "wavegroup",     "chunked",
                                        "blas-chunked", "chunk-signals", "fused-push",
                                        "fused-add",    "fused-tma-add", NULL};
    _Static_assert(sizeof names / sizeof names[0] == NUM_METHODS + 1,
                   "one name per method");
    return names;
}

static bool may_be_gpu(const ew_config *config)
{
    const ewx_traits *traits = ewx_traits_of(config->backend);
    return traits->is_gpu || traits->simulated;
}

/* The base without what it says about a reduction that runs beside the GEMM, for a method
 * whose reduction does not. */
static ew_config without_overlap(ew_config base)
{
    base.order = (ew_order)0; /* the best for a GEMM that nobody waits for */
    base.pool = (ew_pool)0;
    base.transport = (ew_transport)0;
    base.launches = (ew_launches)0;
    if (may_be_gpu(&base)) /* no GEMM beside it: all SMs */
        base.budget = base.batch = 0;
    return base;
}

static ew_status apply(const method *m, const ew_config *base, ew_config *config_out)
{
    const char *text = may_be_gpu(base) ? m->gpu : m->cpu;
    ew_config fixed = EW_CONFIG_INIT;
    EW_TRY(ew_config_parse(text, &fixed));
    ew_config config = *base;
    if (fixed.release == EW_RELEASE_OUTPUT || fixed.transport == EW_TRANSPORT_COPY)
        config = without_overlap(config);
    /* "entwine" is the config given, whichever GEMM it names. */
    if (m != &methods[0] || !base->producer)
        config.producer = fixed.producer;
    if (fixed.order)
        config.order = fixed.order;
    /* How many tiles a group has is the method's knob; that it is a group is not. */
    if (fixed.release && !(fixed.release > 0 && base->release > 0))
        config.release = fixed.release;
    if (config.release < 0)
        config.release_first = config.release_last = 0;
    if (fixed.pool)
        config.pool = fixed.pool;
    if (fixed.transport)
        config.transport = fixed.transport;
    if (fixed.launches)
        config.launches = fixed.launches;
    ewx_config_give(config_out, &config);
    return EW_OK;
}

ew_status ew_method_config(const char *name, const ew_config *base, ew_config *config_out)
{
    ew_config asked;
    if (!name || !config_out)
        return ewx_fail(EW_ERR_ARGUMENT, "ew_method_config needs a method and a config\n"
                                         "  fix: pass both");
    EW_TRY(ewx_config_take(&asked, base));
    for (size_t i = 0; i < NUM_METHODS; i++)
        if (strcmp(name, methods[i].name) == 0)
            return apply(&methods[i], &asked, config_out);
    return ewx_fail(
        EW_ERR_ARGUMENT,
        "method '%s' is unknown\n  fix: use entwine, sequential, blas, static, "
        "wavegroup, chunked, blas-chunked, chunk-signals, fused-push, fused-add or "
        "fused-tma-add",
        name);
}
