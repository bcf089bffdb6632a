"""Finding a config by measuring."""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NamedTuple

from ._buffers import count
from ._errors import ArgumentTypeError
from ._library import (PROGRESS, TuneOptions, TuneResultStruct, lib, print_config)
from ._problem import ConfigLike, make_config, make_problem
from ._world import World, _real, check_world


class TuneResult(NamedTuple):
    """The best config found, as text; its time and that of the built-in choice, in
    microseconds, from the same run; how many configs were measured, and refused by this
    machine; whether the search came to its end; and whether plans will now use the result."""

    config: str
    time_us: float
    default_us: float
    num_candidates: int
    num_refused: int
    complete: bool
    stored: bool

    @property
    def speedup(self) -> float:
        """How many times as fast as the built-in choice."""
        return self.default_us / self.time_us


def tune(world: World, max_m: int, n: int, k: int, dtype: object = "float32",
         config: ConfigLike = None, *, backend: str | None = None, layout: str = "nk",
         op: str = "gemm-rs", budget: float = 0.0, samples: int = 0, seed: int = 1,
         store: bool = True,
         progress: Callable[[int, int, str, float, float], object] | None = None) -> TuneResult:
    """Measures configs for a shape and returns the best, as a TuneResult.  Collective.

    Fields given in ``config`` stay as they are.  Without any, and without an emulated link, the
    result is stored, unless ``store`` is False: plans without a config of their own then use it,
    here and in later runs.  ``budget`` is in seconds, 0 for as long as it takes.
    ``progress(round, num_rounds, best_config, best_us, default_us)`` is called on rank 0 after
    each round; a true result ends the search early.
    """
    check_world(world)
    problem = make_problem(max_m, n, k, dtype, layout, op)
    fixed = make_config(config, backend)
    if progress is not None and not callable(progress):
        raise ArgumentTypeError(f"progress is {progress!r}; expected a function or None")
    raised = []

    def report(_context, number, total, best, best_us, default_us):
        try:
            return 1 if progress(number, total, best.decode(), best_us, default_us) else 0
        except BaseException as error:  # it cannot cross C
            raised.append(error)
            return 1

    options = TuneOptions(ctypes.sizeof(TuneOptions), _real(budget, "budget"),
                          count(samples, "samples", 0, 1000), count(seed, "seed", 0, 2**32 - 1),
                          1 if store else 0, PROGRESS(report) if progress else PROGRESS(), None,
                          None)
    found = TuneResultStruct()
    world._call(lib.ew_tune, world._check_open(), problem, fixed, options, ctypes.byref(found))
    if raised:
        raise raised[0]
    return TuneResult(print_config(found.tuning.config), found.tuning.time_us,
                      found.tuning.default_us, found.num_candidates, found.num_refused,
                      bool(found.complete), bool(found.stored))
