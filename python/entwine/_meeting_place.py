"""The folder where ranks that share nothing but a job's name find each other, and who is which
rank there.

Only this user can enter it, so nobody else can take a name or a rank in it.  A rank is a locked
file, and the kernel unlocks it when its process ends, however that ends; files that a killed
process has left are removed by the next one.
"""
import atexit
import contextlib
import fcntl
import hashlib
import os
import re
import stat
import tempfile
import time

from ._errors import ArgumentError, SystemRefusedError
from ._timer import Timer

_PUBLIC = "/tmp"  # sticky: what we own there nobody else can remove
_OPEN_FILES = "/proc/self/fd"
_ADDRESS_BYTES = 107  # what a socket's path may have
_SETTLING_S = 0.1
_LEAVING_S = 1.0
_CLAIM = re.compile(r"[0-9a-f]{32}\.[0-9]+")
_SOCKET = re.compile(r"([0-9a-f]{32})\.meeting-[0-9]+")


# ---- The folder ------------------------------------------------------------------------------

def _open_own(path, parent=None):
    """A descriptor of the folder, or None unless it is this user's and closed to all others."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC,
                     dir_fd=parent)
    except OSError:
        return None
    try:
        facts = os.fstat(fd)
        if facts.st_uid == os.geteuid() and facts.st_mode & 0o077 == 0:
            return fd
    except OSError:
        pass
    _close(fd)
    return None


def _close(fd):
    with contextlib.suppress(OSError):  # whatever it says, the descriptor is gone
        os.close(fd)


def _open_made(path, parent=None):
    """As _open_own, of a folder that we make: the umask may have kept rights from us."""
    with contextlib.suppress(OSError):
        facts = os.stat(path, dir_fd=parent, follow_symlinks=False)
        if (stat.S_ISDIR(facts.st_mode) and facts.st_uid == os.geteuid()
                and facts.st_mode & 0o700 != 0o700):
            os.chmod(path, stat.S_IMODE(facts.st_mode) | 0o700, dir_fd=parent)
    return _open_own(path, parent)


def _make_own(path, parent=None):
    """As _open_made, but makes it if there is nothing."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700, dir_fd=parent)
    return _open_made(path, parent)


def _in_runtime_folder():
    path = os.environ.get("XDG_RUNTIME_DIR", "")
    runtime = _open_own(path) if os.path.isabs(path) else None
    if runtime is None:
        return None, None
    try:
        return _make_own("entwine", runtime), os.path.join(path, "entwine")
    except OSError:
        return None, None  # read-only, as in some containers
    finally:
        _close(runtime)


def _in_public_folder():
    path = f"{_PUBLIC}/entwine-{os.geteuid()}"
    fd = _make_own(path)
    return (fd, path) if fd is not None else _beside(path)


def _beside(taken):
    """Where another user has taken the name: the first folder of ours with a random end to it.
    Ranks that make two of them at the same time both find the same first one afterwards."""
    for making in (True, False):
        for entry in sorted(os.listdir(_PUBLIC)):
            path = os.path.join(_PUBLIC, entry)
            if path.startswith(f"{taken}-"):
                fd = _open_made(path)
                if fd is not None:
                    return fd, path
        if making:
            tempfile.mkdtemp(prefix=f"{os.path.basename(taken)}-", dir=_PUBLIC)
            time.sleep(_SETTLING_S)
    return None, taken


