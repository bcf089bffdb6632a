"""Memory into which the GPUs of all ranks can write."""
from __future__ import annotations

import ctypes
import itertools
import math
import weakref
from typing import TYPE_CHECKING

from ._buffers import CPU, DTYPE_NAMES, ITEM_BYTES, count, dtype_code
from ._errors import ArgumentError, ShapeError
from ._library import lib
from ._world import Unique, World, check_world

if TYPE_CHECKING:
    import torch

_BACKENDS = {"cpu": 1, "cuda": 2}
_counter = itertools.count()


class _Bytes:
    """A part of the memory on a GPU, in the form that torch and CuPy take without a copy."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {"shape": (nbytes,), "typestr": "|u1",
                                         "data": (address, False), "version": 3}


class SymmetricMemory(Unique):
    """Memory of which every rank has a part that the GPUs of all ranks can write.  Collective:
    all ranks ask for the same number of bytes.

    It is never required, but saves ``gemm_ar`` on GPUs of one host a copy of the whole output where
    ``out`` (``normed`` of ``gemm_ar_layer``) lies in it, at the same ``offset`` on all ranks; the
    bits are the same.  On the CPU it is plain memory.

    Other ranks write the tensor from the call's place in its stream on: what reads an earlier
    result has to come before the call in the stream.

    ``close()`` frees it, on all ranks together and before the world is closed.  What was not freed
    then stays until the process ends, as tensors and other ranks may still use it.
    """

    def __init__(self, world: World, nbytes: int, *, backend: str = "cuda") -> None:
        self._address = None
        self._world = check_world(world)
        if backend not in _BACKENDS:
            raise ArgumentError(f"backend is {backend!r}; expected 'cpu' or 'cuda'")
        self._nbytes = count(nbytes, "nbytes", 1)
        self._backend = _BACKENDS[backend]
        self._parts = weakref.WeakValueDictionary()  # that tensors hold, by a number
        address = ctypes.c_void_p()
        world._call(lib.ew_alloc, world._check_open(), self._backend, self._nbytes, address)
        self._address = address.value
        self._device = world._device_of(backend)

    @property
    def nbytes(self) -> int:
        """The bytes of each rank's part; 0 when it was closed."""
        return self._nbytes if self._address else 0

    def tensor(self, shape: tuple[int, ...], dtype: object, offset: int = 0) -> torch.Tensor:
        """This rank's part as a tensor, from byte ``offset`` on.  Its values are whatever is
        there."""
        import torch
        if not self._address or self._world._handle is None:
            raise ArgumentError("the symmetric memory was closed, or its world was")
        shape = tuple(count(extent, "an extent of shape", 0) for extent in shape)
        code = dtype_code(dtype)
        item, kind = ITEM_BYTES[code], getattr(torch, DTYPE_NAMES[code])
        offset = count(offset, "offset", 0)
        end = offset + math.prod(shape) * item
        if end > self._nbytes:
            raise ShapeError(f"a tensor of shape {shape} at offset {offset} ends at byte {end}; the "
                             f"symmetric memory has {self._nbytes}")
        if offset % item:
            raise ArgumentError(f"offset is {offset}; expected a multiple of {item}, the bytes of "
                                f"an element")
        if end == offset:
            return torch.empty(shape, dtype=kind, device=self._place())
        part = self._part(offset, end - offset)
        flat = (torch.frombuffer(part, dtype=torch.uint8) if self._device == CPU
                else torch.as_tensor(part, device=self._place()))
        return flat.view(kind).view(shape)

    def _part(self, offset, nbytes):
        address = self._address + offset
        part = ((ctypes.c_char * nbytes).from_address(address) if self._device == CPU
                else _Bytes(address, nbytes))
        self._parts[next(_counter)] = part
        return part

    def close(self) -> None:
        """Frees it.  Collective; may be called again.  Refused while a tensor of it is left."""
        if not self._address or self._world._handle is None:
            return
        if len(self._parts):
            raise ArgumentError(f"the symmetric memory is closed while {len(self._parts)} "
                                f"tensor(s) lie in it\n  fix: delete them first")
        address, self._address = self._address, None
        self._world._call(lib.ew_free, self._world._check_open(), self._backend, address)

    def __enter__(self) -> SymmetricMemory:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:  # else the others may never come
            self.close()

    def _place(self):
        return "cpu" if self._device == CPU else f"cuda:{self._device}"

    def __repr__(self):
        return (f"<entwine.SymmetricMemory {self._nbytes} bytes on {self._place()}>" if self._address
                else "<entwine.SymmetricMemory that was closed>")
