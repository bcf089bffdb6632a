"""A layer whose right result is known to the last bit: small integers, so that no sum rounds."""
import numpy as np

from matrices import expected, operands

EPS = 1e-5


def parts(rank, rows, n, dtype="float32"):
    """bias and norm_weight, equal on all ranks, and a rank's residual."""
    shared, own = np.random.default_rng(n), np.random.default_rng([rank, rows, n])
    return {"bias": shared.integers(-2, 3, n).astype(dtype),
            "norm_weight": (shared.integers(1, 9, n) / 4).astype(dtype),
            "residual": own.integers(-3, 4, (rows, n)).astype(dtype)}


def norm(h, norm_weight, eps=EPS):
    """RMSNorm as the C header has it; the sum of squares is exact."""
    wide = h.astype(np.float32)
    mean = np.square(wide).sum(1, dtype=np.float32, keepdims=True) / np.float32(h.shape[1])
    scale = np.float32(1) / np.sqrt(mean + np.float32(eps))
    scaled = (wide * scale).astype(h.dtype)
    return (scaled.astype(np.float32) * norm_weight.astype(np.float32)).astype(h.dtype)


def problem(world, m, n, k, dtype="float32"):
    """A, B, the parts, and what c, h and normed of this rank's rows must be."""
    A, B = operands(world.rank, m, n, k, dtype)
    first, count = world.owned_rows(m)
    given = parts(world.rank, count, n, dtype)
    c = (expected(world.size, m, n, k)[first:first + count]
         + given["bias"].astype(np.float32)).astype(dtype)
    h = (c.astype(np.float32) + given["residual"].astype(np.float32)).astype(dtype)
    return A, B, given, (c, h, norm(h, given["norm_weight"]))