class Folder:
    """The folder, open."""

    def __init__(self):
        try:
            self.fd, self.path = _in_runtime_folder()
            if self.fd is None:
                self.fd, self.path = _in_public_folder()
        except OSError as error:
            raise _no_folder(f"{error.filename}: {error.strerror}") from error
        if self.fd is None:
            raise _no_folder(f"{self.path} is not this user's alone")
        with contextlib.suppress(OSError):  # tells systemd-tmpfiles that it is in use
            fcntl.flock(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def address(self, name):
        """Of a socket there, however long the folder's own path is."""
        if os.path.isdir(_OPEN_FILES):
            return f"{_OPEN_FILES}/{self.fd}/{name}"
        path = os.path.join(self.path, name)
        if len(os.fsencode(path)) > _ADDRESS_BYTES:
            raise SystemRefusedError(
                f"ranks cannot meet in {self.path}: there is no {_OPEN_FILES}, and without it the "
                f"path of a socket has at most {_ADDRESS_BYTES} bytes\n  fix: mount /proc, or set "
                f"XDG_RUNTIME_DIR, on all ranks, to a folder with a shorter path")
        return path

    def open(self, name, flags=0):
        flags |= os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(name, flags, 0o600, dir_fd=self.fd)
        except PermissionError:
            self.permit(name)
            return os.open(name, flags, 0o600, dir_fd=self.fd)

    def permit(self, name):
        """Gives us the rights that the umask of the process that made it has kept from us."""
        os.chmod(name, 0o600, dir_fd=self.fd)

    def remove(self, name):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)

    @contextlib.contextmanager
    def locked(self, timer):
        """Alone: while a file is looked at, nobody locks or removes it."""
        fd = self.open("lock", os.O_CREAT)
        try:
            while not _lock(fd):
                time.sleep(min(timer.step(), 0.01))
            yield
        finally:
            _close(fd)

    def sweep(self):
        """Removes what processes have left that were killed.  Locked only."""
        names = os.listdir(self.fd)
        live = {name for name in names if _CLAIM.fullmatch(name) and not self._remove_if_free(name)}
        for name in names:
            socket = _SOCKET.fullmatch(name)
            if socket and f"{socket[1]}.0" not in live:
                self.remove(name)

    def _remove_if_free(self, name):
        fd = self.open(name)
        try:
            free = _lock(fd)
            if free:
                self.remove(name)
            return free
        finally:
            _close(fd)


def _no_folder(why):
    return SystemRefusedError(f"ranks have no folder to meet in: {why}\n  fix: set "
                              f"XDG_RUNTIME_DIR, on all ranks, to a folder of yours with mode 0700")


def _lock(fd):
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except BlockingIOError:
        return False


# ---- Ranks -----------------------------------------------------------------------------------

class Member:
    """A rank of a job, which no other process can be before this one ends."""

    def __init__(self, job, rank, timer):
        self.job, self.rank = job, rank
        self.id = None  # of the job, from its first meeting on
        self.meetings = 0
        self.folder, self._claim = Folder(), -1
        self._key = hashlib.sha256(job.encode(errors="surrogateescape")).hexdigest()[:32]
        self._name = f"{self._key}.{rank}"
        try:
            with self.folder.locked(timer):
                self.folder.sweep()
                self._take()
        except BaseException:
            self.disown()
            raise

    def _take(self):
        self._claim = self.folder.open(self._name, os.O_CREAT)
        if not _lock(self._claim):
            holder = os.read(self._claim, 20).decode(errors="replace")
            raise ArgumentError(
                f"two processes say that they are rank {self.rank} of the job {self.job}: pid "
                f"{holder} came first\n  fix: give every process a rank of its own, and every job "
                f"a text of its own in ENTWINE_JOB")
        os.truncate(self._claim, 0)
        os.write(self._claim, str(os.getpid()).encode())

    def next_meeting(self):
        """The name of a socket that all ranks of the job know."""
        name = f"{self._key}.meeting-{self.meetings}"
        self.meetings += 1
        return name

    def leave(self):
        # A file that stays, because another process holds the lock, harms nobody.
        with contextlib.suppress(OSError):
            with self.folder.locked(Timer(_LEAVING_S)):
                self.folder.remove(self._name)
        self.disown()

    def disown(self):
        for fd in (self._claim, self.folder.fd):
            if fd >= 0:
                _close(fd)


_members = {}


def member(job, rank, timer):
    """This process's membership, which lasts as long as the process."""
    if (job, rank) not in _members:
        _members[job, rank] = Member(job, rank, timer)
    return _members[job, rank]


def leave_all():
    while _members:
        _members.popitem()[1].leave()


def _disown_all():
    while _members:  # a forked child is not the rank
        _members.popitem()[1].disown()


atexit.register(leave_all)
os.register_at_fork(after_in_child=_disown_all)
