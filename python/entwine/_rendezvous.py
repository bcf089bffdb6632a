"""All-gathers: any function of bytes as the C library's callback, and one for processes of one
host that share nothing but a name.

There rank 0 listens on an abstract UNIX socket, which leaves no file behind; the others
connect, send what they have and get everybody's back.  Only processes of the same user are let
in.  Every wait ends at the deadline.
"""
import ctypes
import errno
import os
import socket
import struct
import time

from ._errors import ArgumentError, PeerDiedError, RankTimeoutError
from ._library import ALLGATHER

_HEAD = struct.Struct("<iI")  # rank, bytes that follow


class Rendezvous:
    """Call it once with this rank's bytes: the list of all ranks' bytes comes back."""

    def __init__(self, rank, size, name, timeout_s):
        self.rank, self.size = rank, size
        self.address = f"\0entwine-{os.getuid()}-{name}"
        self.deadline = time.monotonic() + timeout_s
        self.timeout_s = timeout_s

    def __call__(self, mine):
        return self._host(mine) if self.rank == 0 else self._visit(mine)

    # ---- Rank 0 ----

    def _host(self, mine):
        everybody = {0: mine}
        visitors = []
        with socket.socket(socket.AF_UNIX) as listener:
            try:
                listener.bind(self.address)
            except OSError as error:
                raise ArgumentError(f"another job uses the meeting place {self.address[1:]}: "
                                    f"{error.strerror}\n  fix: set ENTWINE_JOB to a name of the "
                                    f"job's own") from error
            listener.listen(self.size)
            try:
                while len(everybody) < self.size:
                    self._admit(listener, everybody, visitors)
                answer = b"".join(everybody[rank] for rank in range(self.size))
                for visitor in visitors:
                    visitor.settimeout(self._left())
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
                for visitor in visitors:
                    visitor.close()
        return [everybody[rank] for rank in range(self.size)]

    def _admit(self, listener, everybody, visitors):
        listener.settimeout(self._left())
        visitor, _ = listener.accept()
        if _user_of(visitor) != os.geteuid():
            visitor.close()
            return
        visitors.append(visitor)
        rank, num_bytes = _HEAD.unpack(self._receive(visitor, _HEAD.size))
        if not 0 < rank < self.size or rank in everybody or num_bytes != len(everybody[0]):
            raise ArgumentError(f"two processes say that they are rank {rank} of {self.size}, or "
                                f"differ in what they send\n  fix: give every process a rank of "
                                f"its own, from 0 to {self.size - 1}")
        everybody[rank] = self._receive(visitor, num_bytes)

    # ---- The others ----

    def _visit(self, mine):
        with self._connect() as host:
            try:
                host.sendall(_HEAD.pack(self.rank, len(mine)) + mine)
                answer = self._receive(host, len(mine) * self.size)
            except TimeoutError:
                raise RankTimeoutError(f"rank {self.rank} waited {self.timeout_s:.3g} s for all "
                                       f"ranks to join\n  fix: see whether all ranks started, or "
                                       f"raise the timeout") from None
            except OSError as error:
                raise PeerDiedError(f"rank 0 left while rank {self.rank} joined: "
                                    f"{error.strerror}", 0) from error
        return [answer[i * len(mine):(i + 1) * len(mine)] for i in range(self.size)]

    def _connect(self):
        while True:
            host = socket.socket(socket.AF_UNIX)
            try:
                host.settimeout(self._left())
                host.connect(self.address)
                if _user_of(host) == os.geteuid():
                    return host
            except (ConnectionRefusedError, BlockingIOError):
                pass  # rank 0 is not there yet
            except TimeoutError:
                host.close()
                raise RankTimeoutError(
                    f"rank {self.rank} waited {self.timeout_s:.3g} s for rank 0 at "
                    f"{self.address[1:]}\n  fix: see whether rank 0 started, and set ENTWINE_JOB "
                    f"to one name on all ranks if they have different parents", 0) from None
            host.close()
            time.sleep(0.01)

    # ---- Both ----

    def _left(self):
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def _receive(self, peer, num_bytes):
        data = bytearray()
        while len(data) < num_bytes:
            peer.settimeout(self._left())
            part = peer.recv(num_bytes - len(data))
            if not part:
                raise ConnectionResetError(errno.ECONNRESET, "it closed the connection")
            data += part
        return bytes(data)


def _user_of(peer):
    credentials = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[1]


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
