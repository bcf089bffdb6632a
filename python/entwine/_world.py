"""The ranks that work together, and the ways in which they meet."""
from __future__ import annotations

import atexit
import ctypes
import itertools
import os
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import _interrupt, _job, _mpi, _streams
from ._buffers import CPU, count
from ._cancellation import Cancellation, address_of
from ._errors import (ArgumentError, ArgumentTypeError, EntwineError, LibraryError,
                      MismatchError, UnsupportedError)
from ._library import Launcher, Traffic, WorldOptions, check, lib
from ._rendezvous import Gather, Rendezvous

if TYPE_CHECKING:
    import torch.distributed as dist

MAX_RANKS = 256
_DEFAULT_TIMEOUT_S = 30.0

_worlds = weakref.WeakValueDictionary()  # by name
_worlds_over_mpi = set()  # not yet closed: leaving MPI is for all ranks, never for the collector
_forsaken_worlds = []  # collected while torch captured a CUDA graph; closed after that
_counter = itertools.count()


class Unique:
    """What has a handle or memory of the library.  A copy of what holds it holds the same: the copy
    of a model works in the world of the model."""

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        raise ArgumentTypeError(f"an entwine.{type(self).__name__} cannot be pickled, as it is of "
                                f"this process alone\n  fix: save what it was made from, and make "
                                f"it again where that is loaded")


