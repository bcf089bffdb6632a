/* Streams in the capture of a CUDA graph.  From a rank's first call in one until its end,
 * the rank's own streams belong to that capture: whatever else wants them is refused,
 * because it would spoil the capture, or be captured. */
#ifndef EWX_CUDA_CAPTURE_H
#define EWX_CUDA_CAPTURE_H

#include "backend/cuda/device.h"

/* The device is not entered in either: a caller without a context must not be given one. */
ew_status ewx_check_not_captured(const ewx_device *device, const char *what);

/* A call on this stream may belong to the same capture.  The stream is looked at in the
 * context that is current. */
ew_status ewx_check_same_capture(const ewx_device *device, cudaStream_t stream);

#endif
