"""CUDA streams as numbers."""
import sys

from ._buffers import count

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


def is_capturing():
    """Whether torch captures its current stream into a CUDA graph."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.cuda.is_current_stream_capturing()
