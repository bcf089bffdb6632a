"""Packed weights, and what they and plans demand of an operand."""
from __future__ import annotations

import ctypes
import sys

from ._buffers import CPU, DTYPE_NAMES, describe
from ._errors import ArgumentError, ArgumentTypeError, ShapeError
from ._library import lib
from ._problem import ConfigLike, make_config, make_problem
from ._streams import stream_handle, synchronize
from ._world import Unique, World, check_world


class Taker(Unique):
    """Takes operands: a plan or a weight, with its _n, _k, _dtype, _layout and _device; a _device of
    None is a GPU that is not chosen yet."""

    _KIND = "plan"

    def _operand(self, buffer, name):
        if buffer.dtype != self._dtype:
            raise ArgumentTypeError(f"{name} has element type {DTYPE_NAMES[buffer.dtype]}; "
                                    f"expected {DTYPE_NAMES[self._dtype]} as the {self._KIND}'s")
        if buffer.device != self._device and self._device is not None:
            raise ArgumentError(f"{name} is on {_device_name(buffer.device)}; expected "
                                f"{_device_name(self._device)}, where the {self._KIND} is")
        return buffer

    def _check_weight(self, b, n=None):
        n = n or self._n
        self._operand(b, "B")
        if b.shape != (n, self._k):
            hint = "\n  fix: pass B.T" if b.shape == (self._k, n) else ""
            raise ShapeError(f"B has shape {b.shape}; expected {(n, self._k)}{hint}")
        if not (b.is_row_major() if self._layout == "nk" else b.is_transposed()):
            raise ArgumentError(
                f"B has strides {b.strides or (self._k, 1)}; expected "
                f"{(self._k, 1) if self._layout == 'nk' else (1, n)} for layout "
                f"{self._layout!r}\n  fix: pass a copy that lies so, or create the {self._KIND} "
                f"with the other layout")

    def _take_weight(self, b):
        """The address of B, once it is found right and its values are there.  What came through
        DLPack is in order on CUDA's default stream, which packing follows."""
        self._check_weight(b)
        if b.kind == "torch" and b.device != CPU:
            sys.modules["torch"].cuda.current_stream(b.device).synchronize()
        elif b.stream is not None:
            synchronize(stream_handle(b.stream), "B")
        return b.pointer


class Weight(Taker):
    """This rank's weight, packed once, for any number of plans.  Local.

    B is [n, k], row-major (layout "nk") or a transposed K x N array ("kn"); it may be changed or
    freed afterwards.  ``Plan.bind`` makes a plan of the same world use it: one of that n, k,
    element type, layout and backend, whatever its max_m and config.  Only a plan with another
    producer ("producer=blas" in its config) or with "invariant" needs a weight made with that
    ``config``.

    Plans do not keep it alive: its memory is freed with the object, or by ``close()``, and plans
    that were bound to it have no weight then.
    """

    _KIND = "weight"

    def __init__(self, world: World, B: object, config: ConfigLike = None, *,
                 layout: str | None = None) -> None:
        self._handle = None
        self._world = check_world(world)
        b = describe(B, "B")
        backend = "cpu" if b.device == CPU else "cuda"
        self._layout = layout or ("nk" if b.is_row_major() else "kn")
        self._n, self._k = b.shape
        self._dtype, self._device = b.dtype, world._device_of(backend)
        problem = make_problem(0, self._n, self._k, DTYPE_NAMES[b.dtype], self._layout)
        request, handle = make_config(config, backend), ctypes.c_void_p()
        try:
            world._call(lib.ew_weight_create, world._check_open(), problem, request,
                        self._take_weight(b), handle)
        finally:  # an interrupt may come when it has been made
            self._handle = handle.value
            if self._handle:
                world._weight_handles.add(self._handle)
        self._device = world._device_of(backend)  # if it was not chosen before, it is now
        self._nbytes = lib.ew_weight_bytes(handle)

    def update(self, B: object) -> None:
        """Packs new values into the same place; plans stay bound, and use them from their next
        call on."""
        handle = self._check_open()
        b = describe(B, "B")  # lives until B has been read
        self._world._call(lib.ew_weight_update, handle, self._take_weight(b))

    @property
    def world(self) -> World:
        """The world it belongs to."""
        return self._world

    @property
    def shape(self) -> tuple[int, int]:
        """(n, k)"""
        return self._n, self._k

    @property
    def nbytes(self) -> int:
        """The memory it holds; 0 when it was closed."""
        return self._nbytes if self._is_open() else 0

    def close(self) -> None:
        """Frees it.  May be called again."""
        if not self._is_open():
            return
        if self._world._in_call:
            raise ArgumentError("the weight is closed while its world is inside a call")
        with self._world._busy:
            handle, self._handle = self._handle, None
            self._world._destroy_weight(handle)

    def __enter__(self) -> Weight:
        self._check_open()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None) and self._is_open():
            self._world._forsake(self._handle, self._world._weight_handles, lib.ew_weight_destroy)

    def __repr__(self):
        state = f"{self._layout} {self._nbytes} bytes" if self._is_open() else "closed"
        return (f"<entwine.Weight n={self._n} k={self._k} {DTYPE_NAMES[self._dtype]} {state}>")

    def _is_open(self):
        return self._handle in self._world._weight_handles

    def _check_open(self):
        if not self._is_open():
            self._world._check_open()
            raise ArgumentError("the weight was closed")
        return self._handle


def _device_name(device):
    return "the cpu" if device == CPU else f"cuda:{device}"
