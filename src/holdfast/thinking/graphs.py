"""T as CUDA graphs: one for each number of chunks and each of the first tokens of a thought.

    slots [n, c] ── residuals ── T's first token ── tokens[0] ── T's next ── tokens[1] ── ...
                                 graph (n, 0)                    graph (n, 1)

All chunks continue as long as one of them does; tokens after a chunk's end token are not read. The
host reads every token: most thoughts are trivial and end with the first.
"""

from holdfast.core.results import ThoughtIds
from holdfast.numerics.arrays import Tensor, arrays_on
from holdfast.thinking.blocks import MAX_CHUNKS, ThoughtBlocks
from holdfast.worker.cuda_graphs import Recorder, Work, gc_paused

_SIZES = (1, 2, 4, 8, 16, 32, 64, MAX_CHUNKS)
_MAX_CAPTURED_TOKENS = 8


class ThoughtGraphs:
    """T of one model. It reads residuals [slots + 1, hidden]; the last row belongs to no slot."""

    def __init__(self, blocks: ThoughtBlocks, residuals: Tensor, recorder: Recorder) -> None:
        config = blocks.config
        self._blocks, self._residuals, self._config = blocks, residuals, config
        most, xp = _SIZES[-1], arrays_on(residuals.device)
        self._slots = xp.full((most, config.chunk), -1, dtype=xp.int64)
        self._tokens = xp.zeros((config.max_thought, most), dtype=xp.int64)
        self._graphs: dict[tuple[int, int, bool], Work] = {}
        with gc_paused():
            for size in reversed(_SIZES):
                for canonical in (False, True):
                    for count in range(min(config.max_thought, _MAX_CAPTURED_TOKENS)):
                        work = self._work(size, count, canonical)
                        self._graphs[size, count, canonical] = recorder.record(work)

    def think(self, slots: Tensor, *, canonical: bool) -> list[ThoughtIds]:
        """Return the thoughts after n chunks. slots: int64 [n, c]."""
        return [
            thought
            for some in arrays_on(slots.device).split(slots, _SIZES[-1])
            for thought in self._think(some, canonical)
        ]

    def _think(self, slots: Tensor, canonical: bool) -> list[ThoughtIds]:
        n = len(slots)
        size = next(size for size in _SIZES if size >= n)
        self._slots[:n].copy_(slots)
        thoughts: list[list[int]] = [[] for _ in range(n)]
        unfinished = set(range(n))
        for count in range(self._config.max_thought):
            graph = self._graphs.get((size, count, canonical))
            (graph or self._work(size, count, canonical))()
            for chunk, token_id in enumerate(self._tokens[count, :n].tolist()):
                if chunk not in unfinished:
                    continue
                if token_id == self._config.end_id:
                    unfinished.remove(chunk)
                else:
                    thoughts[chunk].append(token_id)
            if not unfinished:
                break
        return [tuple(thought) for thought in thoughts]

    def _work(self, size: int, count: int, canonical: bool) -> Work:
        tokens = self._tokens[count, :size]

        def work() -> None:
            if count:
                found = self._blocks.next_token(self._tokens[count - 1, :size], count, canonical=canonical)
            else:
                found = self._blocks.first_token(self._residuals[self._slots[:size]], canonical=canonical)
            tokens.copy_(found)

        return work
