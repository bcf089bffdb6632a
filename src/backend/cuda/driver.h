/* The CUDA runtime, and the driver's functions that it does not wrap, found at run time:
 * one library runs with and without a driver. */
#ifndef EWX_CUDA_DRIVER_H
#define EWX_CUDA_DRIVER_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>

#include "base/status.h"
#include "base/text.h"

#define EWX_DRIVER_FUNCTIONS(X)           \
    X(cuCtxFromGreenCtx, 12040)           \
    X(cuCtxGetCurrent, 4000)              \
    X(cuCtxGetId, 12000)                  \
    X(cuCtxPopCurrent, 4000)              \
    X(cuCtxPushCurrent, 4000)             \
    X(cuDevResourceGenerateDesc, 12040)   \
    X(cuDevSmResourceSplitByCount, 12040) \
    X(cuDeviceGetDevResource, 12040)      \
    X(cuDevicePrimaryCtxRetain, 7000)     \
    X(cuDevicePrimaryCtxRelease, 11000)   \
    X(cuGetErrorString, 6000)             \
    X(cuGreenCtxCreate, 12040)            \
    X(cuGreenCtxDestroy, 12040)           \
    X(cuGreenCtxStreamCreate, 12050)      \
    X(cuLaunchKernelEx, 11060)            \
    X(cuMemGetAddressRange, 3020)         \
    X(cuStreamBatchMemOp, 11070)          \
    X(cuTensorMapEncodeTiled, 12000)

typedef struct ewx_driver {
#define EWX_DRIVER_MEMBER(name, version) __typeof__(&name) name;
    EWX_DRIVER_FUNCTIONS(EWX_DRIVER_MEMBER)
#undef EWX_DRIVER_MEMBER
} ewx_driver;

/* EW_ERR_UNSUPPORTED, in one sentence, when there is no usable GPU here. */
ew_status ewx_driver_get(const ewx_driver **driver_out);

/* A failed call of either API as a status: `what` was being done. */
ew_status ewx_cuda_fail(cudaError_t error, const char *what);
ew_status ewx_driver_fail(CUresult result, const char *what);

#define EW_CUDA_TRY(call, what)                           \
    do {                                                  \
        const cudaError_t ew_cuda_error_ = (call);        \
        if (ew_cuda_error_ != cudaSuccess)                \
            return ewx_cuda_fail(ew_cuda_error_, (what)); \
    } while (0)

#define EW_DRIVER_TRY(call, what)                            \
    do {                                                     \
        const CUresult ew_driver_result_ = (call);           \
        if (ew_driver_result_ != CUDA_SUCCESS)               \
            return ewx_driver_fail(ew_driver_result_, what); \
    } while (0)

#endif
