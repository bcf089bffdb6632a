"""The MPI module, entwine_mpi.so: what carries a world's bytes between hosts under mpirun.

MPI starts once in a process and never again, so it stays from the first world to the end of
the program.  One thread calls it: Python's main thread, which also ends it.
"""
import contextlib
import ctypes
import os
import sys
import threading
import time
from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_int, c_uint32, c_void_p

from ._errors import RankTimeoutError, SystemRefusedError, UnsupportedError
from ._library import _candidates, lib

NAME = "entwine_mpi.so"
_LAST_WORDS_S = 1.0  # for the other ranks to say what they saw, before an abort ends them all


class Table(Structure):
    _fields_ = [("struct_size", c_uint32),
                ("open", CFUNCTYPE(c_int, POINTER(c_int), POINTER(c_int))),
                ("allgather", c_void_p),
                ("fabric_open", CFUNCTYPE(c_int, c_void_p, POINTER(c_void_p))),
                ("fabric_close", CFUNCTYPE(None, c_void_p, c_int)),
                ("method_list", c_void_p), ("method_create", c_void_p),
                ("method_destroy", c_void_p),
                ("close", CFUNCTYPE(None)), ("abort", CFUNCTYPE(None, c_int))]


class _Unusable(Exception):
    """Why there is no MPI module for this process."""


# ---- Finding and starting it -----------------------------------------------------------------

class _DlInfo(Structure):
    _fields_ = [("file", c_char_p), ("base", c_void_p), ("symbol", c_char_p),
                ("address", c_void_p)]


def _library_folder():
    found = _DlInfo()
    ctypes.CDLL(None).dladdr(ctypes.cast(lib.ew_version, c_void_p), ctypes.byref(found))
    return os.path.dirname(os.path.realpath(os.fsdecode(found.file)))


def module_path():
    """The module's file: ENTWINE_MPI_MODULE, or where libentwine is or could be.  None: it is
    not there."""
    asked = os.environ.get("ENTWINE_MPI_MODULE")
    if asked:
        return os.path.abspath(asked)
    folders = [_library_folder(), *(os.path.dirname(path) for path, _ in _candidates()
                                    if os.path.isabs(path))]
    for folder in folders:
        for path in (os.path.join(folder, NAME), os.path.join(folder, "entwine", NAME)):
            if os.path.exists(path):
                return path
    return None


def _load():
    path = module_path()
    if path is None:
        raise _Unusable(f"{NAME} is not installed")
    try:
        # Global: Open MPI's own plug-ins look for its symbols there.
        library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        library.ew_mpi_module_get.restype = POINTER(Table)
        table = library.ew_mpi_module_get().contents
    except (OSError, AttributeError) as error:
        raise _Unusable(str(error)) from error  # it names the file
    if table.struct_size < ctypes.sizeof(Table):
        raise _Unusable(f"{path} is of another version")
    _check_same_mpi(library, path)
    return table


def _mpi4py():
    return sys.modules.get("mpi4py.MPI")


def _check_same_mpi(library, path):
    """Two MPIs in one process do not know each other's communicators."""
    if _mpi4py() is None:
        return
    try:
        theirs = ctypes.CDLL(_mpi4py().__file__).MPI_Get_library_version
        ours = library.MPI_Get_library_version
        same = ctypes.cast(ours, c_void_p).value == ctypes.cast(theirs, c_void_p).value
    except (OSError, AttributeError):
        same = False
    if not same:
        raise _Unusable(f"{path} and mpi4py use different MPI libraries")


class _Job:
    """MPI in this process."""

    def __init__(self):
        self.table = None  # until it was started
        self.rank = self.size = None  # in MPI_COMM_WORLD
        self.unusable = None
        self.broken = False  # a world has failed: peers may be gone, and MPI would wait for them

    def start(self):
        if self.unusable:
            raise _Unusable(self.unusable)
        if self.table is not None:
            return
        try:
            table = _load()
            rank, size = c_int(-1), c_int()
            if table.open(rank, size):
                raise _Unusable("MPI does not start")
        except _Unusable as error:
            self.unusable = str(error)
            raise
        self.table, self.rank, self.size = table, rank.value, size.value


_job = _Job()


def _disown():
    global _job
    if _job.table is not None:
        _job = _Job()
        _job.unusable = "this process was forked from one that uses MPI"


os.register_at_fork(after_in_child=_disown)


# ---- Whether it will do ----------------------------------------------------------------------

def _why_not():
    if threading.current_thread() is not threading.main_thread():
        return "MPI serves the main thread only, and another one makes this world"
    try:
        _job.start()
    except _Unusable as error:
        return str(error)
    return None


def is_communicator(comm):
    """Whether it is one of mpi4py's that MPI can duplicate."""
    return _mpi4py() is not None and isinstance(comm, _mpi4py().Intracomm)


def why_not(comm=None):
    """Why MPI cannot carry a world of the communicator's ranks; None: it can.  Collective: all
    ranks have the same answer.  Without a communicator: of all ranks that mpirun started."""
    if comm is None:
        return _why_not()
    if not is_communicator(comm):
        return "the communicator is not mpi4py's"
    return next((why for why in comm.allgather(_why_not()) if why), None)


def is_launcher(place):
    """Whether the ranks that a launcher's variables speak of are MPI's."""
    source = place.source.decode()
    return place.num_ranks > 1 and (source.startswith(("OMPI_", "PMI")) or
                                    source.startswith("SLURM_") and "PMIX_RANK" in os.environ)


def why_not_launched(place):
    """As why_not, for a launcher's ranks."""
    why = _why_not()
    if why is None and (_job.rank, _job.size) != (place.rank, place.num_ranks):
        why = (f"{place.source.decode()} says rank {place.rank} of {place.num_ranks}, but MPI sees "
               f"rank {_job.rank} of {_job.size}")
    return why


@contextlib.contextmanager
def told_why_not(why):
    """Ranks that do not meet, as on several hosts, must know what would have helped."""
    try:
        yield
    except (UnsupportedError, RankTimeoutError) as error:
        if why is None:
            raise
        raise type(error)(f"{error}\n  MPI is not used: {why}", error.rank) from error


# ---- Using it --------------------------------------------------------------------------------

def open_fabric(comm=None):
    """An ew_fabric over a duplicate of the communicator, once why_not says None.  Collective."""
    fabric = c_void_p()
    address = None if comm is None else _mpi4py()._addressof(comm)
    if _job.table.fabric_open(address, fabric):
        _job.broken = True
        raise SystemRefusedError("MPI cannot carry messages: it could not duplicate the "
                                 "communicator\n  fix: look for its message above")
    return fabric.value


def close_fabric(fabric, broken):
    """After its world.  A broken world's peers may be gone, so MPI is left alone from then on."""
    _job.broken = _job.broken or broken
    _job.table.fabric_close(fabric, broken)


def end(failed):
    """Ends MPI with the program: in good order, or, when something failed, with MPI_Abort, since
    MPI_Finalize would wait for ranks that may never come."""
    if _job.table is None:
        return
    if _job.broken or failed:
        sys.stdout.flush()
        sys.stderr.flush()
        time.sleep(_LAST_WORDS_S)
        _job.table.abort(1)
    _job.table.close()
