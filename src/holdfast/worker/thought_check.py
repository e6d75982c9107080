"""The part of a check that is about thinking: what T reads of the rows, what is thought behind the chunks that end among
them, and the states made of it must be those of the first time, bit for bit.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from holdfast.core.step_plan import Pass
from holdfast.worker.input_batch import Ints
from holdfast.worker.thought_runner import ThoughtRunner
from holdfast.worker.transfer import HostCopies, send_array


class ThoughtCheck:
    """One check over scratch pages that stand for the originals."""

    def __init__(self, one: Pass, thinker: ThoughtRunner, page_size: int) -> None:
        (span,) = one.spans
        self._one, self._span, self._thinker = one, span, thinker
        before = len(span.pages) - len(one.original_pages)
        pages = np.stack((np.array(span.pages[before:]), np.array(one.original_pages)))  # [2, pages]
        c = thinker.chunk

        def slots(positions: Ints) -> Tensor:
            """Where these are written again, and where they were first: [2, positions]."""
            numbers = pages[:, positions // page_size - before] * page_size + positions % page_size
            return send_array(numbers, thinker.rows.device)

        self._pages = send_array(pages, thinker.rows.device)
        self._rows = slots(np.arange(span.start, span.stop))
        self._chunks = slots(
            np.arange(span.start // c * c, span.stop // c * c)
        )  # those that end among the rows

    def prepare(self) -> None:
        """Whole pages are copied; the rows' own slots get one wrong bit in every number."""
        scratch, originals = self._pages
        self._thinker.copy_pages(originals, scratch)
        bits_of(self._thinker.rows)[self._rows[0]] ^= 1

    def compare(self, up: HostCopies) -> Callable[[], str | None]:
        """Behind the pass. What is returned reads the first place where something differs, or None."""
        span, thinker = self._span, self._thinker
        (found,) = thinker.finish(self._one, canonical=True)
        rows = up.take(self._rows_differ())  # bool [rows]
        states = up.take(self._states_differ())  # bool [chunks]

        def read() -> str | None:
            for (row,) in rows.nonzero()[:1].tolist():
                return f"what is thought about at position {span.start + row}"
            first = span.start // thinker.chunk
            told = (*span.guesses, *found[len(span.guesses) :])  # behind the last row none is guessed
            for place, differs in enumerate(states.tolist()):
                if differs or found[place] != told[place]:
                    return f"the thought behind position {(first + place + 1) * thinker.chunk - 1}"
            return None

        return read

    def _rows_differ(self) -> Tensor:
        again, first = bits_of(self._thinker.rows)[self._rows].unbind()
        return (again != first).any(1)

    def _states_differ(self) -> Tensor:
        """Where nothing was thought no state is read."""
        again, first = bits_of(self._thinker.states)[self._chunks].unbind()
        told_again, told_first = self._thinker.told[self._chunks].unbind()
        differs = (told_again != told_first) | (told_first & (again != first).any(1))
        return differs.view(-1, self._thinker.chunk).any(1)


_AS_INTEGER = {2: torch.int16, 4: torch.int32}


def bits_of(tensor: Tensor) -> Tensor:
    """The same numbers as integers: -0 is not 0, and a NaN equals itself."""
    return tensor.view(_AS_INTEGER[tensor.dtype.itemsize])
