"""Starts local ranks as processes, collects what they return, and leaves nothing behind."""
from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import pickle
import secrets
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import TypeVar

from . import _meeting_place
from ._buffers import count
from ._errors import (AbortedError, ArgumentError, ArgumentTypeError, PeerDiedError, RankError,
                      RankTimeoutError)
from ._timer import Timer
from ._world import MAX_RANKS, World, _real

Result = TypeVar("Result")

_UNWIND_S = 5.0  # what the others get to tell their story when a rank has failed, and all to exit
_STOP_S = 1.0  # what a rank gets that is told to stop
_START_S = 60.0  # to start an interpreter on a busy machine is no lack of progress
_LOOK_S = 0.1  # between looks at whether ranks have ended: a child of theirs may hold the pipes
_PR_SET_PDEATHSIG = 1


# ---- In a rank -------------------------------------------------------------------------------

def _die_with(parent, method):
    if method == "forkserver":  # the child of a server, which outlives the caller of spawn
        pipe = multiprocessing.parent_process().sentinel
        fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(pipe, fcntl.F_SETFL, os.O_ASYNC)
        has_parent = multiprocessing.parent_process().is_alive()
    else:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        has_parent = os.getppid() == parent
    if not has_parent:  # too late for the request
        os._exit(1)


def _run(answer, rank, size, job, options, function, arguments):
    world = World._meet(rank, size, job, options, _START_S)
    world._launcher = answer
    with world:  # aborts it when the function raises
        return function(world, *arguments)


def _rank_main(parent, method, environment, answer, rank, *run_arguments):
    _die_with(parent, method)
    if environment is not None:
        os.environ.clear()
        os.environ.update(environment)
    # A daemon for its parent, but one that may have children, such as the workers of a DataLoader.
    multiprocessing.current_process()._config["daemon"] = False
    try:
        outcome = ("returned", _run(answer, rank, *run_arguments))
    except BaseException as error:
        blamed = isinstance(error, (PeerDiedError, AbortedError, RankTimeoutError))
        outcome = ("raised", f"{type(error).__name__}: {error}", traceback.format_exc(), blamed)
    _meeting_place.leave_all()  # forked processes end without atexit
    try:
        message = pickle.dumps(outcome)
    except Exception as error:
        message = pickle.dumps(("raised", f"its result cannot be sent to the parent process: "
                                f"{error}", "", False))
    try:
        answer.send_bytes(message)
        answer.close()
    except OSError:
        pass  # the parent has given up and says why


# ---- In the parent ---------------------------------------------------------------------------

class _Rank:
    """A child process and what became of it."""

    def __init__(self, method, rank, *run_arguments):
        context = multiprocessing.get_context(method)
        # A server's variables are those of its own start.
        environment = dict(os.environ) if method == "forkserver" else None
        self.rank = rank
        self.outcome = None
        self.world_size = None  # of the world that it has gone on with, if any
        self.answer, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_rank_main, name=f"entwine-rank-{rank}", daemon=True,
                                       args=(os.getpid(), method, environment, theirs, rank,
                                             *run_arguments))
        self.process.start()
        theirs.close()

    def read(self):
        """Its answer, or the fact that it ended without one; or that it goes on after a fault."""
        try:
            outcome = pickle.loads(self.answer.recv_bytes())
            if outcome[0] == "shrunk":
                self.world_size = outcome[1]
            else:
                self.outcome = outcome
        except EOFError:
            self.process.join(_UNWIND_S)
            self.outcome = ("died",)
        except Exception as error:
            self.outcome = ("raised", f"its result cannot be read: {error}", "", False)

    def has_ended_silently(self):
        return self.process.exitcode is not None and not self.answer.poll()

    def has_answered(self):
        return self.outcome is not None and self.outcome[0] != "died"

    def failure(self):
        """(how much it is to blame, exception), or None."""
        if self.outcome is None or self.outcome[0] == "returned":
            return None
        if self.outcome[0] == "died":
            return 2, RankError(f"rank {self.rank} died: {_ending(self.process.exitcode)}",
                                self.rank, self.process.exitcode)
        _, text, trace, blamed = self.outcome
        return (0 if blamed else 1), RankError(
            f"rank {self.rank} failed: {text}" + (f"\n\n{trace}" if trace else ""), self.rank)


def _go_on(waiting, ranks):
    """Whether all that still run are in a world without those that failed."""
    well = sum(not rank.failure() for rank in ranks)
    return all(rank.world_size is not None and rank.world_size <= well for rank in waiting)


