"""Plans, calls, explanations and tuning."""
import collections
import ctypes
import sys
from collections.abc import Mapping

from . import _buffers
from ._buffers import CPU, DTYPE_NAMES, count, describe, dtype_code
from ._errors import ArgumentError, ArgumentTypeError, ConfigError, ShapeError
from ._library import (EXPLAIN_BYTES, Config, Problem, TimingStruct, check, lib, parse_config,
                       print_config)
from ._world import MAX_RANKS, check_world

LAYOUTS = {"nk": 1, "kn": 2}
_LEGACY_STREAM = 1  # CUDA's default stream, as a handle
_CACHED_PLANS = 8


class Timing(collections.namedtuple("Timing", "start_ns gemm_end_ns end_ns")):
    """When the last call started, had its GEMM done, and ended (CLOCK_MONOTONIC)."""

    __slots__ = ()

    @property
    def total_us(self):
        """The whole call, in microseconds."""
        return (self.end_ns - self.start_ns) / 1e3

    @property
    def tail_us(self):
        """What of it came after the GEMM."""
        return (self.end_ns - self.gemm_end_ns) / 1e3


# ---- Configs and problems --------------------------------------------------------------------

def make_config(config, backend):
    """A C config from text, a mapping or None, with the backend set if given."""
    if isinstance(config, Mapping):
        config = ",".join(f"{key}={value}" for key, value in config.items())
    if config is None:
        config = ""
    if not isinstance(config, str):
        raise ArgumentTypeError(f"config is a {type(config).__name__}; expected text such as "
                                f"'order=contiguous,x=2', a mapping, or None")
    if "\0" in config:
        raise ConfigError(f"config is {config!r}; expected text without zero characters")
    if backend is not None:
        if backend not in ("cpu", "cuda"):
            raise ConfigError(f"backend is {backend!r}; expected 'cpu' or 'cuda'")
        named = _backend_in(config)
        if named is None:
            config = ",".join(part for part in (config, f"backend={backend}") if part)
        elif named != backend:
            raise ConfigError(f"config says backend={named}, but backend is {backend!r}")
    return parse_config(config)


def _backend_in(text):
    for item in text.split(","):
        key, _, value = item.partition("=")
        if key.strip() == "backend":
            return value.strip()
    return None


def make_problem(max_m, n, k, dtype, layout="nk"):
    """A C problem, every number checked."""
    if layout not in LAYOUTS:
        raise ArgumentError(f"layout is {layout!r}; expected 'nk' (B lies as N rows of K) or 'kn'")
    return Problem(ctypes.sizeof(Problem), dtype_code(dtype), LAYOUTS[layout],
                   count(max_m, "max_m", 0), count(n, "n", 1), count(k, "k", 1))


def explain(max_m, n, k, dtype="float32", ranks=1, config=None, *, backend=None, layout="nk"):
    """What a plan would be for `ranks` ranks on this host, and why: a few lines of text."""
    text = ctypes.create_string_buffer(EXPLAIN_BYTES)
    check(lib.ew_forecast_explain(make_problem(max_m, n, k, dtype, layout),
                                  count(ranks, "ranks", 1, MAX_RANKS),
                                  make_config(config, backend), text, EXPLAIN_BYTES))
    return text.value.decode()


# ---- The plan --------------------------------------------------------------------------------

