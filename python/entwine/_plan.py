"""Plans and their calls."""
from __future__ import annotations

import ctypes
import functools
import warnings
import weakref
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

from . import _buffers
from ._buffers import CPU, DTYPE_NAMES, Buffer, count, describe, empty_like, plain_address
from ._errors import ArgumentError, ArgumentTypeError, ShapeError
from ._layer import Layer
from ._library import EXPLAIN_BYTES, Config, Numa, TimingStruct, check, lib, print_config
from ._problem import ConfigLike, backend_in, make_config, make_problem
from ._products import Products, activation_code
from ._streams import LEGACY_STREAM, allocate_for, stream_handle, torch_stream
from ._weight import Taker, Weight
from ._world import World, check_world, timeout_ms

Array = TypeVar("Array")  # results are of the kind of A


class Timing(NamedTuple):
    """When the last call started, had its GEMM done, and ended (CLOCK_MONOTONIC)."""

    start_ns: int
    gemm_end_ns: int
    end_ns: int

    @property
    def total_us(self) -> float:
        """The whole call, in microseconds."""
        return (self.end_ns - self.start_ns) / 1e3

    @property
    def tail_us(self) -> float:
        """The part of it that came after the GEMM, in microseconds."""
        return (self.end_ns - self.gemm_end_ns) / 1e3


@functools.cache
def _warn_of_domains():
    """Once: ranks cannot be put where they would be faster."""
    numa = Numa()
    check(lib.ew_numa_describe(1, numa))
    if numa.unknown:
        warnings.warn(f"several NUMA domains, but {numa.unknown.decode()}: results are right but "
                      f"slower\n  fix: install hwloc (libhwloc15), or bind ranks with numactl",
                      RuntimeWarning, stacklevel=3)


# ---- The plan --------------------------------------------------------------------------------