class World(Unique):
    """The ranks that work together: on one host, or on several when MPI started them.

    ``World()`` is a world of one rank.  For more, use ``entwine.init()``, one of the ``from_``
    constructors, or ``entwine.spawn``; or pass ``allgather``, a function that takes this
    rank's bytes and returns the list of all ranks' bytes.  It is called a few times, only
    here.

    ``timeout`` is how long, in seconds, a rank may make no progress before its peers give up
    on it (default: ENTWINE_TIMEOUT_MS, else 30).  ``link_gbps``, ``link_latency_us`` and
    ``link_header_bytes`` emulate a link between the ranks, for demonstrations.  ``cancel`` is a
    ``Cancellation`` with which another thread can end the wait for ranks that do not come.

    A world and its plans serve one thread at a time; over MPI only the one that made the world,
    Python's main thread.  Leave it with ``close()`` or ``with``.
    """

    _handle = None
    _gone = "was never made"
    _fabric = None  # of the MPI module, if that carries it
    _thread = None  # the only one that may use it, then
    _hosts = None  # how many, once asked for
    _gpu = None  # the number of this rank's, once it is chosen
    _launcher = None  # what spawn is told through
    _own: World | None = None  # see alone
    _owner: weakref.ref[World] | None = None  # of a world that alone made
    group: dist.ProcessGroup | None = None  # of torch.distributed, if it came from there

    def __init__(self, rank: int = 0, size: int = 1,
                 allgather: Callable[[bytes], Sequence[bytes]] | None = None, *,
                 timeout: float | None = None, link_gbps: float = 0.0,
                 link_latency_us: float = 0.0, link_header_bytes: float = 0.0,
                 cancel: Cancellation | None = None) -> None:
        size = count(size, "size", 1, MAX_RANKS)
        rank = count(rank, "rank", 0, size - 1)
        if size > 1 and not callable(allgather):
            raise ArgumentTypeError(
                f"allgather is {allgather!r}; {size} ranks need a function from this rank's bytes "
                f"to the list of all ranks' bytes\n  fix: use entwine.init() or entwine.spawn")
        options = _options(timeout, link_gbps, link_latency_us, link_header_bytes, cancel)
        gather = Gather(allgather, size)
        handle = ctypes.c_void_p()
        self._prepare()
        try:
            status = lib.ew_world_create(rank, size, gather.callback, None, options, handle)
        finally:  # an interrupt may come when it has been made
            self._handle = handle.value
        if status and gather.error is not None:
            raise gather.error
        check(status)
        self._begin(rank, size)

    def _prepare(self):
        """All that closing it needs."""
        self._busy = threading.RLock()  # held by who is inside the library
        self._in_call = False  # and not only for a moment, to free what was forsaken
        self._ending = threading.Lock()  # an abort from another thread, and close
        self._plan_handles = set()  # of its open plans; they end with it
        self._weight_handles = set()  # of its weights; as plans
        self._forsaken = []  # of plans and weights whose object is gone, not yet freed
        self._cache = {}  # plans of calls without a plan
        self._frozen = {}  # the weights that entwine.torch has packed or seen
        self._again = {}  # those of them that are found without looking closely

    def _begin(self, rank, size):
        self._rank, self._size = rank, size
        # A compiled graph holds the name, and extents that depend on rank and size: torch's cache,
        # which ranks and runs share, must not give one to a world that differs in these.
        self.name: str = f"world-{next(_counter)}-rank-{rank}-of-{size}"
        _worlds[self.name] = self

    # ---- Ways to meet ----

    @classmethod
    def from_torch(cls, group: dist.ProcessGroup | None = None,
                   **options: float | Cancellation | None) -> World:
        """The ranks of a torch.distributed process group, whatever its backend."""
        import torch.distributed as dist
        if not (dist.is_available() and dist.is_initialized()):
            raise ArgumentError("torch.distributed is not initialised\n"
                                "  fix: call torch.distributed.init_process_group() first")
        size = dist.get_world_size(group)
        rank = dist.get_rank(group)
        if rank < 0:
            raise ArgumentError("group does not contain this process\n"
                                "  fix: call it only on the group's ranks")

        def allgather(mine):
            everybody = [None] * size
            dist.all_gather_object(everybody, mine, group=group)
            return everybody

        world = cls(rank, size, allgather, **options)
        world.group = group if group is not None else dist.group.WORLD
        return world

    @classmethod
    def from_mpi(cls, comm: Any = None, **options: float | Cancellation | None) -> World:
        """The ranks of an mpi4py communicator (default: all that mpirun started, which does not
        need mpi4py), on one host or several.  Without Entwine's MPI module: on one."""
        if comm is None:
            try:
                from mpi4py import MPI
                comm = MPI.COMM_WORLD
            except ImportError as error:
                why = _mpi.why_not()
                if why:
                    raise LibraryError(f"{error}, and MPI cannot be used without: {why}\n"
                                       f"  fix: run `pip install mpi4py`, or build Entwine where "
                                       f"MPI is installed") from error
                return cls._over_mpi(None, **options)
        for method in ("Get_rank", "Get_size", "allgather"):
            if not hasattr(comm, method):
                raise ArgumentTypeError(f"comm is a {type(comm).__name__}; expected an mpi4py "
                                        f"communicator")
        rank, size = comm.Get_rank(), comm.Get_size()
        if size == 1:
            return cls(**options)
        why = _mpi.why_not(comm)
        if not why:
            return cls._over_mpi(comm, **options)
        with _mpi.told_why_not(why):
            return cls(rank, size, comm.allgather, **options)

    @classmethod
    def _over_mpi(cls, comm, timeout=None, link_gbps=0.0, link_latency_us=0.0,
                  link_header_bytes=0.0, cancel=None):
        options = _options(timeout, link_gbps, link_latency_us, link_header_bytes, cancel)
        world, handle = cls.__new__(cls), ctypes.c_void_p()
        fabric = _mpi.open_fabric(comm)
        status = lib.ew_world_join(fabric, options, handle)
        if status:
            # What all ranks refuse alike leaves MPI in order.
            _mpi.close_fabric(fabric, status not in (UnsupportedError.code, MismatchError.code))
            check(status)
        world._prepare()
        world._fabric, world._thread, world._handle = fabric, threading.get_ident(), handle.value
        world._begin(lib.ew_world_rank(handle), lib.ew_world_size(handle))
        _worlds_over_mpi.add(world)
        return world

    @classmethod
    def from_launcher(cls, **options: float | Cancellation | None) -> World:
        """The ranks that mpirun, torchrun or srun started, or that ENTWINE_RANK and
        ENTWINE_WORLD_SIZE name; neither mpi4py nor torch is needed.

        Under mpirun they meet through Entwine's MPI module, on one host or several.  Else, or
        without the module, they find each other by what the launcher calls their job, or by
        ENTWINE_JOB, a text that is equal on the ranks of a job and on no others'; ranks that no
        launcher started need it.
        """
        place = Launcher()
        check(lib.ew_launcher_detect(place))
        why = None
        if _mpi.is_launcher(place):
            why = _mpi.why_not_launched(place)
            if not why:
                return cls._over_mpi(None, **options)
        if place.num_ranks == 1:
            return cls(**options)
        with _mpi.told_why_not(why):
            return cls._meet(place.rank, place.num_ranks, _job.name(place.source.decode()),
                             options)

    @classmethod
    def _meet(cls, rank, size, job, options, patience_s=0.0):
        given_ms = timeout_ms(options.get("timeout"))
        timeout_s = given_ms / 1000 if given_ms else _timeout_from_environment()
        meeting = Rendezvous(rank, size, job, max(timeout_s, patience_s), options.get("cancel"))
        return cls(rank, size, meeting, **options)

    # ---- What it is ----

    @property
    def rank(self) -> int:
        """This process's place, from 0."""
        self._check_open()
        return self._rank

    @property
    def size(self) -> int:
        """W, the number of ranks."""
        self._check_open()
        return self._size

    @property
    def num_hosts(self) -> int:
        """On how many hosts its ranks are."""
        traffic = Traffic()
        check(lib.ew_world_traffic(self._check_open(), traffic))
        return traffic.num_hosts

    def owned_rows(self, m: int) -> tuple[int, int]:
        """The rows of an m-row output that this rank owns: (first, count)."""
        self._check_open()
        return owned_rows(m, self._size, self._rank)

    def __repr__(self):
        return (f"<entwine.World rank {self._rank} of {self._size}>" if self._handle
                else f"<entwine.World that {self._gone}>")

    # ---- What it does ----

    def barrier(self) -> None:
        """Waits until every rank is here.  Collective."""
        self._call(lib.ew_world_barrier, self._check_open())

    def allgather(self, data: bytes) -> list[bytes]:
        """All ranks' bytes, in rank order; their lengths may differ.  Collective, for small
        messages."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise ArgumentTypeError(f"data is a {type(data).__name__}; expected bytes")
        data = bytes(data)
        lengths = self._allgather(len(data).to_bytes(8, "little"), 8)
        lengths = [int.from_bytes(length, "little") for length in lengths]
        parts = self._allgather(data.ljust(max(lengths), b"\0"), max(lengths))
        return [part[:length] for part, length in zip(parts, lengths)]

    def _allgather(self, mine, num_bytes):
        everybody = ctypes.create_string_buffer(num_bytes * self.size or 1)
        self._call(lib.ew_world_allgather, self._check_open(), mine, everybody, num_bytes)
        return [everybody.raw[i * num_bytes:(i + 1) * num_bytes] for i in range(self._size)]

    def abort(self) -> None:
        """Tells every rank to stop: calls in flight and later ones raise AbortedError on all
        ranks.  From any thread."""
        with self._ending:
            if self._handle:
                lib.ew_world_abort(self._handle)
        owner = self._owner and self._owner()
        if owner is not None and owner._own is self:
            owner._own = None  # the next call of alone makes another

    def shrink(self) -> World:
        """A new world of the ranks that are left after a fault, numbered in the order of their
        old ranks.  Collective among those that live: each calls it after its error.  Raises
        PeerDiedError on all of them when one dies meanwhile; then call it again.  This world
        stays as dead as it was: close it when you like, and make new plans.  On one host."""
        world, handle = World.__new__(World), ctypes.c_void_p()
        world._prepare()
        try:
            self._call(lib.ew_world_shrink, self._check_open(), handle)
        finally:  # as in __init__
            world._handle = handle.value
        world._begin(lib.ew_world_rank(handle), lib.ew_world_size(handle))
        world._launcher = self._launcher
        if world._launcher is not None:
            world._launcher.send_bytes(pickle.dumps(("shrunk", world._size)))
        return world

    def alone(self) -> World:
        """A world of this rank alone, for what it computes without the others.  It ends with this
        one."""
        self._check_open()
        if self.size == 1:
            return self
        if self._own is None:
            self._own = own = World()
            own._owner = weakref.ref(self)
        return self._own

    def close(self) -> None:
        """Leaves the world, after closing its plans.  May be called again."""
        if self._handle is None:
            return
        self._check_thread()
        if self._own is not None:
            self._own.close()
        if self._in_call:
            raise _busy_error("closed")
        with self._busy:
            self._cache.clear()
            self._frozen.clear()
            self._again.clear()
            while self._plan_handles:
                lib.ew_plan_destroy(self._plan_handles.pop())
            self._forsaken.clear()
            while self._weight_handles:
                lib.ew_weight_destroy(self._weight_handles.pop())
            with self._ending:
                handle, self._handle = self._handle, None
                self._gone = "was closed"
            # Gathering no bytes waits for nobody, but fails if the world has.
            broken = (self._fabric is not None
                      and lib.ew_world_allgather(handle, None, None, 0) != 0)
            lib.ew_world_destroy(handle)
            if self._fabric is not None:
                _mpi.close_fabric(self._fabric, broken)
                _worlds_over_mpi.discard(self)

    def __enter__(self) -> World:
        self._check_open()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            self.abort()  # the others must not wait for this rank
        self.close()

    def __del__(self):
        if not getattr(self, "_handle", None):
            return
        if self._gpu is not None and _is_capturing():
            _forsaken_worlds.append(self)
        else:
            self._close_at_last()

    def __reduce__(self):
        """By its name, which the world of the process that loads it has, too."""
        self._check_open()
        return _unpickle, (self.name,)

    # ---- Inside the package ----

    def _spans_hosts(self):
        if self._hosts is None:
            self._hosts = self.num_hosts
        return self._hosts > 1

    def _device_of(self, backend):
        """Where this rank's matrices lie; None: on a GPU, which its first plan, weight or
        allocation will choose."""
        if backend != "cuda":
            return CPU
        if self._gpu is None:
            if self._in_call:
                raise _busy_error("used")
            with self._busy:
                number = lib.ew_world_gpu(self._check_open())
            self._gpu = number if number >= 0 else None
        return self._gpu

    def _share(self, m):
        """How many of m rows this rank owns; m may be symbolic."""
        return (m + self._size - 1 - self._rank) // self._size

    def _check_open(self):
        if self._handle is None:
            raise ArgumentError(f"the world {self._gone}")
        return self._handle

    def _check_thread(self):
        if self._thread is not None and self._thread != threading.get_ident():
            raise EntwineError(
                f"thread {threading.current_thread().name!r} uses a world over MPI, which serves "
                f"the main thread only\n  fix: make all calls of the world and its plans from the "
                f"main thread")

    def _call(self, function, *arguments):
        """A C call that may block, by one thread at a time.  Whoever only frees something, on
        behalf of the collector, is waited for."""
        if self._thread is not None:
            self._check_thread()
        if self._in_call:
            raise _busy_error("used")
        try:
            with self._busy:  # an interrupt between acquire() and try would keep it for ever
                try:
                    self._in_call = True
                    status = _interrupt.call(self, function, arguments)
                    if status:
                        check(status)
                finally:
                    self._in_call = False
        finally:
            if self._forsaken or _forsaken_worlds:
                self._free_forsaken()

    def _call_briefly(self, function, *arguments):
        """A C call that never blocks, by one thread at a time."""
        if self._in_call:
            raise _busy_error("used")
        try:
            with self._busy:
                status = function(*arguments)
                if status:
                    check(status)
        finally:
            if self._forsaken or _forsaken_worlds:
                self._free_forsaken()

    def _destroy_weight(self, handle):
        """While busy."""
        self._weight_handles.discard(handle)
        lib.ew_weight_destroy(handle)

    def _forsake(self, handle, handles, destroy):
        """Frees a plan or a weight when nobody is inside a call: the collector comes at any time,
        in any thread."""
        self._forsaken.append((handle, handles, destroy))
        self._free_forsaken()

    def _free_forsaken(self):
        if self._must_not_free():
            return
        # Whoever is in a call will come by.
        while self._forsaken and not self._in_call and self._busy.acquire(False):
            try:
                if self._forsaken:
                    handle, handles, destroy = self._forsaken.pop()
                    if handle in handles:
                        handles.remove(handle)
                        destroy(handle)
            finally:
                self._busy.release()
        while _forsaken_worlds and not _is_capturing():
            _forsaken_worlds.pop()._close_at_last()

    def _must_not_free(self):
        """Whether it would end a capture, which must neither wait nor free, or is for another
        thread to do."""
        return (self._gpu is not None and _is_capturing()
                or self._thread is not None and self._thread != threading.get_ident())

    def _close_at_last(self):
        try:
            self.close()
        except Exception:
            pass  # the interpreter is going away


def _is_capturing():
    try:
        return _streams.is_capturing()
    except RuntimeError:
        return False  # CUDA has failed, and with it whatever was captured


def _busy_error(verb):
    return EntwineError(f"the world is {verb} by a thread while another one is inside a call\n"
                        f"  fix: use a world and its plans from one thread at a time")


def _options(timeout, link_gbps, link_latency_us, link_header_bytes, cancel):
    return WorldOptions(ctypes.sizeof(WorldOptions), timeout_ms(timeout),
                        _real(link_gbps, "link_gbps"), _real(link_latency_us, "link_latency_us"),
                        0, address_of(cancel), _real(link_header_bytes, "link_header_bytes"))


def _real(value, name):
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"{name} is {value!r}; expected a number") from None


def timeout_ms(timeout):
    if timeout is None:
        return 0
    seconds = _real(timeout, "timeout")
    if not 0.001 <= seconds <= 4e6:
        raise ArgumentError(f"timeout is {timeout!r}; expected 0.001 to 4000000 seconds")
    return int(seconds * 1000)


def _timeout_from_environment():
    text = os.environ.get("ENTWINE_TIMEOUT_MS", "")
    return int(text) / 1000 if text.isdigit() else _DEFAULT_TIMEOUT_S


def owned_rows(m: int, size: int, rank: int) -> tuple[int, int]:
    """The rows of an m-row output that `rank` of `size` owns: (first, count).  The first
    m mod size ranks own one row more."""
    m = count(m, "m", 0)
    size = count(size, "size", 1, MAX_RANKS)
    rank = count(rank, "rank", 0, size - 1)
    share, extra = divmod(m, size)
    return rank * share + min(rank, extra), share + (rank < extra)


def _names_of_open():
    return ", ".join(sorted(name for name, world in _worlds.items() if world._handle)) or "none"


def find_world(name):
    """The open world of that name."""
    world = _worlds.get(name)
    if world is None:
        raise ArgumentError(f"there is no world named {name!r}; open are: {_names_of_open()}")
    world._check_open()
    return world


def _unpickle(name):
    """The open world of that name, in this or another process."""
    world = _worlds.get(name)
    if world is None or world._handle is None:
        raise ArgumentError(f"what is loaded belongs to the world {name!r}, which is not open in "
                            f"this process; open are: {_names_of_open()}\n  fix: load it on that "
                            f"rank, with worlds opened in the same order as in the program that "
                            f"saved it, or save and load state_dict()")
    return world


def check_world(world):
    """The world, if it is one and open."""
    if not isinstance(world, World):
        raise ArgumentTypeError(f"world is a {type(world).__name__}; expected an entwine.World")
    world._check_open()
    return world


def init(**options: float | Cancellation | None) -> World:
    """A world of the ranks that are already there: those of torch.distributed if it is
    initialised, of mpi4py if it was imported, of a launcher (mpirun, torchrun, srun) if its
    variables are set, else this process alone.  Options are those of ``World``.  One of ENTWINE_RANK
    and ENTWINE_WORLD_SIZE without the other is refused: ranks that are each alone sum nothing."""
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        return World.from_torch(**options)
    if "mpi4py.MPI" in sys.modules:
        return World.from_mpi(**options)
    is_launched = lib.ew_launcher_detect(Launcher()) != UnsupportedError.code
    if is_launched or "ENTWINE_RANK" in os.environ or "ENTWINE_WORLD_SIZE" in os.environ:
        return World.from_launcher(**options)
    return World(**options)


def _leave_all():
    uncaught = getattr(sys, "last_value", None) is not None  # an exception ends the program
    for world in [*_worlds.values(), *_forsaken_worlds]:
        if uncaught and world._fabric is not None:
            world.abort()  # as __exit__ does
        try:
            world.close()
        except EntwineError:
            pass
    _mpi.end(uncaught)


def _disown_all():
    for world in [*_worlds.values(), *_forsaken_worlds]:
        world._handle = None
        world._gone = "belongs to the process that this one was forked from"
        world._plan_handles.clear()
        world._weight_handles.clear()
        world._forsaken.clear()
    _forsaken_worlds.clear()
    _worlds_over_mpi.clear()


atexit.register(_leave_all)
os.register_at_fork(after_in_child=_disown_all)