class Plan:
    """All that calls of one shape need, made once.  Collective: create plans in the same order,
    with the same arguments, on all ranks.

    Rank r holds A_r [m, k] and B_r [n, k]; ``gemm_rs`` returns this rank's rows of the sum over
    r of ``A_r @ B_r.T``.  ``k`` is the rank's own depth, ``max_m`` the most rows a call will
    have, ``dtype`` float32, float16 or bfloat16.

    ``layout`` is how B lies in memory: "nk" for N rows of K, as torch keeps a weight, or "kn"
    for K rows of N; B itself always has shape [n, k], so a K x N array is passed as ``array.T``.
    ``config`` is text such as "order=contiguous,x=2", or a mapping; what is left out is chosen.
    ``backend`` is "cpu" (default) or "cuda".
    """

    def __init__(self, world, max_m, n, k, dtype, config=None, *, backend=None, layout="nk"):
        self._handle = None
        self._world = check_world(world)
        problem = make_problem(max_m, n, k, dtype, layout)
        request = make_config(config, backend)
        handle = ctypes.c_void_p()
        world._call(lib.ew_plan_create, world._check_open(), problem, request, handle)
        self._handle = handle.value
        world._plan_handles.add(self._handle)
        self._max_m, self._n, self._k = problem.max_m, problem.n, problem.k
        self._dtype, self._layout = problem.dtype, layout
        self._bound = False
        self._config = self._read_config()
        self._device = self._choose_device()

    def _read_config(self):
        config = Config()
        check(lib.ew_plan_config(self._handle, config))
        return print_config(config)

    def _choose_device(self):
        if _backend_in(self._config) != "cuda":
            return CPU
        return self._world.rank % max(1, lib.ew_gpu_count())

    # ---- Calls ----

    def set_weight(self, B):
        """Packs this rank's weight into the plan.  B may be changed or freed afterwards."""
        handle = self._check_open()
        buffer = describe(B, "B")
        self._check_weight(buffer)
        if buffer.kind == "torch" and buffer.device != CPU:
            sys.modules["torch"].cuda.current_stream(buffer.device).synchronize()
        self._world._call(lib.ew_plan_set_weight, handle, buffer.pointer)
        self._bound = True

    def gemm_rs(self, A, B=None, out=None, stream=None):
        """This rank's rows of the sum over ranks of ``A @ B.T``.  Collective.

        A is [m, k], row-major, with the same m <= max_m on all ranks.  B is the weight for this
        call alone; without it the one bound by ``set_weight`` is used.  The result is a new
        array of A's kind, or ``out`` [owned rows, n].

        On a GPU the call is enqueued on ``stream``: a handle or an object with one (default:
        torch's current stream for tensors, else CUDA's default stream).  On a CPU the result is
        there when it returns.
        """
        self._check_open()
        stream = _stream_handle(stream)
        return self._run(describe(A, "A", stream), None if B is None else describe(B, "B", stream),
                         out, stream)

    def _run(self, a, b, out, stream):
        m = self._check_rows(self._operand(a, "A"))
        if b is not None:
            self._check_weight(b)
        elif not self._bound:
            raise ArgumentError("B is missing, and no weight is bound\n"
                                "  fix: call set_weight(B) first; a call with a B of its own "
                                "unbinds it")
        world = self._world
        share, extra = divmod(m, world._size)
        rows = share + (world._rank < extra)
        if out is None:
            out, c = _buffers.allocate_like(a, (rows, self._n))
        else:
            c = self._output(out, rows, a, b)
        stream = self._stream(stream, a)
        if b is not None:
            self._bound = False  # it takes the bound one's place
        world._call(lib.ew_gemm_rs, self._check_open(), m, a.pointer or None,
                    None if b is None else b.pointer, c.pointer or None, stream)
        return out

    def wait(self):
        """Waits for what was enqueued on a GPU, and raises its fault if there was one."""
        self._world._call(lib.ew_plan_wait, self._check_open())

    # ---- What it is ----

    @property
    def world(self):
        """The world it belongs to."""
        return self._world

    @property
    def config(self):
        """The config in use as text, every field chosen."""
        self._check_open()
        return self._config

    @property
    def timing(self):
        """When the last call started and ended."""
        timing = TimingStruct()
        check(lib.ew_plan_timing(self._check_open(), timing))
        return Timing(timing.start_ns, timing.gemm_end_ns, timing.end_ns)

    def explain(self):
        """What was chosen and why, in a few lines of text."""
        text = ctypes.create_string_buffer(EXPLAIN_BYTES)
        check(lib.ew_plan_explain(self._check_open(), text, EXPLAIN_BYTES))
        return text.value.decode()

    def __repr__(self):
        state = self._config if self._handle in self._world._plan_handles else "closed"
        return (f"<entwine.Plan max_m={self._max_m} n={self._n} k={self._k} "
                f"{DTYPE_NAMES[self._dtype]} {state}>")

    def close(self):
        """Frees the plan; on all ranks, after their last call of it.  May be called again."""
        if self._handle not in self._world._plan_handles:
            return
        if not self._world._busy.acquire(blocking=False):
            raise ArgumentError("the plan is closed while its world is inside a call")
        try:
            handle, self._handle = self._handle, None
            self._world._plan_handles.remove(handle)
            lib.ew_plan_destroy(handle)
        finally:
            self._world._busy.release()

    def __enter__(self):
        self._check_open()
        return self

    def __exit__(self, kind, error, trace):
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None):
            try:
                self.close()
            except Exception:
                pass  # in use by another thread: it ends with its world

    # ---- Checks ----

    def _check_open(self):
        handle = self._handle
        if handle not in self._world._plan_handles:
            self._world._check_open()
            raise ArgumentError("the plan was closed")
        return handle

    def _operand(self, buffer, name):
        if buffer.dtype != self._dtype:
            raise ArgumentTypeError(f"{name} has element type {DTYPE_NAMES[buffer.dtype]}; "
                                    f"expected {DTYPE_NAMES[self._dtype]} as the plan's")
        if buffer.device != self._device:
            raise ArgumentError(f"{name} is on {_device_name(buffer.device)}; expected "
                                f"{_device_name(self._device)}, where the plan computes")
        return buffer

    def _check_rows(self, a):
        m, k = a.shape
        if k != self._k or m > self._max_m:
            raise ShapeError(f"A has shape {a.shape}; expected ({self._max_m} rows or fewer, "
                             f"{self._k})")
        if a.strides is not None and not a.is_row_major():
            raise ArgumentError(f"A has strides {a.strides}; expected row-major ({self._k}, 1)\n"
                                f"  fix: pass a contiguous copy")
        return m

    def _check_weight(self, b):
        self._operand(b, "B")
        if b.shape != (self._n, self._k):
            hint = "\n  fix: pass B.T" if b.shape == (self._k, self._n) else ""
            raise ShapeError(f"B has shape {b.shape}; expected {(self._n, self._k)}{hint}")
        if not (b.is_row_major() if self._layout == "nk" else b.is_transposed()):
            raise ArgumentError(
                f"B has strides {b.strides or (self._k, 1)}; expected "
                f"{(self._k, 1) if self._layout == 'nk' else (1, self._n)} for layout "
                f"{self._layout!r}\n  fix: pass a copy that lies so, or create the plan with the "
                f"other layout")

    def _output(self, out, rows, a, b):
        c = self._operand(describe(out, "out"), "out")
        if c.shape != (rows, self._n):
            raise ShapeError(f"out has shape {c.shape}; expected {(rows, self._n)}, this rank's "
                             f"rows of {a.shape[0]}")
        if not c.is_row_major():
            raise ArgumentError(f"out has strides {c.strides}; expected row-major ({self._n}, 1)")
        if not c.writable:
            raise ArgumentError("out is read-only; expected memory that can be written")
        for other, name in ((a, "A"), (b, "B")):
            if other is not None and _buffers.overlap(c, other):
                raise ArgumentError(f"out shares memory with {name}; expected memory of its own")
        return c

    def _stream(self, stream, a):
        if self._device == CPU:
            if stream is not None:
                raise ArgumentError(f"stream is {stream!r}; expected None, the cpu backend has no "
                                    f"streams")
            return None
        if stream is None:
            stream = a.stream if a.kind != "torch" else _stream_handle(
                sys.modules["torch"].cuda.current_stream(a.device))
        return stream or _LEGACY_STREAM


