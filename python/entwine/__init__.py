"""Entwine: GEMM with ReduceScatter, AllReduce or AllGather, whose communication hides behind the
computation.

    import entwine, numpy as np

    def rank_main(world):
        A, B = np.ones((8, 64), np.float32), np.ones((32, 64), np.float32)
        return entwine.gemm_rs(A, B, world)     # this rank's rows of the sum of A @ B.T

    if __name__ == "__main__":
        print(entwine.spawn(4, rank_main))

``World`` is the ranks that work together, ``Plan`` what calls of one shape need, ``Weight`` a
packed weight that several plans can share.  For torch see ``entwine.torch``.  Everything raises
``EntwineError`` or one of its kinds.
"""
from ._cancellation import Cancellation
from ._errors import *  # noqa: F401,F403
from ._errors import __all__ as _error_names
from ._library import __version__, library_path
from ._plan import Plan, Timing
from ._problem import explain
from ._shared_plans import ag_gemm, gemm_ar, gemm_ar_layer, gemm_rs, gemm_rs_layer
from ._spawn import spawn
from ._symmetric import SymmetricMemory
from ._tuning import TuneResult, tune
from ._weight import Weight
from ._world import World, init, owned_rows

__all__ = ["World", "Plan", "Weight", "SymmetricMemory", "Cancellation", "Timing", "TuneResult", "init", "spawn",
           "gemm_rs", "gemm_rs_layer", "gemm_ar", "gemm_ar_layer", "ag_gemm", "tune", "explain",
           "owned_rows", "library_path", "__version__",
           *_error_names]
