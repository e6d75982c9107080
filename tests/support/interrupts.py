"""Raise an interrupt at a chosen line of the program, as a signal would.

    with interrupt_at(120, "engine/", "scheduler/"):
        llm.generate(...)

A trace function counts the lines that run in these files of the package and raises at the given one.
"""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import holdfast

_ROOT = str(Path(holdfast.__file__).parent)


class Interrupted(KeyboardInterrupt):
    """Raised by the trace function."""


@contextmanager
def interrupt_at(line: int, *paths: str, again_after: int | None = None) -> Iterator[None]:
    """Raise at the line-th line that runs in files below these paths, and once more later."""
    prefixes = tuple(f"{_ROOT}/{path}" for path in paths)
    left = [line, *([] if again_after is None else [again_after])]

    def trace_line(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line" and left:
            left[0] -= 1
            if left[0] == 0:
                del left[0]
                if left:
                    sys.settrace(trace_call)  # raising ends the trace
                raise Interrupted
        return trace_line

    def trace_call(frame: FrameType, event: str, _: Any) -> Any:
        return trace_line if frame.f_code.co_filename.startswith(prefixes) else None

    before = sys.gettrace()
    gc.disable()  # an interrupt in a finaliser is printed, not raised
    sys.settrace(trace_call)
    try:
        yield
    finally:
        sys.settrace(before)
        gc.enable()
