"""Problems and configs as the C library has them, and what it would make of them."""
from __future__ import annotations

import ctypes
from collections.abc import Mapping

from ._buffers import count, dtype_code
from ._errors import ArgumentError, ArgumentTypeError, ConfigError
from ._library import EXPLAIN_BYTES, Problem, check, lib, parse_config
from ._world import MAX_RANKS

LAYOUTS = {"nk": 1, "kn": 2}
ConfigLike = str | Mapping[str, object] | None
OPS = {"gemm-rs": 0, "gemm-ar": 1, "ag-gemm": 2}


def config_text(config):
    """The text of a config that is text, a mapping or None."""
    if isinstance(config, Mapping):
        return ",".join(f"{key}={value}" for key, value in config.items())
    if config is None:
        return ""
    if not isinstance(config, str):
        raise ArgumentTypeError(f"config is a {type(config).__name__}; expected text such as "
                                f"'order=contiguous,x=2', a mapping, or None")
    return config


def make_config(config, backend):
    """A C config from text, a mapping or None, with the backend set if given."""
    config = config_text(config)
    if "\0" in config:
        raise ConfigError(f"config is {config!r}; expected text without zero characters")
    if backend is not None:
        if backend not in ("cpu", "cuda"):
            raise ConfigError(f"backend is {backend!r}; expected 'cpu' or 'cuda'")
        named = backend_in(config)
        if named is None:
            config = ",".join(part for part in (config, f"backend={backend}") if part)
        elif named != backend:
            raise ConfigError(f"config says backend={named}, but backend is {backend!r}")
    return parse_config(config)


def backend_in(text):
    for item in text.split(","):
        key, _, value = item.partition("=")
        if key.strip() == "backend":
            return value.strip()
    return None


def make_problem(max_m, n, k, dtype, layout="nk", op="gemm-rs"):
    """A C problem, every number checked."""
    if op not in OPS:
        raise ArgumentError(f"op is {op!r}; expected 'gemm-rs', 'gemm-ar' or 'ag-gemm'")
    if layout not in LAYOUTS:
        raise ArgumentError(f"layout is {layout!r}; expected 'nk' (B lies as N rows of K) or 'kn'")
    return Problem(ctypes.sizeof(Problem), dtype_code(dtype), LAYOUTS[layout],
                   count(max_m, "max_m", 0), count(n, "n", 1), count(k, "k", 1), OPS[op])


def explain(max_m: int, n: int, k: int, dtype: object = "float32", ranks: int = 1,
            config: ConfigLike = None, *, backend: str | None = None, layout: str = "nk",
            op: str = "gemm-rs") -> str:
    """What a plan would be for `ranks` ranks on this host, and why: a few lines of text."""
    text = ctypes.create_string_buffer(EXPLAIN_BYTES)
    check(lib.ew_forecast_explain(make_problem(max_m, n, k, dtype, layout, op),
                                  count(ranks, "ranks", 1, MAX_RANKS),
                                  make_config(config, backend), text, EXPLAIN_BYTES))
    return text.value.decode()
