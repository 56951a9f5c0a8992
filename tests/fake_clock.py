"""A clock that tests set, in place of the system's clock; repeated actions run at its times."""

from contextlib import contextmanager


class FakeClock:
    """Time that only `advance` changes."""

    def __init__(self):
        self.now_s = 100.0
        self._timers = []

    def monotonic(self):
        return self.now_s

    perf_counter = monotonic

    def sleep(self, seconds):
        self.advance(seconds)

    @contextmanager
    def repeated(self, work, period_s):
        timer = [self.now_s + period_s, period_s, work]
        self._timers.append(timer)
        try:
            yield
        finally:
            self._timers.remove(timer)

    def advance(self, seconds):
        end_s = self.now_s + seconds
        while self._timers and (timer := min(self._timers, key=lambda one: one[0]))[0] <= end_s + 1e-9:
            self.now_s, period_s, work = timer
            timer[0] += period_s
            work()
        self.now_s = end_s
