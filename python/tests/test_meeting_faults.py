"""The n-th system call of a kind fails in a rank that meets the others, for every n and kind: both
ranks end in time, with everybody's bytes or an error of Entwine's, and leave no file and no
descriptor behind."""
import errno
import gc
import os
import socket
import tempfile
import threading
import time

import pytest

import entwine
from entwine import _job, _meeting_place, _rendezvous
from entwine._rendezvous import Rendezvous

TIMEOUT_S = 0.2
LIMIT_S = 60
MOST = 30  # calls of a kind; those of a rank that waits repeat

OS_CALLS = {"open": errno.EMFILE, "mkdir": errno.ENOSPC, "listdir": errno.EIO, "fstat": errno.EIO,
            "unlink": errno.EROFS, "read": errno.EIO, "write": errno.ENOSPC, "truncate": errno.EIO,
            "close": errno.EIO, "stat": errno.EACCES, "urandom": errno.ENOSYS}
SOCKET_CALLS = {"bind": errno.EADDRINUSE, "listen": errno.ENOBUFS, "connect": errno.EACCES,
                "sendall": errno.ENOBUFS, "recv": errno.ENOMEM, "getsockopt": errno.EINVAL,
                "accept": errno.EMFILE, "close": errno.EIO}


class Fault:
    """Counts the calls of one kind and one thread, and fails the n-th."""

    def __init__(self, name, nth):
        self.name, self.nth, self.count, self.thread = name, nth, 0, None

    def __str__(self):
        return f"call {self.nth} of {self.name}"

    def due(self, name):
        if name != self.name or threading.get_ident() != self.thread:
            return False
        self.count += 1
        return self.count == self.nth

    def fired(self):
        return self.count >= self.nth

    def wrap(self, name, function, error):
        def call(*arguments, **options):
            due = self.due(name)
            if due and not name.endswith("close"):  # one that fails has closed
                raise OSError(error, os.strerror(error), name)
            result = function(*arguments, **options)
            if due:
                raise OSError(error, os.strerror(error), name)
            return result
        return call


class Failing:
    """A module, some of whose functions fail."""

    def __init__(self, module, functions):
        self._module = module
        self.__dict__.update(functions)

    def __getattr__(self, name):
        return getattr(self._module, name)


def failing_socket(fault):
    class Socket(socket.socket):
        def __init__(self, *arguments, **options):
            if "fileno" not in options and fault.due("socket"):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            super().__init__(*arguments, **options)

        def _accepted(self):
            fd, address = self._accept()
            return Socket(fileno=fd), address

    for name, error in SOCKET_CALLS.items():
        real = Socket._accepted if name == "accept" else getattr(socket.socket, name)
        setattr(Socket, name, fault.wrap(f"socket.{name}", real, error))
    return Socket


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    return tmp_path / "entwine"


def inject(monkeypatch, fault):
    calls = {name: fault.wrap(name, getattr(os, name), error) for name, error in OS_CALLS.items()}
    failing_os = Failing(os, calls)
    for module in (_meeting_place, _rendezvous, _job):
        monkeypatch.setattr(module, "os", failing_os)
    monkeypatch.setattr(_meeting_place, "fcntl", Failing(_meeting_place.fcntl, {
        "flock": fault.wrap("flock", _meeting_place.fcntl.flock, errno.ENOLCK)}))
    monkeypatch.setattr(_rendezvous, "socket", Failing(socket, {"socket": failing_socket(fault)}))


def meet(victim, fault, job):
    """What each of two ranks, threads here, gets out of two meetings."""
    outcomes = [None, None]

    def run(rank):
        if rank == victim:
            fault.thread = threading.get_ident()
        try:
            for _ in range(2):
                outcomes[rank] = Rendezvous(rank, 2, job, TIMEOUT_S)(bytes([rank]))
        except BaseException as error:
            outcomes[rank] = error
        fault.thread = None if rank == victim else fault.thread

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive(), f"{fault}: a rank hangs"
    return outcomes


def meet_with(fault, victim, folder, monkeypatch):
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        inject(patch, fault)
        outcomes = meet(victim, fault, f"{fault} in rank {victim}")
    _meeting_place.leave_all()
    _meeting_place.Member("next", 0, time.monotonic() + LIMIT_S).leave()  # removes what is left
    where = f"{fault}: {outcomes!r}"
    for outcome in outcomes:
        assert isinstance(outcome, entwine.EntwineError) or outcome == [b"\0", b"\1"], where
    assert len(os.listdir("/proc/self/fd")) == before, where
    assert {path.name for path in folder.iterdir()} == {"lock"}, where


KINDS = [*OS_CALLS, "flock", "socket", *(f"socket.{name}" for name in SOCKET_CALLS)]
# Rank 0 listens, the others connect; the rest is for places that are not as they should be.
UNUSED = {0: {"read", "stat", "socket.connect"},
          1: {"read", "stat", "urandom", "unlink", "socket.bind", "socket.listen", "socket.accept"}}


@pytest.mark.parametrize("victim", [0, 1])
def test_every_call_of_a_meeting(victim, folder, monkeypatch):
    gc.collect()  # of worlds that other tests have left
    _meeting_place.leave_all()
    for kind in KINDS:
        for nth in range(1, MOST + 1):
            fault = Fault(kind, nth)
            meet_with(fault, victim, folder, monkeypatch)
            if not fault.fired():
                break
        assert nth > 1 or kind in UNUSED[victim], f"no {kind} was made to fail"


@pytest.mark.parametrize("room", [1, 0])
def test_ranks_meet_without_proc(monkeypatch, room):
    """Where the path of the folder itself leaves room for a socket's name."""
    monkeypatch.setattr(_meeting_place, "_OPEN_FILES", "/nowhere")
    _meeting_place.leave_all()
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        path = f"{folder}/entwine/{32 * 'x'}.meeting-0"
        monkeypatch.setattr(_meeting_place, "_ADDRESS_BYTES", len(path) - 1 + room)
        outcomes = meet(0, Fault("no call", 1), f"a job without /proc, {room}")
        _meeting_place.leave_all()
    for outcome in outcomes:
        if room:
            assert outcome == [b"\0", b"\1"]
        else:
            assert "there is no /nowhere" in str(outcome) and "fix: mount /proc" in str(outcome)


def test_the_name_of_a_job_needs_no_call(monkeypatch):
    """Where namespaces cannot be seen, launchers' variables still name the job."""
    def refuse(*_):
        raise PermissionError(errno.EACCES, "no")
    monkeypatch.setattr(_job.os, "stat", refuse)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    monkeypatch.delenv("ENTWINE_JOB", raising=False)
    assert "SLURM_JOB_ID=7" in _job.name("SLURM_PROCID")
