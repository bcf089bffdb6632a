"""Where the ranks meet: a few words in a file that all of them map.  Every wait is bounded,
and ends at once when somebody gave up."""
import mmap
import os
import threading
import time

LINE = 8  # words; one cache line
SPINS = 256  # looks at a rank before the processor is offered to it
VALUES = 1024  # numbers that a rank can show the others
WORD_BYTES = 8


class Stalled(Exception):
    """Another rank did not come."""


class GaveUp(Exception):
    """Another rank gave up, and knows why."""


def create(path, ranks):
    with open(path, "wb") as file:
        file.truncate(WORD_BYTES * (LINE * (1 + ranks) + VALUES * ranks))


class Meeting:
    def __init__(self, path, rank, ranks, timeout_s):
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        words = memoryview(self._map)
        self._abort = words[:WORD_BYTES].cast("Q")
        places = LINE * WORD_BYTES
        self._arrived = [words[places * (1 + r):][:WORD_BYTES].cast("Q") for r in range(ranks)]
        tables = words[places * (1 + ranks):].cast("d")
        self._values = [tables[VALUES * r:VALUES * (r + 1)] for r in range(ranks)]
        self._fence = threading.Lock()
        self.rank, self.ranks, self.timeout_s = rank, ranks, timeout_s

    def _order(self):
        """What was written before is seen before: a lock is a fence on every processor."""
        with self._fence:
            pass

    def give_up(self):
        self._abort[0] = 1

    def check(self):
        if self._abort[0]:
            raise GaveUp("another rank gave up")

    def barrier(self):
        turn = self._arrived[self.rank][0] + 1
        self._order()
        self._arrived[self.rank][0] = turn
        end = time.monotonic() + self.timeout_s
        for other in range(self.ranks):
            spins = 0
            while self._arrived[other][0] < turn:
                self.check()
                spins += 1
                if spins % SPINS == 0:
                    os.sched_yield()  # it may be the one that waits for this processor
                    if time.monotonic() > end:
                        raise Stalled(f"rank {other} did not come within {self.timeout_s:g} s")
        self._order()

    def gather(self, values):
        """What every rank shows, on every rank."""
        mine = self._values[self.rank]
        for at, value in enumerate(values):
            mine[at] = value
        self.barrier()
        shown = [list(table[:len(values)]) for table in self._values]
        self.barrier()
        return shown
