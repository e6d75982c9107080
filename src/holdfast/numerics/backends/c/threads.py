"""How many threads compute: as many as get a core at this moment.

Threads wait for each other after every operation. Where another process wants a core too, each of these
waits lasts until the system lets the slowest thread run, and one thread fewer is faster: on two cores
beside one busy process ten times. Linux counts for each thread how long it was ready and had no core, and
for each core how long it was idle: more threads are tried where cores are free. No bit depends on the number
of threads.
"""

import math
import os
import time
from collections.abc import Callable, Sequence

import numpy as np

from holdfast.numerics.backends.c.kernels import CKernels

_WINDOW = 0.05  # seconds over which waiting is counted, at least
_MOST_WAITING = 0.3  # threads that wait for a core, on average; with more there are too many
_FIRST_TRIAL, _LAST_TRIAL = 0.2, 8.0  # seconds until more threads are tried again; doubled each time in vain
_ENOUGH_FREE = 0.5  # of a core, to try one thread more

CountWaiting = Callable[[int], float | None]
CountUsable = Callable[[], float | None]


class ThreadCount:
    """Chooses the number of threads between operations. Used by one thread.

    count_waiting returns the seconds for which so many threads have waited since they were started,
    count_usable the seconds for which cores have computed for this process or for nobody; None where the
    system does not say.
    """

    def __init__(
        self,
        most: int,
        count_waiting: CountWaiting,
        count_usable: CountUsable,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.now = self._most = most
        self._count_waiting, self._count_usable, self._clock = count_waiting, count_usable, clock
        self._since, self._waited = clock(), 0.0
        self._trial_after, self._trial_at, self._blind_trial_at = _FIRST_TRIAL, 0.0, 0.0
        self._usable_since, self._usable = 0.0, 0.0
        self._is_off = most == 1

    def update(self) -> int:
        """Return how many compute the next operation: fewer if some waited for a core, at times more again."""
        now = self._clock()
        if not self._is_off and now - self._since >= _WINDOW:
            self._choose(now)
        return self.now

    def _choose(self, now: float) -> None:
        waited = self._count_waiting(self.now)
        if waited is None:
            self._is_off, self.now = True, self._most
            return
        waiting = (waited - self._waited) / (now - self._since)
        self._since, self._waited = now, waited
        if waiting > _MOST_WAITING and self.now > 1:
            self._take(max(1, self.now - max(1, round(waiting))))
            self._free_cores(now)
            self._trial_at, self._blind_trial_at = now + self._trial_after, now + _LAST_TRIAL
            self._trial_after = min(2 * self._trial_after, _LAST_TRIAL)
        elif self.now == self._most:
            self._trial_after = _FIRST_TRIAL
        elif now >= self._trial_at:
            self._try_more(now)

    def _try_more(self, now: float) -> None:
        """Take a thread more for each free core. Others may give way: try it blindly after a long time."""
        free = self._free_cores(now)
        if free is None:
            self._take(min(self._most, 2 * self.now))
        elif free >= _ENOUGH_FREE:
            self._take(min(self._most, self.now + math.floor(free + _ENOUGH_FREE)))
        elif now >= self._blind_trial_at:
            self._trial_after = _FIRST_TRIAL
            self._take(min(self._most, 2 * self.now))
        else:
            self._trial_at = now + _FIRST_TRIAL

    def _free_cores(self, now: float) -> float | None:
        """Return how many cores more than it has threads the process could have used since the last call."""
        usable = self._count_usable()
        if usable is None:
            return None
        seconds, gained = now - self._usable_since, usable - self._usable
        self._usable_since, self._usable = now, usable
        return gained / seconds - self.now

    def _take(self, number: int) -> None:
        self.now = number
        self._waited = self._count_waiting(number) or 0.0
        self._since = self._clock()


def waiting_counter(kernels: CKernels) -> CountWaiting:
    """Return a function that reads the system's counters of the threads of this thread's pool."""
    pool: list[int] = []

    def count(number: int) -> float | None:
        if kernels.end_pool is None:
            return None  # threads too many would go on spinning
        if number != len(pool):
            if number < len(pool):
                kernels.end_pool()
            ids = np.zeros(number, np.int64)
            kernels.run.thread_ids(ids.ctypes.data, number)
            pool[:] = ids.tolist()
        return _seconds_waited(pool)

    return count


def _seconds_waited(ids: Sequence[int]) -> float | None:
    total = 0
    for each in ids:
        try:
            with open(f"/proc/self/task/{each}/schedstat", encoding="ascii") as file:
                total += int(file.read().split()[1])
        except (OSError, ValueError, IndexError):
            return None
    return total * 1e-9


def usable_seconds() -> float | None:
    """Return the time for which the cores that this process may use were idle, and its own CPU time."""
    try:
        cores = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        with open("/proc/stat", encoding="ascii") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
        idle = sum(int(line[4]) + int(line[5]) for line in lines if line[0] in cores)
        return idle / os.sysconf("SC_CLK_TCK") + time.process_time()
    except (AttributeError, OSError, ValueError, IndexError):
        return None
