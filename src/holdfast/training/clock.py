"""How long a step takes, looked at twice: when it is warm, and when whoever else uses the machine is warm too."""

import statistics
import time
from itertools import pairwise

import torch

_LOOKS = (50, 400)  # steps
_TIMED = 20  # steps before a look
_MARGIN = 0.03  # of the time, for saving and for what cannot be foreseen


class Clock:
    """Begins when it is made: a run that is resumed before its last look has all its minutes anew."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._began = device, time.monotonic()
        self._ends: list[float] = []

    def is_due(self, step: int) -> bool:
        """Called after every step: whether the number of steps is to be set now."""
        if any(look - _TIMED <= step <= look for look in _LOOKS):
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            self._ends.append(time.monotonic())
        return step in _LOOKS and len(self._ends) > 1

    def is_last_look(self, step: int) -> bool:
        return step >= _LOOKS[-1]

    def step_time(self) -> float:
        """The median of the last steps, in seconds."""
        ends = self._ends[-_TIMED - 1 :]
        return statistics.median(b - a for a, b in pairwise(ends))

    def left(self, minutes: float) -> float:
        """Seconds."""
        return minutes * 60 * (1 - _MARGIN) - (time.monotonic() - self._began)
