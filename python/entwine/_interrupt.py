"""Makes Ctrl-C work while the main thread is inside a C call.

Python runs signal handlers in the main thread, between two bytecodes: never while a C
function computes or waits there.  But its low-level handler writes the signal's number to
the wakeup descriptor.  For the time of a call that descriptor is ours; a sleeping thread
reads it and aborts the world, upon which the C function returns on every rank and Python
raises KeyboardInterrupt.  A call costs two changes of the descriptor: about a microsecond,
and up to five behind torch's dispatcher.

A call that ends by itself within GRACE_S is left alone, and so is every call of a program
with a SIGINT handler of its own: that one runs when the call has ended.
"""
import os
import signal
import socket
import threading
import time

GRACE_S = 0.2

_get_ident, _set_wakeup_fd = threading.get_ident, signal.set_wakeup_fd  # asked in every call
_MAIN = threading.main_thread().ident


class _Watch:
    """One per process: the descriptor pair and the thread that reads it."""

    def __init__(self):
        self.flight = None  # [world] while the main thread is in a call
        self.previous = -1  # whoever had the descriptor before, and must hear too
        self.receiver, self.sender = socket.socketpair()
        self.sender.setblocking(False)  # demanded by set_wakeup_fd
        self.fd = self.sender.fileno()
        threading.Thread(target=self._run, name="entwine-interrupt", daemon=True).start()

    def _run(self):
        while True:
            numbers = self.receiver.recv(64)
            flight = self.flight
            self._forward(numbers)
            if (signal.SIGINT in numbers and flight is not None
                    and signal.getsignal(signal.SIGINT) is signal.default_int_handler):
                self._end(flight)

    def _forward(self, numbers):
        if self.previous >= 0:
            try:
                os.write(self.previous, numbers)
            except OSError:
                pass  # full or closed: not ours to complain about

    def _end(self, flight):
        give_up_at = time.monotonic() + GRACE_S
        while self.flight is flight:
            if time.monotonic() >= give_up_at:
                flight[0].abort()
                return
            time.sleep(0.01)


_watch = None


def _forget_watch():
    global _watch, _MAIN
    _watch = None  # the thread did not survive the fork, and the sockets are the parent's
    _MAIN = threading.get_ident()


os.register_at_fork(after_in_child=_forget_watch)


def call(world, function, arguments):
    """function(*arguments), which may block, such that Ctrl-C ends it."""
    global _watch
    if _get_ident() != _MAIN:
        return function(*arguments)
    if _watch is None:
        _watch = _Watch()
    watch = _watch
    previous = -1
    try:
        previous = watch.previous = _set_wakeup_fd(watch.fd, warn_on_full_buffer=False)
        watch.flight = [world]
        return function(*arguments)
    finally:
        watch.flight = None
        _set_wakeup_fd(previous)