class Plan(Taker):
    """All that calls of one shape need, made once.  Collective: create plans in the same order,
    with the same arguments, on all ranks.

    Rank r holds A_r [m, k] and B_r [n, k]; ``gemm_rs`` returns this rank's rows of the sum over
    r of ``A_r @ B_r.T``, and ``gemm_ar``, of a plan with ``op="gemm-ar"``, all of its rows.
    With ``op="ag-gemm"`` a rank has its rows of A, and ``ag_gemm`` returns ``A @ B_r.T``.
    ``k`` is the rank's own depth, ``max_m`` the most rows a call will have, ``dtype`` float32,
    float16 or bfloat16.

    ``layout`` is how B lies in memory: "nk" for N rows of K, as torch keeps a weight, or "kn"
    for K rows of N; B itself always has shape [n, k], so a K x N array is passed as ``array.T``.
    ``config`` is text such as "order=contiguous,x=2", or a mapping; what is left out is chosen.
    ``backend`` is "cpu" (default) or "cuda".
    """

    def __init__(self, world: World, max_m: int, n: int, k: int, dtype: object,
                 config: ConfigLike = None, *, backend: str | None = None, layout: str = "nk",
                 op: str = "gemm-rs") -> None:
        self._handle = None
        self._world = check_world(world)
        problem = make_problem(max_m, n, k, dtype, layout, op)
        request = make_config(config, backend)
        handle = ctypes.c_void_p()
        try:
            world._call(lib.ew_plan_create, world._check_open(), problem, request, handle)
        finally:  # an interrupt may come when it has been made
            self._handle = handle.value
            if self._handle:
                world._plan_handles.add(self._handle)
        self._max_m, self._n, self._k = problem.max_m, problem.n, problem.k
        self._dtype, self._layout, self._op = problem.dtype, layout, op
        self._function, self._layer_function, self._gives_all_rows = _FUNCTIONS[op]
        self._bound = False
        self._bound_to = None  # a weak reference, if it was bound to a Weight
        self._is_captured = False  # see _shared_plans
        self._has_room = False  # on a CPU, for the weight of a call that brought one
        self._config = self._read_config()
        self._device = world._device_of(backend_in(self._config))
        if backend_in(self._config) == "cpu":
            _warn_of_domains()
        self._call = world._call

    def _held_bytes(self):
        """About as many as it holds at most: rows that are exchanged, in two slices, packed rows,
        and the room for a weight, which on a GPU is for one that has to be transposed."""
        has_room = self._has_room if self._device == CPU else self._layout == "kn"
        elements = 2 * self._max_m * (self._n + self._k) + has_room * self._n * self._k
        return elements * _buffers.ITEM_BYTES[self._dtype]

    def _read_config(self):
        config = Config()
        check(lib.ew_plan_config(self._handle, config))
        return print_config(config)

    # ---- Calls ----

    def set_weight(self, B: object) -> None:
        """Packs this rank's weight into the plan and binds it.  B may be changed or freed
        afterwards."""
        handle = self._check_open()
        b = describe(B, "B")  # lives until B has been read
        self._bound_to = None
        self._world._call(lib.ew_plan_set_weight, handle, self._take_weight(b))
        self._bound = True

    def bind(self, weight: Weight) -> None:
        """Calls without a B use this ``Weight`` from now on, instead of any other; None: none.
        Copies nothing, so layers of one shape can share a plan and bind before each call.  The
        plan does not keep the weight alive."""
        handle = self._check_open()
        if weight is not None and not isinstance(weight, Weight):
            raise ArgumentTypeError(f"weight is a {type(weight).__name__}; expected an "
                                    f"entwine.Weight, or None\n  fix: make one of it, or call "
                                    f"set_weight")
        self._bound_to = None  # until that is known: an interrupt may come in between
        self._world._call_briefly(lib.ew_plan_bind_weight, handle,
                                  None if weight is None else weight._check_open())
        self._bound = weight is not None
        self._bound_to = weakref.ref(weight) if self._bound else None

    def _bind_again(self, weight):
        """bind, of a weight that nobody closes, unless it is the one that is bound."""
        bound = self._bound_to
        if bound is None or bound() is not weight:
            self._bound_to = None  # as in bind
            self._world._call_briefly(lib.ew_plan_bind_weight, self._handle, weight._handle)
            self._bound, self._bound_to = True, weakref.ref(weight)

    def set_timeout(self, seconds: float) -> None:
        """How long this plan's calls wait for a rank that makes no progress, from the next call
        on; None: as long as the world's other waits.  Ranks may differ: the first whose time is
        over ends the call, and the world, for all."""
        self._world._call_briefly(lib.ew_plan_set_timeout, self._check_open(),
                                  timeout_ms(seconds) / 1000)

    def gemm_rs(self, A: Array, B: object = None, out: Array | None = None,
                stream: object = None) -> Array:
        """This rank's rows of the sum over ranks of ``A @ B.T``.  Collective.

        A is [m, k], row-major, with the same m <= max_m on all ranks.  B is the weight for this
        call alone; without it the one bound by ``set_weight`` or ``bind`` is used.  The result is
        a new array of A's kind, or ``out`` [owned rows, n].

        On a GPU the call is enqueued on ``stream``: a handle or an object with one (default:
        torch's current stream for tensors, else CUDA's default stream).  A new tensor belongs to that
        stream, as if it were made under ``torch.cuda.stream(stream)``.  On a CPU the result is there
        when it returns.
        """
        self._check_op("gemm-rs", "gemm_rs")
        return self._gemm(A, B, out, stream)

    def gemm_ar(self, A: Array, B: object = None, out: Array | None = None,
                stream: object = None) -> Array:
        """The whole sum over ranks of ``A @ B.T``, [m, n], on every rank.  Collective.

        Of a plan with ``op="gemm-ar"``; everything else is as for ``gemm_rs``, whose rows have
        the same bits.
        """
        self._check_op("gemm-ar", "gemm_ar")
        return self._gemm(A, B, out, stream)

    def ag_gemm(self, A: Array, B: object = None, num_rows: int | None = None,
                out: Array | None = None, gathered: Array | None = None,
                stream: object = None) -> Array:
        """The rows of A of all ranks, multiplied with this rank's weight: [num_rows, n].
        Collective, of a plan with ``op="ag-gemm"``.

        A is [owned rows, k]: of ``num_rows`` rows, which is the number of all, those that
        ``owned_rows`` gives to this rank; None: every rank has as many as this one.  ``gathered``
        is None, or [num_rows, k], and receives the rows of all ranks.  B, ``out`` and ``stream``
        are as for ``gemm_rs``.
        """
        self._check_op("ag-gemm", "ag_gemm")
        self._check_open()
        stream = stream_handle(stream)
        return self._run_gathering(describe(A, "A", stream),
                                   None if B is None else describe(B, "B", stream), num_rows, out,
                                   gathered, stream)

    def ag_gemm_multi(self, A: Array, weights: Sequence[object], num_rows: int | None = None,
                      outs: Sequence[Array | None] | None = None, gathered: Array | None = None,
                      stream: object = None) -> list[Array]:
        """``ag_gemm`` with several weights, such as those of q, k and v, in one call that gathers
        the rows once: a list of [num_rows, n] for each.  Collective.

        Weights are arrays [n, k], which are packed in the call, or ``Weight`` objects; the
        plan's n is the sum of theirs, and the weight bound to it is not used.  ``outs`` has a
        place for each product, or None.  The bits are those of ``ag_gemm`` with each weight alone.
        """
        self._check_op("ag-gemm", "ag_gemm_multi")
        a, m, products, whole, stream = self._gather_for(A, weights, outs, num_rows, gathered,
                                                         stream)
        products.allocate(a, m)
        self._world._call(lib.ew_ag_gemm_multi, self._check_open(), m, a.pointer or None,
                          products.build(m), len(products.weights), whole, stream)
        _buffers.note_written(gathered, *(outs or ()))
        return products.outs

    def ag_gemm_act(self, A: Array, weights: Sequence[object], activation: str = "silu",
                    num_rows: int | None = None, out: Array | None = None,
                    products: Sequence[Array | None] | None = None, gathered: Array | None = None,
                    stream: object = None) -> Array:
        """``act(gate) * up``, the first half of an MLP, of ``weights`` (gate, up), or ``act(gate)``
        of one weight: [num_rows, n], n being that of each weight.  Collective.

        ``activation`` is "silu" (SwiGLU), "gelu-tanh" or "none".  gate and up are rounded first,
        then the activation is fp32 and rounded once; ``products`` has places for gate and up
        where they are wanted, else they are never written to memory.  The rest is as for
        ``ag_gemm_multi``.
        """
        self._check_op("ag-gemm", "ag_gemm_act")
        code = activation_code(activation)
        a, m, several, whole, stream = self._gather_for(A, weights, products, num_rows, gathered,
                                                        stream)
        n = several.widths()[0] if several.weights else self._n
        given = out
        if out is None:
            out, c = allocate_for(several.stream, a, (m, n))
        else:
            c = self._matrix(out, "out", m, True, n)
        self._world._call(lib.ew_ag_gemm_act, self._check_open(), m, a.pointer or None,
                          several.build(m), len(several.weights), code, c.pointer or None, whole,
                          stream)
        _buffers.note_written(given, gathered, *(products or ()))
        return out

    def _gather_for(self, A, weights, outs, num_rows, gathered, stream):
        """(A's buffer, m, the products, the address of gathered, the stream's handle)."""
        self._check_open()
        stream = stream_handle(stream)
        a = self._operand(describe(A, "A", stream), "A")
        m = self._check_all_rows(self._check_rows(a), num_rows)
        products = Products(self, weights, outs, stream)
        whole = None
        if gathered is not None:
            products.buffers.append(self._matrix(gathered, "gathered", m, True, self._k))
            whole = products.buffers[-1].pointer or None
        return a, m, products, whole, self._stream(stream, a)

    def _gemm(self, A, B, out, stream):
        self._check_open()
        if B is None and stream is None:
            result = self._run_plain(A, out)
            if result is not None:
                return result
        stream = stream_handle(stream)
        return self._run(describe(A, "A", stream), None if B is None else describe(B, "B", stream),
                         out, stream)

    def gemm_rs_layer(self, A: Array, B: object = None, *, bias: object = None,
                      residual: Array | None = None, norm_weight: object = None, eps: float = 1e-5,
                      out: Array | None = None, normed: Array | None = None, stream: object = None
                      ) -> Array:
        """``gemm_rs`` and what follows it in a transformer layer, on this rank's rows:

            c      = sum over ranks of A @ B.T, plus bias [n]
            h      = c + residual [owned rows, n]; residual holds h afterwards
            normed = h / sqrt(mean of h * h + eps) * norm_weight [n]

        every step rounded to the element type as if it stood alone.  Parts that are None are
        left out.  Returns the last: normed (a new array, or the one passed), else residual,
        else c.  ``out`` receives c, which is not stored anywhere otherwise.
        """
        self._check_op("gemm-rs", "gemm_rs_layer")
        return self._layer(A, B, Layer(bias, residual, norm_weight, eps, out, normed), stream)

    def gemm_ar_layer(self, A: Array, B: object = None, *, bias: object = None,
                      residual: Array | None = None, residual_rows: str = "owned",
                      norm_weight: object = None, eps: float = 1e-5, out: Array | None = None,
                      normed: Array | None = None, stream: object = None) -> Array:
        """``gemm_ar`` and what follows it in a transformer layer, as in ``gemm_rs_layer``; c and
        normed are whole on every rank.

        ``residual`` has this rank's rows (``residual_rows="owned"``), and each rank adds and norms
        only these; then norm_weight is needed, and out must be None.  Or it has all m rows, equal
        on all ranks ("all").  All ranks pass the same parts.
        """
        self._check_op("gemm-ar", "gemm_ar_layer")
        return self._layer(A, B, Layer(bias, residual, norm_weight, eps, out, normed,
                                       residual_rows), stream)

    def _layer(self, A, B, layer, stream):
        self._check_open()
        stream = stream_handle(stream)
        return self._run_layer(describe(A, "A", stream),
                               None if B is None else describe(B, "B", stream), layer, stream)

    def _run_plain(self, A, out, leading=None):
        """_run for the usual call: ordinary arrays and the bound weight.  None for any other,
        right or wrong, with nothing done.  `leading`: the extents but the last of an A that need
        not be a matrix, and of the result, which then has all rows."""
        a = plain_address(A, self._dtype, self._device)
        if not a or not self._bound:
            return None
        shape, world = A.shape, self._world
        if leading is not None:
            m = leading.numel()
        elif len(shape) == 2:
            m = shape[0]
        else:
            return None
        if shape[-1] != self._k or m > self._max_m:
            return None
        rows, given = m if self._gives_all_rows else world._share(m), out
        if out is None:
            out, c = empty_like(A, (rows, self._n) if leading is None else (*leading, self._n))
        else:
            if type(out) is not type(A) or out.shape != (rows, self._n):
                return None
            c = plain_address(out, self._dtype, self._device)
            size = _buffers.ITEM_BYTES[self._dtype]
            if not c or (a < c + rows * self._n * size and c < a + m * self._k * size):
                return None
        self._call(self._function, self._handle, m, a, None, c,
                   None if self._device == CPU else torch_stream(self._device))
        if given is not None:
            _buffers.note_written(given)
        return out

    def _run(self, a, b, out, stream):
        m, given = self._check_operands(a, b), out
        if out is None:
            out, c = allocate_for(stream, a, self._shape_of_c(m))
        else:
            c = self._matrix(out, "out", m, self._gives_all_rows)
            _buffers.refuse_overlap({"out": c}, _operands(a, b))
        self._enqueue(self._function, m, a, b, c.pointer or None, stream)
        _buffers.note_written(given)
        return out

    def _run_gathering(self, a, b, num_rows, out, gathered, stream):
        m = self._check_all_rows(self._check_operands(a, b), num_rows)
        outputs, given = {}, out
        if out is None:
            out, c = allocate_for(stream, a, (m, self._n))
        else:
            c = outputs["out"] = self._matrix(out, "out", m, True)
        if gathered is not None:
            outputs["gathered"] = self._matrix(gathered, "gathered", m, True, self._k)
        _buffers.refuse_overlap(outputs, _operands(a, b))
        whole = outputs.get("gathered")
        self._enqueue(self._function, m, a, b, c.pointer or None, stream,
                      None if whole is None else whole.pointer or None)
        _buffers.note_written(given, gathered)
        return out

    def _check_all_rows(self, rows, num_rows):
        """How many all ranks have, of which this one has `rows`."""
        world = self._world
        m = rows * world.size if num_rows is None else count(num_rows, "num_rows", 0)
        if m > self._max_m:
            raise ShapeError(f"num_rows is {m}; expected {self._max_m}, the plan's max_m, or fewer")
        if world._share(m) != rows:
            raise ShapeError(f"A has {rows} rows; expected {world._share(m)}, those that rank "
                             f"{world.rank} owns of num_rows={m}\n"
                             f"  fix: pass the rows that entwine.owned_rows gives to the rank")
        return m

    def _run_layer(self, a, b, layer, stream):
        m = self._check_operands(a, b)
        epilogue, c = layer.resolve(self, m, _operands(a, b), stream)
        self._enqueue(self._layer_function, m, a, b, c, stream, epilogue)
        _buffers.note_written(layer.out, layer.residual, layer.normed)
        return layer.result

    def _enqueue(self, function, m, a, b, c, stream, *epilogue):
        stream = self._stream(stream, a)
        self._has_room |= b is not None
        self._call(function, self._check_open(), m, a.pointer or None,
                   None if b is None else b.pointer, c, *epilogue, stream)

    def wait(self) -> None:
        """Waits for what was enqueued on a GPU, and raises its fault if there was one."""
        self._world._call(lib.ew_plan_wait, self._check_open())

    # ---- What it is ----

    @property
    def world(self) -> World:
        """The world it belongs to."""
        return self._world

    @property
    def config(self) -> str:
        """The config in use as text, every field chosen."""
        self._check_open()
        return self._config

    @property
    def timing(self) -> Timing:
        """When the last call started and ended."""
        timing = TimingStruct()
        check(lib.ew_plan_timing(self._check_open(), timing))
        return Timing(timing.start_ns, timing.gemm_end_ns, timing.end_ns)

    def explain(self) -> str:
        """What was chosen and why, in a few lines of text."""
        text = ctypes.create_string_buffer(EXPLAIN_BYTES)
        check(lib.ew_plan_explain(self._check_open(), text, EXPLAIN_BYTES))
        return text.value.decode()

    def __repr__(self):
        state = self._config if self._handle in self._world._plan_handles else "closed"
        return (f"<entwine.Plan {self._op} max_m={self._max_m} n={self._n} k={self._k} "
                f"{DTYPE_NAMES[self._dtype]} {state}>")

    def close(self) -> None:
        """Frees the plan; on all ranks, after their last call of it.  May be called again."""
        if self._handle not in self._world._plan_handles:
            return
        self._world._check_thread()
        if self._world._in_call:
            raise ArgumentError("the plan is closed while its world is inside a call")
        with self._world._busy:
            handle, self._handle = self._handle, None
            self._world._plan_handles.discard(handle)
            lib.ew_plan_destroy(handle)

    def __enter__(self) -> Plan:
        self._check_open()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None) and self._handle in self._world._plan_handles:
            self._world._forsake(self._handle, self._world._plan_handles, lib.ew_plan_destroy)

    # ---- Checks ----

    def _check_open(self):
        handle = self._handle
        if handle not in self._world._plan_handles:
            self._world._check_open()
            raise ArgumentError("the plan was closed")
        return handle

    def _check_op(self, op, method):
        if op != self._op:
            its = self._op.replace("-", "_") + method[len(op):]
            raise ArgumentError(f"{method} cannot run a plan for {self._op}\n"
                                f"  fix: call {its}, or make the plan with op={op!r}")

    def _check_operands(self, a, b):
        """The rows of A, once A and B are found right."""
        m = self._check_rows(self._operand(a, "A"))
        if b is not None:
            self._check_weight(b)
        elif not self._bound:
            raise ArgumentError("B is missing, and no weight is bound\n"
                                "  fix: call set_weight(B) or bind(weight) first")
        return m

    def _shape_of_c(self, m):
        return m if self._gives_all_rows else self._world._share(m), self._n

    def _check_rows(self, a):
        m, k = a.shape
        if k != self._k or m > self._max_m:
            raise ShapeError(f"A has shape {a.shape}; expected ({self._max_m} rows or fewer, "
                             f"{self._k})")
        if a.strides is not None and not a.is_row_major():
            raise ArgumentError(f"A has strides {a.strides}; expected row-major ({self._k}, 1)\n"
                                f"  fix: pass a contiguous copy")
        return m

    def _plain(self, array, shape):
        """The buffer of an ordinary array of that shape; None: it has to be looked at."""
        address = plain_address(array, self._dtype, self._device)
        if not address or array.shape != shape:
            return None
        return Buffer(address, shape, None, self._dtype, self._device, True, None, None, array)

    def _matrix(self, array, name, m, all_rows, cols=None):
        shape = (m if all_rows else self._world._share(m), cols or self._n)
        buffer = self._plain(array, shape) or self._operand(describe(array, name), name)
        if buffer.shape != shape:
            raise ShapeError(f"{name} has shape {buffer.shape}; expected {shape}, "
                             f"{'all rows' if all_rows else 'the rows that this rank owns'}")
        if not buffer.is_row_major():
            raise ArgumentError(f"{name} has strides {buffer.strides}; expected row-major "
                                f"({shape[1]}, 1)")
        if not buffer.writable:
            raise ArgumentError(f"{name} is read-only; expected memory that can be written")
        return buffer

    def _vector(self, array, name):
        buffer = self._plain(array, (self._n,)) or self._operand(
            describe(array, name, dimensions=1), name)
        if buffer.shape != (self._n,):
            raise ShapeError(f"{name} has shape {buffer.shape}; expected ({self._n},)")
        if not buffer.is_row_major():
            raise ArgumentError(f"{name} has stride {buffer.strides[0]}; expected 1\n"
                                f"  fix: pass a contiguous copy")
        return buffer

    def _stream(self, stream, a):
        if self._device == CPU:
            if stream is not None:
                raise ArgumentError(f"stream is {stream!r}; expected None, the cpu backend has no "
                                    f"streams")
            return None
        if stream is None:
            stream = a.stream if a.kind != "torch" else torch_stream(a.device)
        return stream or LEGACY_STREAM


# (the call, the call of a layer, whether C has all rows and not this rank's alone)
_FUNCTIONS = {"gemm-rs": (lib.ew_gemm_rs, lib.ew_gemm_rs_layer, False),
              "gemm-ar": (lib.ew_gemm_ar, lib.ew_gemm_ar_layer, True),
              "ag-gemm": (lib.ew_ag_gemm, None, True)}


def _operands(a, b):
    return {"A": a} if b is None else {"A": a, "B": b}
