"""Check of recurrences: results and states are the same in chunks of any size, among any number of decode
tokens, in windows after replayed tokens, in any slot."""

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.certification.certificate import CheckSteps, OperationCheck
from holdfast.certification.checks.probes import Differences
from holdfast.numerics.arrays import Tensor, arrays_on
from holdfast.numerics.forward_batch import ForwardBatch, RecurrentBatch, StateLayer
from holdfast.numerics.ops import Backend
from holdfast.numerics.recurrence import Recurrence, run_recurrence

_LOG_LEN, _NUM_SLOTS = 16, 16
_WINDOW, _REJECTED = 5, 2  # candidates, and how many of them are rejected
_DECODE_COUNTS = (1, 2, 3, 7, 8, 16, 31, 32, 33, 64, 100, 128, 255, 256, 257, 512)
_QUICK_COUNTS = (1, 3)

_SpanState = tuple[int, int, int, int]  # slot, start, checkpoint, store


def check_recurrence(
    backend: Backend, weights: Recurrence, sizes: tuple[int, ...], *, name: str, is_quick: bool = False
) -> CheckSteps:
    """Check the tokens of one request, computed in chunks of the reference's size, then in passes of every
    size. is_quick: with few numbers of decode tokens."""
    rows, is_short = backend.recipe.rows, backend.can.is_interpreted
    bench = _Bench(backend, weights, 2 * _WINDOW + 1 if is_short else 2 * rows + 9)
    differences = Differences()
    reference = bench.chunked(rows, 0)
    for size in sizes if not is_short else sizes[:1]:
        label = 0 if size % rows == 0 else size
        bench.compare(bench.chunked(size, _NUM_SLOTS - 1), reference, label, differences)
        yield
    counts = _QUICK_COUNTS if is_quick or is_short else _DECODE_COUNTS
    for count in (count for count in counts if count <= max(2 * rows, sizes[-1])):
        bench.check_decode(count, reference, differences)
        yield
    bench.check_window(reference, differences)
    shape = "x".join(map(str, weights.state_shape)) if weights.state_shape[0] else f"[{weights.output_width}]"
    differing = tuple(sorted(differences.labels()))
    return OperationCheck(name, shape, sizes, differing, differences.num_comparisons)


@dataclass(frozen=True)
class _Results:
    """Of a request: the results of its tokens, and the state after all of them."""

    outputs: Tensor  # [context, output_width]
    state: Tensor  # fp32 [heads * rows, columns]


class _Bench:
    """One probe request. Other slots and padding hold what is no number."""

    def __init__(self, backend: Backend, weights: Recurrence, context: int) -> None:
        self._backend, self._weights, self._context = backend, weights, context
        xp = self._arrays = arrays_on(backend.device)
        shape = (context + 1, weights.input_width)
        inputs = xp.randn(shape, generator=xp.generator(11))
        inputs[context] = float("nan")
        self._inputs = inputs.to(xp.dtype(backend.recipe.dtype))

    def chunked(self, size: int, slot: int) -> _Results:
        """Run the request in chunks, each in a pass padded to `size` tokens."""
        layer, outputs = self._new_layer(), []
        for start in range(0, self._context, size):
            stop = min(start + size, self._context)
            outputs.append(self._pass(layer, [(slot, start, start, stop)], [(start, stop)], size))
        return _Results(self._arrays.cat(outputs), layer.state[slot].flatten(0, 1))

    def compare(self, found: _Results, expected: _Results, label: int, differences: Differences) -> None:
        differences.compare(label, found.outputs, expected.outputs)
        differences.compare(label, found.state, expected.state)

    def check_decode(self, count: int, reference: _Results, differences: Differences) -> None:
        """The last token in `count` spans, after two replayed tokens. Those of one slot store nothing."""
        last, slots = self._context - 1, min(count, _NUM_SLOTS)
        layer = self._new_layer()
        self._pass(layer, [(0, 0, 0, last - 2)], [(0, last)], last)
        for tensor in (layer.state, layer.log):
            tensor[:slots] = tensor[:1].clone()
        spans = [(index % slots, last, last - 2, last - 2) for index in range(count)]
        found = self._pass(layer, spans, [(last, last + 1)] * count, count)
        differences.compare(0, found, reference.outputs[-1:].expand(count, -1))
        self._pass(layer, [(slots - 1, last, last - 2, last + 1)], [(last, last + 1)], 1)
        differences.compare(0, layer.state[slots - 1].flatten(0, 1), reference.state)

    def check_window(self, reference: _Results, differences: Differences) -> None:
        """Candidates of which the last are rejected, a window that replays the others, and a decode token
        beside another request; then the rest."""
        begin = min(_WINDOW, self._context - 2 * _WINDOW)
        layer, accepted = self._new_layer(), begin + _WINDOW - _REJECTED
        first = self._pass(layer, [(3, 0, 0, begin)], [(0, begin)], begin)
        rejected = [(3, begin, begin, begin)], [(begin, accepted), *[(0, 1)] * _REJECTED]
        second = self._pass(layer, rejected[0], rejected[1], begin + _WINDOW)[: accepted - begin]
        third = self._pass(
            layer,
            [(3, accepted, begin, accepted), (1, 0, 0, 2)],
            [(accepted, accepted + 1), (0, 2)],
            7,
        )[:1]
        stop = self._context
        rest = self._pass(layer, [(3, accepted + 1, accepted, stop)], [(accepted + 1, stop)], stop)
        found = _Results(self._arrays.cat((first, second, third, rest)), layer.state[3].flatten(0, 1))
        self.compare(found, reference, 0, differences)

    def _new_layer(self) -> StateLayer:
        layer = self._backend.new_state_layer(_NUM_SLOTS, _LOG_LEN, self._weights)
        for tensor in (layer.state, layer.log):
            tensor.fill_(float("nan"))
        return layer

    def _pass(
        self,
        layer: StateLayer,
        states: Sequence[_SpanState],
        positions: Sequence[tuple[int, int]],
        num_tokens: int,
    ) -> Tensor:
        """Run a pass of spans, each with its positions of the probe request, padded to `num_tokens`. The last
        span has all that follow it. Return the results of its tokens."""
        xp = self._arrays
        at = [position for start, stop in positions for position in range(start, stop)]
        ends = [0]
        for start, stop in positions[: len(states) - 1]:
            ends.append(ends[-1] + stop - start)
        ends.append(len(at))
        spans = [(*state, *ends[index : index + 2]) for index, state in enumerate(states)]
        padded = [*at, *[self._context] * (num_tokens - len(at))]
        none = xp.zeros(len(padded), dtype=xp.int64)
        recurrent = RecurrentBatch(
            xp.tensor(spans, dtype=xp.int32),
            sum(start - checkpoint for _, start, checkpoint, _ in states),
        )
        starts = xp.tensor([0, len(at)], dtype=xp.int32)
        batch = ForwardBatch(none, none, none, starts, none[None, :1].to(xp.int32), recurrent=recurrent)
        x = self._inputs.index_select(0, xp.tensor(padded))
        return run_recurrence(self._backend, x, self._weights, layer, batch)[: len(at)]
