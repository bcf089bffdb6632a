"""Giving up on a world that is still being made."""
from __future__ import annotations

import ctypes

from ._errors import AbortedError, ArgumentTypeError


class Cancellation:
    """Cancels the creation of a world, from any thread of the process.

    Pass one as ``cancel`` to ``World``, ``init`` or a ``from_`` constructor.  Once ``cancel()``
    was called, the creation soon raises AbortedError, and so does every later one with this
    object.  Ranks that are connected by then raise an error that names this rank; those that
    are not go on waiting for it, up to their timeout.  An all-gather of the caller's own, of
    torch.distributed or of MPI is not interrupted.  A world that exists is not cancelled: use
    its ``abort()``.
    """

    def __init__(self) -> None:
        self._word = ctypes.c_int(0)  # the library reads it

    def cancel(self) -> None:
        """Cancels the creation of a world, now or later."""
        self._word.value = 1

    @property
    def cancelled(self) -> bool:
        """Whether ``cancel()`` was called."""
        return self._word.value != 0

    def __repr__(self):
        return f"<entwine.Cancellation, {'' if self.cancelled else 'not '}cancelled>"

    def _check(self, rank):
        if self.cancelled:
            raise AbortedError(f"rank {rank} gave up while the world was created: its program "
                               f"cancelled that", rank)


def address_of(cancel):
    """What the library's options hold; `cancel` must outlive them."""
    if cancel is None:
        return None
    if not isinstance(cancel, Cancellation):
        raise ArgumentTypeError(f"cancel is a {type(cancel).__name__}; expected an "
                                f"entwine.Cancellation")
    return ctypes.addressof(cancel._word)
