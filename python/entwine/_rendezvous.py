"""All-gathers: any function of bytes as the C library's callback, and one for processes of one
host that share nothing but the name of their job.

There rank 0 listens in the job's meeting place; the others connect, send what they have and get
everybody's back.  All say which job they know: its id is drawn by rank 0 when they first meet.
Every wait ends when the timer does.
"""
import contextlib
import ctypes
import errno
import os
import socket
import struct
import time

from . import _meeting_place
from ._errors import (ArgumentError, EntwineError, MismatchError, PeerDiedError, RankTimeoutError,
                      SystemRefusedError)
from ._library import ALLGATHER
from ._timer import Timer

_ID_BYTES = 16
_NO_JOB = bytes(_ID_BYTES)  # before the first meeting
_HELLO = struct.Struct(f"<iI{_ID_BYTES}s")  # rank, bytes that follow, the job it knows
_ANSWER = struct.Struct(f"<{_ID_BYTES}s{_ID_BYTES}s")  # the job that rank 0 knew, and from now on


class Rendezvous:
    """Call it once with this rank's bytes: the list of all ranks' bytes comes back."""

    def __init__(self, rank, size, job, timeout_s, cancel=None):
        self.rank, self.size, self.job = rank, size, job
        self.timer = Timer(timeout_s, cancel and (lambda: cancel._check(rank)))
        self.timeout_s = timeout_s

    def __call__(self, mine):
        try:
            self.member = _meeting_place.member(self.job, self.rank, self.timer)
        except TimeoutError:
            raise RankTimeoutError(f"rank {self.rank} waited {self.timeout_s:.3g} s for other "
                                   f"processes to be done with the file that says who is which "
                                   f"rank\n  fix: see whether one of them is stopped") from None
        except OSError as error:
            raise SystemRefusedError(f"rank {self.rank} cannot enter the job {self.job}: "
                                     f"{error}") from error
        self.socket = self.member.next_meeting()
        self.known = self.member.id or _NO_JOB
        try:
            return self._host(mine) if self.rank == 0 else self._visit(mine)
        except EntwineError:
            raise
        except OSError as error:
            raise SystemRefusedError(f"rank {self.rank} cannot meet the others of the job "
                                     f"{self.job}: {error.strerror}") from error

    # ---- Rank 0 ----

    def _host(self, mine):
        everybody = {0: mine}
        visitors = []
        with self._listen() as listener:
            try:
                job_id = self.member.id or os.urandom(_ID_BYTES)
                while len(everybody) < self.size:
                    self._admit(listener, everybody, visitors)
                answer = _ANSWER.pack(self.known, job_id) + b"".join(
                    everybody[rank] for rank in range(self.size))
                for visitor in visitors:
                    visitor.settimeout(self.timeout_s)
                    visitor.sendall(answer)
            except TimeoutError:
                missing = [str(r) for r in range(self.size) if r not in everybody]
                raise RankTimeoutError(
                    f"rank 0 waited {self.timeout_s:.3g} s for rank {', '.join(missing)} to "
                    f"join\n  fix: see whether all ranks started, or raise the timeout",
                    int(missing[0]) if missing else None) from None
            except ConnectionError as error:
                raise PeerDiedError(f"a rank left while it joined: {error.strerror}") from error
            finally:
                with contextlib.suppress(OSError):  # the next meeting has a name of its own
                    self.member.folder.remove(self.socket)
                for visitor in visitors:
                    _close(visitor)
        self.member.id = job_id
        return [everybody[rank] for rank in range(self.size)]

    def _listen(self):
        address, listener = self._address(), socket.socket(socket.AF_UNIX)
        try:
            self.member.folder.remove(self.socket)  # of an earlier rank 0, which was killed
            listener.bind(address)
            listener.listen(self.size)
            return listener
        except OSError as error:
            _close(listener)
            raise SystemRefusedError(f"rank 0 cannot listen in {self.member.folder.path}: "
                                     f"{error.strerror}") from error

    def _admit(self, listener, everybody, visitors):
        visitor, _ = self.timer.call(listener, listener.accept)
        visitors.append(visitor)
        pid, user = _process_of(visitor)
        if user != os.geteuid():
            _close(visitors.pop())
            return
        rank, num_bytes, known = _HELLO.unpack(self._receive(visitor, _HELLO.size))
        if known != self.known:
            visitor.sendall(_ANSWER.pack(self.known, self.known))
            raise self._two_jobs(rank, pid, known)
        if not 0 < rank < self.size or rank in everybody or num_bytes != len(everybody[0]):
            raise ArgumentError(f"two processes say that they are rank {rank} of {self.size}, or "
                                f"differ in what they send\n  fix: give every process a rank of "
                                f"its own, from 0 to {self.size - 1}")
        everybody[rank] = self._receive(visitor, num_bytes)

    # ---- The others ----

    def _visit(self, mine):
        with self._connect() as host:
            try:
                host.sendall(_HELLO.pack(self.rank, len(mine), self.known) + mine)
                known, job_id = _ANSWER.unpack(self._receive(host, _ANSWER.size))
                if known != self.known:
                    raise self._two_jobs(0, _process_of(host)[0], known)
                answer = self._receive(host, len(mine) * self.size)
            except TimeoutError:
                raise RankTimeoutError(f"rank {self.rank} waited {self.timeout_s:.3g} s for all "
                                       f"ranks to join\n  fix: see whether all ranks started, or "
                                       f"raise the timeout") from None
            except ConnectionError as error:
                raise PeerDiedError(f"rank 0 left while rank {self.rank} joined: "
                                    f"{error.strerror}", 0) from error
        self.member.id = job_id
        return [answer[i * len(mine):(i + 1) * len(mine)] for i in range(self.size)]

    def _connect(self):
        address, was_permitted = self._address(), False
        while True:
            host, is_rank_0 = socket.socket(socket.AF_UNIX), False
            try:
                host.settimeout(self.timer.step())
                host.connect(address)
                is_rank_0 = _process_of(host)[1] == os.geteuid()
                if is_rank_0:
                    return host
            except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
                pass  # rank 0 is not there yet
            except PermissionError:
                if was_permitted:
                    raise
                was_permitted = True
                self.member.folder.permit(self.socket)
            except TimeoutError:
                raise RankTimeoutError(
                    f"rank {self.rank} waited {self.timeout_s:.3g} s for rank 0 of the job "
                    f"{self.job} in {self.member.folder.path}\n  fix: see whether rank 0 started, "
                    f"and set ENTWINE_JOB and XDG_RUNTIME_DIR alike on all ranks", 0) from None
            finally:
                if not is_rank_0:
                    _close(host)
            time.sleep(0.01)

    # ---- Both ----

    def _address(self):
        return self.member.folder.address(self.socket)

    def _two_jobs(self, rank, pid, known):
        return MismatchError(
            f"ranks of two jobs meet as {self.job}: rank {self.rank} (pid {os.getpid()}) has "
            f"{_describe(self.known)}, rank {rank} (pid {pid}) has {_describe(known)}\n"
            f"  fix: start all ranks of a job anew, with a text of the job's own in ENTWINE_JOB",
            rank)

    def _receive(self, peer, num_bytes):
        data = bytearray()
        while len(data) < num_bytes:
            part = self.timer.call(peer, peer.recv, num_bytes - len(data))
            if not part:
                raise ConnectionResetError(errno.ECONNRESET, "it closed the connection")
            data += part
        return bytes(data)


def _describe(known):
    return "met no rank before" if known == _NO_JOB else f"the job id {known.hex()}"


def _close(peer):
    with contextlib.suppress(OSError):  # whatever it says, the connection is gone
        peer.close()


def _process_of(peer):
    """(pid, user)"""
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[:2]


class Gather:
    """The C library's all-gather callback over a function of bytes."""

    def __init__(self, function, size):
        self.function, self.size, self.error = function, size, None
        self.callback = ALLGATHER(self._run)

    def _run(self, _context, mine, everybody, num_bytes):
        try:
            parts = self.function(ctypes.string_at(mine, num_bytes))
            sizes = [len(part) for part in parts]
            if sizes != [num_bytes] * self.size:
                raise ArgumentError(f"allgather returned parts of {sizes} bytes; expected "
                                    f"{self.size} parts of {num_bytes}")
            ctypes.memmove(everybody, b"".join(parts), num_bytes * self.size)
            return 0
        except BaseException as error:  # KeyboardInterrupt too: it cannot cross C
            self.error = error
            return 1
