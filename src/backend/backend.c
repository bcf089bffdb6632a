/* Which backends this build has, and what sets them apart. */
#include "backend/backend.h"

#include "base/status.h"

ew_backend_traits ew_backend_describe(ew_backend backend)
{
    const ewx_traits *traits = ewx_traits_of(backend);
    return (ew_backend_traits){.is_gpu = traits->is_gpu,
                               .enqueues = traits->enqueues,
                               .simulated = traits->simulated,
                               .has_own_clock = traits->has_own_clock};
}

ew_status ewx_backend_find(ew_backend name, const ewx_backend **backend_out)
{
    switch (name) {
    case EW_BACKEND_CUDA:
#ifdef EW_HAVE_CUDA
        *backend_out = &ewx_backend_cuda;
        return EW_OK;
#else
        return ewx_fail(EW_ERR_UNSUPPORTED,
                        "this build has no cuda backend\n"
                        "  fix: use backend=cpu, or build where nvcc is installed with "
                        "make CUDA=1");
#endif
    case EW_BACKEND_SIM:
        *backend_out = &ewx_backend_sim;
        return EW_OK;
    default:
        if (name != 0 && name != EW_BACKEND_CPU) /* 0: open */
            return ewx_fail(EW_ERR_CONFIG,
                            "backend=%d is not valid\n  fix: use an EW_BACKEND_... value",
                            (int)name);
        *backend_out = &ewx_backend_cpu;
        return EW_OK;
    }
}

ew_status ewx_graphs_refuse(void *state, ewx_enqueuer *enqueue, void *context,
                            void **graph_out)
{
    (void)state, (void)enqueue, (void)context, (void)graph_out;
    return ewx_fail(EW_ERR_UNSUPPORTED, "calls of this backend cannot be captured\n"
                                        "  fix: use backend=cuda");
}