def _stream_handle(stream):
    """None, or the number of a stream given as such or as torch's, cupy's or another's object."""
    if stream is None:
        return None
    for attribute in ("cuda_stream", "ptr", "handle"):
        stream = getattr(stream, attribute, stream)
    return count(stream, "stream", 0, (1 << 64) - 1)


def _device_name(device):
    return "the cpu" if device == CPU else f"cuda:{device}"


# ---- Without a plan --------------------------------------------------------------------------

def _bucket(m):
    return 1 << max(0, m - 1).bit_length()


def cached_plan(world, key, make):
    """The world's plan of that key, made if need be.  All ranks make the same calls, so all
    caches hold the same plans and drop the same one."""
    plans = world._cache
    plan = plans.pop(key, None)
    if plan is None:
        if len(plans) >= _CACHED_PLANS:
            world.barrier()
            plans.pop(next(iter(plans))).close()
        plan = make()
    plans[key] = plan  # the last one is the most recently used
    return plan


def gemm_rs(A, B, world, *, out=None, stream=None, config=None):
    """This rank's rows of the sum over ranks of ``A @ B.T``, without a plan of one's own:
    plans are made when a new shape comes and kept in a small cache.  Collective.

    A is [m, k] and B is [n, k], either row-major or a transposed K x N array.  B is packed in
    every call; with a fixed weight, a ``Plan`` and its ``set_weight`` are faster.
    """
    check_world(world)
    stream = _stream_handle(stream)
    a, b = describe(A, "A", stream), describe(B, "B", stream)
    if a.shape[1] != b.shape[1]:
        raise ShapeError(f"A has shape {a.shape} and B {b.shape}; expected the same depth k")
    if not (b.is_row_major() or b.is_transposed()):
        raise ArgumentError(f"B has strides {b.strides}; expected {(b.shape[1], 1)} (row-major) or "
                            f"{(1, b.shape[0])} (its transpose)\n  fix: pass a contiguous copy")
    layout = "nk" if b.is_row_major() else "kn"
    backend = "cpu" if a.device == CPU else "cuda"
    max_m, n, k, dtype = _bucket(a.shape[0]), b.shape[0], b.shape[1], DTYPE_NAMES[a.dtype]
    plan = cached_plan(world, (max_m, n, k, dtype, layout, backend, str(config)),
                       lambda: Plan(world, max_m, n, k, dtype, config, backend=backend,
                                    layout=layout))
    return plan._run(a, b, out, stream)
