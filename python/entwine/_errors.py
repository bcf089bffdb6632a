"""Statuses of the C library as exceptions, and the checks' own."""
from __future__ import annotations

import re
from typing import Any

__all__ = [
    "EntwineError", "ArgumentError", "ArgumentTypeError", "ShapeError", "ConfigError",
    "UnsupportedError", "MismatchError", "OutOfMemoryError", "SystemRefusedError",
    "RankTimeoutError", "PeerDiedError", "AbortedError", "RankError", "LibraryError",
]


class EntwineError(RuntimeError):
    """Anything that Entwine refuses or that went wrong.

    ``status`` is the name, such as ``"EW_ERR_TIMEOUT"``, ``code`` its number, and ``rank``
    the rank at fault when the message names one, else None.
    """

    status: str = "EW_ERR_ARGUMENT"
    code: int = -1

    def __init__(self, message: str, rank: int | None = None) -> None:
        super().__init__(message)
        self.rank = rank


class ArgumentError(EntwineError, ValueError):
    """An argument has a wrong value: the message says which and what was expected."""


class ArgumentTypeError(ArgumentError, TypeError):
    """An argument is of a wrong type."""


class ShapeError(ArgumentError):
    """A shape does not fit, or is not supported."""

    status, code = "EW_ERR_SHAPE", -2


class ConfigError(ArgumentError):
    """A config that is not valid."""

    status, code = "EW_ERR_CONFIG", -3


class UnsupportedError(EntwineError):
    """Something that this build, machine or backend does not do."""

    status, code = "EW_ERR_UNSUPPORTED", -4


class MismatchError(EntwineError):
    """The ranks disagree."""

    status, code = "EW_ERR_MISMATCH", -5


class OutOfMemoryError(EntwineError, MemoryError):
    """Not enough memory."""

    status, code = "EW_ERR_MEMORY", -6


class SystemRefusedError(EntwineError):
    """The operating system refused something."""

    status, code = "EW_ERR_SYSTEM", -7


class RankTimeoutError(EntwineError, TimeoutError):
    """A peer made no progress in time; ``rank`` is the silent one."""

    status, code = "EW_ERR_TIMEOUT", -8


class PeerDiedError(EntwineError):
    """A peer died or left; ``rank`` says which."""

    status, code = "EW_ERR_PEER_DIED", -9


class AbortedError(EntwineError):
    """A rank aborted the world; ``rank`` says which."""

    status, code = "EW_ERR_ABORTED", -10


class RankError(EntwineError):
    """A rank of ``spawn`` failed; ``rank`` says which, ``exitcode`` how its process ended,
    ``results`` what the ranks returned that went on without it (None for the others)."""

    status, code = "EW_ERR_ABORTED", -10

    def __init__(self, message: str, rank: int | None, exitcode: int | None = None) -> None:
        super().__init__(message, rank)
        self.exitcode = exitcode
        self.results: list[Any] = []


class LibraryError(EntwineError, ImportError):
    """libentwine.so.0 was not found, or is of another version than this package."""

    status, code = "EW_ERR_UNSUPPORTED", -4


_BY_CODE = {
    error.code: error
    for error in (ArgumentError, ShapeError, ConfigError, UnsupportedError, MismatchError,
                  OutOfMemoryError, SystemRefusedError, RankTimeoutError, PeerDiedError,
                  AbortedError)
}

# Who is at fault is not always who is named first.
_CULPRITS = (
    re.compile(r"waited .* (?:of|for) rank (\d+)"),
    re.compile(r"ranks disagree: rank \d+ .*, rank (\d+)"),
    re.compile(r"rank (\d+)"),
)


def _culprit(message):
    first_line = message.split("\n", 1)[0]
    for pattern in _CULPRITS:
        found = pattern.search(first_line)
        if found:
            return int(found.group(1))
    return None


def from_status(code, message):
    """The exception for a failed C call."""
    return _BY_CODE.get(code, EntwineError)(message, _culprit(message))
