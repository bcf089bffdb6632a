"""Makes Ctrl-C work while the main thread is inside a C call.

Python runs signal handlers in the main thread, between two bytecodes: never while a C
function computes or waits there.  But its low-level handler writes the signal's number to
the wakeup descriptor.  That is a file of ours, mapped into memory; a thread looks at it now
and then and aborts the world, upon which the C function returns on every rank and Python
raises KeyboardInterrupt.

A system call around every call would cost it several microseconds, half of what a module
adds to one row, so the descriptor stays ours between calls, unless it was somebody else's:
that one has it back after every call, with what was written meanwhile.  Whoever takes it
between calls is noticed within KEEP_S.

A call that ends by itself within GRACE_S is left alone, and so is every call of a program
with a SIGINT handler of its own: that one runs when the call has ended.
"""
import atexit
import mmap
import os
import signal
import tempfile
import threading
import time

GRACE_S = 0.2
KEEP_S = 0.05
LOOK_S = 0.1

_get_ident, _now = threading.get_ident, time.monotonic  # asked in every call
_MAIN = threading.main_thread().ident


def _open_file():
    try:
        return os.fdopen(os.memfd_create("entwine-signals"), "r+b")
    except (AttributeError, OSError):  # an old C library; a container that forbids it
        return tempfile.TemporaryFile()


class _Watch:
    """One per process: the numbers of all signals so far, and the thread that looks at them."""

    ROOM = 4 * mmap.PAGESIZE

    def __init__(self):
        self.flight = None  # (world, signals before it) while the main thread is in a call
        self.kept_until = 0.0  # by the monotonic clock: the descriptor is ours until then
        self.file = _open_file()
        self.fd = self.file.fileno()
        os.posix_fallocate(self.fd, 0, self.ROOM)  # a map of space that is not there would crash
        os.set_blocking(self.fd, False)  # demanded by set_wakeup_fd
        self.numbers = mmap.mmap(self.fd, self.ROOM)  # of signals, in their order, then zeros
        self.count = 0  # of those that the main thread has seen
        threading.Thread(target=self._run, name="entwine-interrupt", daemon=True).start()

    def signals(self):
        """How many there were so far; asked by the main thread, between calls."""
        if self.numbers[self.count]:
            self.count = self.numbers.find(b"\0", self.count)
            if not 0 <= self.count <= self.ROOM // 2:  # room for those of the next call
                os.lseek(self.fd, 0, os.SEEK_SET)
                self.numbers[:] = bytes(self.ROOM)
                self.count = 0
        return self.count

    def take(self):
        """Makes the descriptor ours; returns whoever must have it back, or -1."""
        previous = signal.set_wakeup_fd(self.fd, warn_on_full_buffer=False)
        if previous not in (-1, self.fd):
            return previous
        self.kept_until = _now() + KEEP_S
        return -1

    def leave(self):
        previous = signal.set_wakeup_fd(-1)
        if previous not in (-1, self.fd):
            signal.set_wakeup_fd(previous)

    def _is_interrupted(self, flight):
        return (self.numbers.find(bytes([signal.SIGINT]), flight[1]) >= 0
                and signal.getsignal(signal.SIGINT) is signal.default_int_handler)

    def _run(self):
        while True:
            time.sleep(LOOK_S)
            flight = self.flight
            if flight is not None and self._is_interrupted(flight):
                time.sleep(GRACE_S)
                if self.flight is flight:
                    flight[0].abort()
                    while self.flight is flight:
                        time.sleep(LOOK_S)


_watch = None


def _begin():
    global _watch
    _watch = _Watch()
    atexit.register(_watch.leave)
    return _watch


def _forget_watch():
    """In a child: the thread did not survive the fork, and the file is the parent's."""
    global _watch, _MAIN
    _MAIN = threading.get_ident()
    if _watch is not None:
        atexit.unregister(_watch.leave)
        _watch.leave()
    _watch = None


os.register_at_fork(after_in_child=_forget_watch)


def _call_and_give_back(watch, world, function, arguments):
    previous, before = -1, watch.signals()
    try:
        previous = watch.take()
        watch.flight = (world, before)
        return function(*arguments)
    finally:
        watch.flight = None
        if previous >= 0:
            signal.set_wakeup_fd(previous)
            if watch.numbers[before]:
                _tell(previous, watch.numbers[before:].rstrip(b"\0"))


def _tell(descriptor, numbers):
    try:
        os.write(descriptor, numbers)
    except OSError:
        pass  # full or closed: not ours to complain about


def call(world, function, arguments):
    """function(*arguments), which may block, such that Ctrl-C ends it."""
    if _get_ident() != _MAIN:
        return function(*arguments)
    watch = _watch or _begin()
    if _now() >= watch.kept_until:
        return _call_and_give_back(watch, world, function, arguments)
    count = watch.count
    watch.flight = world, watch.signals() if watch.numbers[count] else count
    try:
        return function(*arguments)
    finally:
        watch.flight = None