def _ending(exitcode):
    if exitcode is None:
        return "it closed its connection"
    if exitcode < 0:
        return f"killed by signal {-exitcode} ({signal.strsignal(-exitcode)})"
    return f"exit code {exitcode}"


def _collect(ranks, timers):
    """Reads answers until all are there, or until a failure has had its time to unwind."""
    waiting = {rank.answer: rank for rank in ranks}
    unwinding = []
    while waiting:
        try:
            left = min((timer.step() for timer in timers + unwinding), default=_LOOK_S)
        except TimeoutError:
            return
        ready = wait(list(waiting), min(left, _LOOK_S))
        for answer, rank in list(waiting.items()):
            if answer in ready:
                rank.read()
            elif rank.has_ended_silently():
                rank.outcome = ("died",)
            if rank.outcome is not None:
                del waiting[answer]
            if rank.failure() and not unwinding:
                unwinding = [Timer(_UNWIND_S)]
        if unwinding and _go_on(waiting.values(), ranks):
            unwinding = []


def _join(ranks, seconds):
    """Those that have not ended by then."""
    give_up_at = time.monotonic() + seconds
    while running := [rank for rank in ranks if rank.process.exitcode is None]:
        left = give_up_at - time.monotonic()
        if left <= 0:
            break
        wait([rank.process.sentinel for rank in running], min(left, _LOOK_S))
    return running


def _end(ranks):
    """Ends those that have not answered, and waits for the others, which may have more to do on
    their way out, such as to write a file."""
    leaving = [rank for rank in ranks if rank.has_answered()]
    running = [rank for rank in ranks if not rank.has_answered()]
    for stop in ("terminate", "kill"):
        for rank in running:
            getattr(rank.process, stop)()
        running = _join(running, _STOP_S)
    late = _join(leaving, _UNWIND_S)
    for rank in late:
        rank.process.kill()
    _join(late, _STOP_S)
    for rank in ranks:
        rank.answer.close()
    for rank in late:
        warnings.warn(f"rank {rank.rank} was killed, as it had not ended {_UNWIND_S:g} s after its "
                      f"function had\n  fix: do in the function what takes so long at exit",
                      RuntimeWarning, stacklevel=3)


def spawn(num_ranks: int, function: Callable[..., Result], *arguments: object,
          timeout: float | None = None, method: str = "spawn", **options: float | None
          ) -> list[Result]:
    """Runs ``function(world, *arguments)`` in ``num_ranks`` processes of this machine and
    returns the list of what they returned.

    With method "spawn" the processes start afresh: the function must be importable, and a script
    needs ``if __name__ == "__main__":`` around the call.  With "fork" they are copies of this
    process, which must not have started threads or CUDA.  With "forkserver" they are copies of a
    process that has imported what ``multiprocessing.set_forkserver_preload`` named, torch for
    example, and nothing else: each starts as if afresh, but soon.  A rank whose function has ended
    has 5 s to exit; then it is killed, with a warning.

    When a rank raises or dies, the others are told, and RankError names it; on Ctrl-C all end;
    when this process dies, they do too.  ``timeout`` limits the whole run in seconds.  Other
    options are those of ``World``; give its timeout as ``world_timeout``.
    """
    num_ranks = count(num_ranks, "num_ranks", 1, MAX_RANKS)
    if not callable(function):
        raise ArgumentTypeError(f"function is {function!r}; expected a function of a world")
    if method not in ("spawn", "fork", "forkserver"):
        raise ArgumentError(
            f"method is {method!r}; expected 'spawn', 'fork' or 'forkserver'")
    if "cancel" in options:
        raise ArgumentError("spawn takes no cancel: its ranks are other processes\n"
                            "  fix: give it a timeout, or press Ctrl-C")
    timers = [] if timeout is None else [Timer(_real(timeout, "timeout"))]
    if "world_timeout" in options:
        options["timeout"] = options.pop("world_timeout")
    job = secrets.token_hex(16)
    ranks = []
    try:
        for rank in range(num_ranks):
            ranks.append(_Rank(method, rank, num_ranks, job, options, function, arguments))
        _collect(ranks, timers)
        late = [rank.rank for rank in ranks if rank.outcome is None]
    finally:
        _end(ranks)
    failures = [rank.failure() for rank in ranks if rank.failure()]
    if failures:  # who died before who raised before who only heard of it
        error = max(failures, key=lambda failure: failure[0])[1]
        error.results = [None if rank.outcome is None or rank.failure() else rank.outcome[1]
                         for rank in ranks]
        raise error
    if late:
        raise RankTimeoutError(f"rank {late[0]} was still running after {timeout} s", late[0])
    return [rank.outcome[1] for rank in ranks]
