"""Inputs of small integers, whose sums are exact in every element type, and their results.

Importable without pytest: ranks that spawn() started use it too.
"""
import numpy as np

DTYPES = ["float32", "float16"]
try:
    import ml_dtypes
    DTYPES.append(ml_dtypes.bfloat16)
except ImportError:
    pass


def operands(rank, m, n, k, dtype="float32"):
    """A_r and B_r of a rank: entries -1, 0 and 1, at most 12 non-zeros in a row of A."""
    random = np.random.default_rng([rank, m, n, k])
    A = np.zeros((m, k))
    for row in A:
        row[random.choice(k, min(k, 12), replace=False)] = random.integers(-1, 2, min(k, 12))
    B = random.integers(-1, 2, (n, k))
    return A.astype(dtype), B.astype(dtype)


def expected(size, m, n, k, dtype="float32"):
    """The whole output, all rows."""
    total = np.zeros((m, n))
    for rank in range(size):
        A, B = operands(rank, m, n, k)
        total += A.astype(np.float64) @ B.T.astype(np.float64)
    return total.astype(dtype)


def bits(array):
    """The bytes of an array, which are equal exactly when the bits are."""
    return np.ascontiguousarray(array).tobytes()
