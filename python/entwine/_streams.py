"""CUDA streams as numbers."""
import ctypes
import sys

from ._buffers import CPU, allocate_like, count
from ._errors import ArgumentError

LEGACY_STREAM = 1  # CUDA's default stream, as a handle


def stream_handle(stream):
    """None, or the number of a stream given as such or as torch's, cupy's or another's object."""
    if stream is None:
        return None
    for attribute in ("cuda_stream", "ptr", "handle"):
        stream = getattr(stream, attribute, stream)
    return count(stream, "stream", 0, (1 << 64) - 1)


def torch_stream(device):
    """The handle of torch's current stream."""
    return sys.modules["torch"].cuda.current_stream(device).cuda_stream or LEGACY_STREAM


def synchronize(stream, name):
    """Waits for what was enqueued on the stream of whoever made the array `name`, with whatever
    package: they all use the driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return  # there is no GPU, as the library will say
    error = driver.cuStreamSynchronize(ctypes.c_void_p(stream))
    if error:
        raise ArgumentError(f"{name} cannot be waited for: CUDA error {error} of its stream "
                            f"{stream}")


def allocate_for(stream, buffer, shape, name="out"):
    """allocate_like, for a result that is written on the stream of that handle; None: torch's
    current one.  torch gives out memory in which kernels of the stream it was made for may still
    work, so memory made for another stream than the one that writes it can be overwritten."""
    if stream is None or buffer.kind != "torch" or buffer.device == CPU:
        return allocate_like(buffer, shape, name)
    cuda = sys.modules["torch"].cuda
    its = (cuda.ExternalStream(stream, device=buffer.device) if stream > LEGACY_STREAM
           else cuda.default_stream(buffer.device))
    with cuda.stream(its):
        return allocate_like(buffer, shape, name)


def is_capturing():
    """Whether torch captures its current stream into a CUDA graph."""
    torch = sys.modules.get("torch")
    return (torch is not None and torch.cuda.is_initialized()
            and torch.cuda.is_current_stream_capturing())
