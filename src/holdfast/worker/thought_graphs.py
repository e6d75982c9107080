"""T as CUDA graphs: one for each number of chunks and each of a thought's first tokens; what comes behind is not captured.

    slots [n, c] ── rows ── T's first token ── said[0] ── T's next ── said[1] ── ...
                            graph (n, 0)                 graph (n, 1)

All chunks go on as long as one of them does; what a chunk says behind its end is not read. The host looks at every token:
most thoughts are trivial, and end with the first.
"""

import torch
from torch import Tensor

from holdfast.core.step_plan import ThoughtIds
from holdfast.thinking.blocks import MAX_CHUNKS, ThoughtBlocks
from holdfast.worker.cuda_graphs import Recorder, Work, no_collection

_SIZES = (1, 2, 4, 8, 16, 32, 64, MAX_CHUNKS)
_MOST_TOKENS = 8


class ThoughtGraphs:
    """T of one model over what it reads of every slot, rows [slots + 1, hidden]; the last is nobody's."""

    def __init__(self, blocks: ThoughtBlocks, rows: Tensor, recorder: Recorder) -> None:
        config = blocks.config
        self._blocks, self._rows, self._config = blocks, rows, config
        most, device = _SIZES[-1], rows.device
        self._slots = torch.full((most, config.chunk), -1, dtype=torch.int64, device=device)
        self._said = torch.zeros((config.max_thought, most), dtype=torch.int64, device=device)
        self._graphs: dict[tuple[int, int, bool], Work] = {}
        with no_collection():
            for size in reversed(_SIZES):
                for canonical in (False, True):
                    for count in range(min(config.max_thought, _MOST_TOKENS)):
                        work = self._work(size, count, canonical)
                        self._graphs[size, count, canonical] = recorder.record(work)

    def think(self, slots: Tensor, *, canonical: bool) -> list[ThoughtIds]:
        """What is thought behind n chunks, slots int64 [n, c]."""
        return [
            thought for some in torch.split(slots, _SIZES[-1]) for thought in self._think(some, canonical)
        ]

    def _think(self, slots: Tensor, canonical: bool) -> list[ThoughtIds]:
        n = len(slots)
        size = next(size for size in _SIZES if size >= n)
        self._slots[:n].copy_(slots)
        thoughts: list[list[int]] = [[] for _ in range(n)]
        open_ones = set(range(n))
        for count in range(self._config.max_thought):
            graph = self._graphs.get((size, count, canonical))
            (graph or self._work(size, count, canonical))()
            for which, token_id in enumerate(self._said[count, :n].tolist()):
                if which not in open_ones:
                    continue
                if token_id == self._config.end_id:
                    open_ones.remove(which)
                else:
                    thoughts[which].append(token_id)
            if not open_ones:
                break
        return [tuple(thought) for thought in thoughts]

    def _work(self, size: int, count: int, canonical: bool) -> Work:
        said = self._said[count, :size]

        def work() -> None:
            if count:
                found = self._blocks.next_token(self._said[count - 1, :size], count, canonical=canonical)
            else:
                found = self._blocks.first_token(self._rows[self._slots[:size]], canonical=canonical)
            said.copy_(found)

        return work
