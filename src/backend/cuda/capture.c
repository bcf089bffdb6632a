#include "backend/cuda/capture.h"

#define SPOILT UINT64_MAX /* a capture that can only be ended */

/* The number of the capture, which no other of this process has; 0: none. */
static uint64_t capture_of(cudaStream_t stream)
{
    enum cudaStreamCaptureStatus status;
    unsigned long long number = 0;
    const cudaError_t error =
        cudaStreamGetCaptureInfo(stream, &status, &number, NULL, NULL, NULL, NULL);
    (void)cudaGetLastError(); /* the default stream cannot be asked during a capture */
    if (error != cudaSuccess || status == cudaStreamCaptureStatusNone)
        return 0;
    return status == cudaStreamCaptureStatusActive ? number : SPOILT;
}

static ew_status capture_of_rank(const ewx_device *device, uint64_t *number_out)
{
    EW_TRY(ewx_device_enter(device));
    *number_out = capture_of(device->producing);
    ewx_device_leave(device);
#if EW_MUTANT == 91 /* planted bug: calls between those of a capture are not noticed */
    *number_out = 0;
#endif
    return EW_OK;
}

static ew_status refuse(const char *what)
{
    return ewx_fail(EW_ERR_ARGUMENT,
                    "%s while calls of this rank are captured\n"
                    "  fix: make it before the capture or after its end",
                    what);
}

ew_status ewx_check_not_captured(const ewx_device *device, const char *what)
{
    uint64_t ranks;
    EW_TRY(capture_of_rank(device, &ranks));
    return ranks == 0 ? EW_OK : refuse(what);
}

ew_status ewx_check_same_capture(const ewx_device *device, cudaStream_t stream)
{
    const uint64_t streams = capture_of(stream);
    uint64_t ranks;
    EW_TRY(capture_of_rank(device, &ranks));
    return ranks == 0 || (ranks == streams && ranks != SPOILT)
               ? EW_OK
               : refuse("a call on another stream");
}
