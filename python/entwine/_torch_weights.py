"""Packed weights of entwine.torch: one for a weight tensor, for every number of rows, kept as long
as the tensor's memory.

A change of the tensor is seen by its version, which torch counts at every write but those through
``.data``, ``numpy()`` and their like, and those of fused optimizers.  So the steps of optimizers are
watched, what is used in training is packed again after it, and where nobody has promised that the
weight stays (`frozen`), some elements that are spread over it are compared as well.  What is decided here
concerns this rank alone: ranks use the same plan whether or not their weights are packed.
"""
import ctypes
import functools
import weakref

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from ._errors import ArgumentError
from ._weight import Weight
from ._world import _worlds

_SPOTS, _RUN, _ALIGNED = 16, 8, 16
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_UNTRACKED = None  # the version of an inference tensor
_WRITTEN = -1  # the version of what has to be packed again


class _Kept:
    """What is known of a tensor that was used as a weight."""

    __slots__ = ("version", "elements", "sample", "weight", "calls", "storage", "memory", "forget",
                 "is_trained")

    def __init__(self, b, storage, memory, forget):
        self.storage = weakref.ref(storage)
        self.memory = memory  # where that of its storage began
        self.forget = forget  # what is called when the storage is gone
        self.elements = _spread_elements(b)  # borrows the memory: read it only while b is there
        self.weight = None
        self.is_trained = False
        self.calls = {}  # of _torch_again

    def note(self, b, version):
        self.version, self.sample = version, self.elements.tobytes()
        # A DTensor wants a gradient by itself, and says so on its local tensor (_torch_parallel).
        self.is_trained = b.requires_grad or getattr(b, "_entwine_seen", (False,))[-1]

    def is_current(self, version, promised):
        if version != self.version or self.storage() is None:
            return False
        return (promised and version is not _UNTRACKED) or self.elements.tobytes() == self.sample

    def pack(self, world, b, layout, config):
        b = b.detach()
        if self.weight is None:
            self.weight = Weight(world, b, config or None, layout=layout)
        else:
            self.weight.update(b)


def _spread_elements(b):
    """_SPOTS runs of _RUN elements from all over the memory of b, which has no gaps.  Each spot
    costs a cache miss, a run little more; from one to the next the column moves by the golden
    section, so that they spread over the columns as they do over the rows."""
    if not b.is_cpu:
        return np.empty(0, np.uint8)  # looking would wait for the GPU
    size, item = b.numel(), b.element_size()
    memory = np.frombuffer((ctypes.c_char * (size * item)).from_address(b.data_ptr()), _WORDS[item])
    row = b.shape[1] if b.is_contiguous() else b.shape[0]
    section = int(0.618 * row) // _ALIGNED * _ALIGNED
    step = ((size - _RUN) // (_SPOTS - 1) - section) // row * row + section
    if step < _RUN:
        return memory[:_SPOTS * _RUN] if size <= _SPOTS * _RUN else memory[::size // _SPOTS]
    return np.lib.stride_tricks.as_strided(memory, (_SPOTS, _RUN), (step * item, item))


@functools.lru_cache
def _form_of(config):
    """What of a config decides the packed form (ew_weight_create): plans that differ in other
    things, such as the number of workers, share a weight."""
    items = (item.partition("=") for item in config.split(","))
    return tuple((key.strip(), value.strip()) for key, _, value in items
                 if key.strip() in ("backend", "producer", "invariant"))


def key_of(b, storage, config):
    return storage._cdata, b.data_ptr(), b.shape, b.stride(), b.dtype, _form_of(config)


def _forget(world, key):
    """The memory of a weight was freed, and may become another's."""
    world = world()
    kept = None if world is None else world._frozen.pop(key, None)
    if kept is not None:
        kept.version = _WRITTEN  # for those who have it from elsewhere


def _forget_freed(world, storage, memory):
    """What is known of memory that a storage has given away for other memory, as FSDP has it do
    between calls: nobody may ever come back for it."""
    for key, kept in list(world._frozen.items()):
        if key[0] == storage._cdata and kept.memory != memory:
            kept.forget.detach()
            world._frozen.pop(key, None)  # the collector may be quicker
            kept.version = _WRITTEN


def _meet(world, storage, key, b):
    memory = storage.data_ptr()
    _forget_freed(world, storage, memory)
    forget = weakref.finalize(storage, _forget, weakref.ref(world), key)
    forget.atexit = False
    kept = world._frozen[key] = _Kept(b, storage, memory, forget)
    return kept


def layout_of(b):
    """How b lies in memory; None: with gaps."""
    return "nk" if b.is_contiguous() else "kn" if b.t().is_contiguous() else None


def packed(world, b, layout, promised, may_keep, config=""):
    """The packed weight of b, made or renewed if need be.  None: b is to be packed in the call.
    Plans of another config may need another one (_form_of).

    Without a promise that is so where nothing may be kept, for tensors whose changes could not be
    seen, and at the first call with a tensor that is not a parameter, for many of those never come
    back.
    """
    if not (promised or may_keep):
        note_training(world, b, config)
        return None
    if b.is_inference():
        version = _UNTRACKED
        if not promised:
            return None
    else:
        version = b._version
    if not (promised or b.is_cpu) or b.numel() == 0:
        return None
    if layout is None:
        if not promised:
            return None
        raise ArgumentError(f"b has strides {b.stride()}; a frozen weight must be contiguous, or "
                            f"the transpose of what is")
    storage = b.untyped_storage()
    key = key_of(b, storage, config)
    kept = world._frozen.get(key)
    if kept is None or kept.storage() is None:  # an interrupt has kept _forget from its work
        kept = _meet(world, storage, key, b)
        wanted = promised or isinstance(b, torch.nn.Parameter)
    elif not kept.is_current(version, promised):
        wanted = promised or kept.weight is not None
    elif kept.weight is not None:
        return kept.weight
    else:
        wanted = True
    if wanted:
        kept.version = _WRITTEN  # until it is packed
        kept.pack(world, b, layout, config)
    kept.note(b, version)
    return kept.weight


def note_training(world, b, config=""):
    """b is used where nothing of it is kept: if it is trained, it will be written, and by many
    programs without torch's knowledge."""
    if b.requires_grad and world._frozen:
        kept = world._frozen.get(key_of(b, b.untyped_storage(), config))
        if kept is not None:
            kept.version = _WRITTEN


# ---- Optimizers ------------------------------------------------------------------------------

def _storage_of(parameter):
    """What a key of its part of a DTensor, or of itself, has of its storage; None: it has none."""
    try:
        return getattr(parameter, "_local_tensor", parameter).untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None


def _note_step(optimizer, *_):
    """Fused steps, and optimizers that write to ``.data``, leave the versions as they are, and may
    change few elements; so do programs whose optimizer has weights of its own, in fp32, which they
    then copy into those of the model.  (What a compiled step writes is counted.)"""
    if torch.compiler.is_compiling():
        return
    known = [world._frozen for world in list(_worlds.values()) if world._frozen]
    if not known:
        return
    written = {_storage_of(parameter) for group in optimizer.param_groups
               for parameter in group["params"]}
    for weights in known:
        for (storage, *_), kept in list(weights.items()):
            if kept.is_trained or storage in written:
                kept.version = _WRITTEN


register_optimizer_step_post_hook(_note_step)
