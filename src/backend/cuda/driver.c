#include "backend/cuda/driver.h"

#include <pthread.h>

static pthread_once_t looked = PTHREAD_ONCE_INIT;
static ewx_driver driver;
static ew_status found = EW_ERR_UNSUPPORTED;
static char reason[160] = "";

ew_status ewx_cuda_fail(cudaError_t error, const char *what)
{
    const ew_status status =
        error == cudaErrorMemoryAllocation ? EW_ERR_MEMORY : EW_ERR_SYSTEM;
    (void)cudaGetLastError(); /* reported here: the next call starts afresh */
    return ewx_fail(status, "%s failed: %s (%s)%s", what, cudaGetErrorString(error),
                    cudaGetErrorName(error),
                    status == EW_ERR_MEMORY
                        ? "\n  fix: free GPU memory, or plan for fewer rows (max_m)"
                        : "\n  fix: entwine doctor looks for the reason");
}

ew_status ewx_driver_fail(CUresult result, const char *what)
{
    const char *text = NULL;
    driver.cuGetErrorString(result, &text);
    return ewx_fail(result == CUDA_ERROR_OUT_OF_MEMORY ? EW_ERR_MEMORY : EW_ERR_SYSTEM,
                    "%s failed: %s\n  fix: entwine doctor looks for the reason", what,
                    text ? text : "unknown error");
}

static bool find(const char *name, unsigned version, void **function_out)
{
    enum cudaDriverEntryPointQueryResult result;
    const cudaError_t error = cudaGetDriverEntryPointByVersion(name, function_out, version,
                                                               cudaEnableDefault, &result);
    return error == cudaSuccess && result == cudaDriverEntryPointSuccess && *function_out;
}

static void look(void)
{
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        ewx_text text = ewx_text_in(reason, sizeof reason);
        ewx_text_add(&text, "no GPU can be used here: %s",
                     error == cudaErrorInsufficientDriver
                         ? "there is no NVIDIA driver, or it is older than CUDA 13"
                     : error != cudaSuccess ? cudaGetErrorString(error)
                                            : "the driver shows no device");
        (void)cudaGetLastError();
        return;
    }
#define FIND(name, version)                                             \
    if (!find(#name, version, (void **)&driver.name)) {                 \
        ewx_text text = ewx_text_in(reason, sizeof reason);             \
        ewx_text_add(&text, "the driver is too old: it has no " #name); \
        return;                                                         \
    }
    EWX_DRIVER_FUNCTIONS(FIND)
#undef FIND
    found = EW_OK;
}

ew_status ewx_driver_get(const ewx_driver **driver_out)
{
    pthread_once(&looked, look);
    if (found != EW_OK)
        return ewx_fail(found, "%s\n  fix: use backend=cpu, or install the driver", reason);
    *driver_out = &driver;
    return EW_OK;
}
