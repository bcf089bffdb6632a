"""How much of a timeout is used up, counted as the C library counts (src/base/timer.h)."""
import time

_LEAST_STEP_S = 0.02
_ALERT_STEP_S = 0.05  # for who may be cancelled


class Timer:
    """Only time in which this process ran counts: a step between two looks that lasted far
    longer than any sleep was a freeze (docker pause, SIGSTOP), and counts as one short step.
    `alert`, if given, is called at every look and may raise."""

    def __init__(self, seconds, alert=None):
        self.seconds, self._used_s, self._alert = seconds, 0.0, alert
        self._step_s = min(max(seconds / 16, _LEAST_STEP_S), seconds / 2)
        self._seen = time.monotonic()

    def step(self):
        """Looks at the clock.  Returns how long to sleep, or to wait for a socket, at most before
        the next look; TimeoutError when nothing is left."""
        if self._alert is not None:
            self._alert()
        now = time.monotonic()
        self._used_s += min(now - self._seen, self._step_s)
        self._seen = now
        if self._used_s >= self.seconds:
            raise TimeoutError
        step_s = min(self.seconds - self._used_s, self._step_s)
        return step_s if self._alert is None else min(step_s, _ALERT_STEP_S)

    def call(self, peer, function, *arguments):
        """A socket's function, until it has something to return."""
        while True:
            peer.settimeout(self.step())
            try:
                return function(*arguments)
            except TimeoutError:
                pass  # of this step
