"""Check of whole passes, as the model runner runs them in the KV store's own pages.

The other checks test operations one by one. This one tests everything between them: CUDA graphs,
page tables, padding, the head and the sampler. Random keys and values fill a context of the maximal
length, in pages that no request uses. Probe tokens decode at several positions of it, up to the
last. Each has a last page of its own:

    the context's pages   [ 17 | 4 | 90 | 33 | ... ]        shuffled, shared, only read
    probe at position p   [ 17 | 4 | 61 ]                   61: a copy of page 90; the probe writes its own slot there

Each probe's result in a reference pass is compared with its result among other neighbours, at other
places, in other pages and in passes of other sizes: its token, the bits of its logprob and logits,
and its keys and values in every layer. The pages are zeroed at the end.
"""

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.certification.certificate import CheckSteps, OperationCheck
from holdfast.certification.certification import AllPages
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import Pass, PassKind, PassResult, Sampled, Sampling, Span, SpanState, StepPlan
from holdfast.numerics.arrays import Tensor, arrays_on
from holdfast.numerics.bits import bits_of
from holdfast.numerics.forward_batch import KVLayer

PASS_SIZES = (1, 8, 32, 256, 512, 8192)
_LONG_PASS_SIZES = (1, 512)  # at the longest context, where a pass takes long
_NUM_PROBES = 8
_MAX_OWN_PAGES = 1024  # for probes and neighbours
_MAX_NEIGHBOUR_POSITION = 1000
_NUM_REPLAYED = 2  # tokens before a probe that recurrent layers compute again
_SHORT_CONTEXT = 4000
_SAMPLING_PARAMS = (
    SamplingParams(temperature=0.0, logprobs=0),  # takes a head graph
    SamplingParams(temperature=0.0, logprobs=2),
    SamplingParams(temperature=0.8, top_p=0.95, seed=7),
)


class PassRunner(Protocol):
    """The part of a model runner that this check needs."""

    def run(self, plan: StepPlan) -> list[PassResult]: ...


@dataclass(frozen=True)
class PassBench:
    """Where passes are checked: a model runner, the KV layers it writes to, their sizes, and the
    pages and slots of recurrent states that may be used."""

    runner: PassRunner
    layers: Sequence[KVLayer]
    page_size: int
    vocab_size: int
    reference_tokens: int
    lender: AllPages
    state_slots: Sequence[int] = ()  # none if no layer is recurrent

    def num_wanted(self, max_len: int) -> int:
        """Return the pages of a context of this length, and those of probes and neighbours."""
        return -(-max_len // self.page_size) + _MAX_OWN_PAGES

    def borrow(self, max_len: int) -> Generator[None, None, Sequence[int]]:
        """Wait until pages are lent."""
        while not (pages := self.lender.lend(self.num_wanted(max_len))):
            yield
        return pages


def check_passes(
    bench: PassBench,
    max_pass_tokens: int,
    max_len: int,
    canonical_sizes: Sequence[int] = (),
    sizes: Sequence[int] = PASS_SIZES,
) -> CheckSteps:
    """Return the pass sizes that differ. 0 stands for canonical passes, whose sizes are multiples of
    the reference's."""
    sizes = tuple(size for size in sizes if size <= max_pass_tokens)
    canonical = sorted({bench.reference_tokens, *canonical_sizes})
    trials = [_Trial(0, size, certified=False) for size in canonical if size <= max_pass_tokens]
    trials += [_Trial(size, size, certified=True) for size in sizes]
    differing: set[int] = set()
    compared = 0
    lengths: set[int] = set()
    # A large pass at the longest context may not fit a CUDA graph. A short context tests its graph.
    for length in sorted({max_len, min(max_len, _SHORT_CONTEXT)}):
        context = _ProbeContext(bench, length, (yield from bench.borrow(length)))
        try:
            yield
            is_long = length > _SHORT_CONTEXT
            some = [one for one in trials if not is_long or not one.label or one.size in _LONG_PASS_SIZES]
            settings = _SAMPLING_PARAMS[:1] if is_long else _SAMPLING_PARAMS
            found, count = yield from _run_trials(context, bench.reference_tokens, some, settings)
        finally:
            context.clear()
            bench.lender.take_back()
        differing |= found
        compared += count
        lengths.add(context.length)
    shape = f"{len(bench.layers)} layers, context {' and '.join(map(str, sorted(lengths)))}"
    return OperationCheck("pass", shape, sizes, tuple(sorted(differing)), compared)


@dataclass(frozen=True)
class _Trial:
    """A pass of some size, certified or canonical, and the size it is reported as."""

    label: int
    size: int
    certified: bool


def _run_trials(
    context: "_ProbeContext",
    reference_tokens: int,
    trials: Sequence[_Trial],
    settings: Sequence[SamplingParams],
) -> Generator[None, None, tuple[set[int], int]]:
    """Return the labels of the trials that differ, and how many probes were compared."""
    differing: set[int] = set()
    compared = 0
    for number, params in enumerate(settings):
        expected = context.run(params, reference_tokens, certified=False, turn=number)
        for trial in trials:
            found = context.run(params, trial.size, certified=trial.certified, turn=trial.size + number + 1)
            compared += len(found)
            if not _same(found, expected):
                differing.add(trial.label)
            yield
    return differing, compared


@dataclass(frozen=True)
class _ProbeResult:
    """What a pass computed for one probe."""

    sampled: Sampled
    slots: Tensor  # the bits of its keys and values in every layer


class _ProbeContext:
    """The shared context, the probes' positions in it, and the pages of probes and neighbours."""

    def __init__(self, bench: PassBench, max_len: int, lent: Sequence[int]) -> None:
        self._bench, self._max_len = bench, max_len
        self._rng = random.Random(11)
        pages = list(lent)
        self._rng.shuffle(pages)
        pages = pages[: bench.num_wanted(max_len)]
        num_own = min(_MAX_OWN_PAGES, max(1, len(pages) // 2))
        self._own, self._pages = pages[:num_own], pages[num_own:]
        if not self._pages:
            self._pages = self._own[-1:]  # a store of one page: probes read the page they write
        self.length = max(1, min(max_len, len(self._pages) * bench.page_size))
        xp = self._arrays = arrays_on(bench.layers[0].keys.device)
        self._all = xp.tensor(sorted({*self._own, *self._pages}))
        last = self.length - 1
        wanted = (last, last - 1, last // 2 + 1, 3 * last // 4, 1025, 257, bench.page_size, 0)
        self._positions = [min(max(0, position), last) for position in wanted]
        self._tokens = [self._rng.randrange(bench.vocab_size) for _ in self._positions]
        self._kv = [layer for layer in bench.layers if len(layer.keys)]
        self._states = [layer.states for layer in bench.layers if layer.states is not None]
        self._slots_of_states = xp.tensor(bench.state_slots, dtype=xp.int64)
        self._fill()
        self._logs = [states.log[self._slots_of_states] for states in self._states]

    def clear(self) -> None:
        """Zero all pages that the check wrote."""
        for layer in self._kv:
            for tensor in (layer.keys, layer.values):
                tensor.index_fill_(0, self._all, 0)
        for states in self._states:
            for tensor in (states.state, states.log):
                tensor.index_fill_(0, self._slots_of_states, 0)

    def run(self, params: SamplingParams, size: int, *, certified: bool, turn: int) -> list[_ProbeResult]:
        """Return the results of all probes, in passes of this size."""
        most = min(_NUM_PROBES, size, len(self._own))
        if self._states:
            most = min(most, len(self._bench.state_slots))
        order = [(turn + index) % _NUM_PROBES for index in range(_NUM_PROBES)]
        found: dict[int, _ProbeResult] = {}
        for start in range(0, _NUM_PROBES, most):
            found |= self._run_pass(order[start : start + most], params, size, certified, turn)
        return [found[probe] for probe in range(_NUM_PROBES)]

    def _run_pass(
        self, probes: Sequence[int], params: SamplingParams, size: int, certified: bool, turn: int
    ) -> dict[int, _ProbeResult]:
        own = self._own[turn % len(self._own) :] + self._own[: turn % len(self._own)]
        spans = {probe: self._probe(probe, own[index], params) for index, probe in enumerate(probes)}
        self._prepare(spans)
        others = self._neighbours(own[len(probes) :], size - len(probes), params, chunk=turn % 2 == 0)
        placed = self._seat(list(spans.values()), others)
        one = Pass(PassKind.CANONICAL, tuple(placed), size, certified=certified)
        (result,) = self._bench.runner.run(StepPlan((one,)))
        samples = dict(zip((span.request_id for span in placed), result.samples, strict=True))
        return {probe: _ProbeResult(samples[probe][0], self._slots(span)) for probe, span in spans.items()}

    def _probe(self, probe: int, own: int, params: SamplingParams) -> Span:
        position = self._positions[probe]
        before = self._pages[: position // self._bench.page_size]
        return _span(
            probe,
            position,
            (self._tokens[probe],),
            (*before, own),
            params,
            with_checksums=bool(params.logprobs),
            state=self._state(probe, position),
        )

    def _state(self, probe: int, position: int) -> SpanState | None:
        """Return where the probe's recurrent state is: at a checkpoint some positions before, which stays.
        Neighbours have none."""
        if not self._states:
            return None
        checkpoint = max(0, position - _NUM_REPLAYED)
        return SpanState(
            self._bench.state_slots[probe % len(self._bench.state_slots)], checkpoint, checkpoint
        )

    def _neighbours(
        self, own: Sequence[int], room: int, params: SamplingParams, *, chunk: bool
    ) -> list[Span]:
        """Decode tokens at other positions, in every second pass a prompt chunk, and room for a
        few tokens of padding."""
        page_size = self._bench.page_size
        spans: list[Span] = []
        room -= min(3, room // 4)
        number = _NUM_PROBES
        if chunk and room > 4:
            length = min(room // 2, len(own) // 2 * page_size, self._max_len)
            if length:
                pages = own[: -(-length // page_size)]
                own, room = own[len(pages) :], room - length
                spans.append(
                    _span(number, 0, self._random_tokens(length), tuple(pages), params, samples=False)
                )
        for page in own[:room]:
            number += 1
            position = self._rng.randrange(min(_MAX_NEIGHBOUR_POSITION, self.length))
            before = self._pages[: position // page_size]
            spans.append(_span(number, position, self._random_tokens(1), (*before, page), params))
        return spans

    def _random_tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._rng.randrange(self._bench.vocab_size) for _ in range(count))

    def _seat(self, probes: list[Span], others: list[Span]) -> list[Span]:
        """Return the probes spread among their neighbours: the first at the start, the last at the end."""
        placed: list[Span] = []
        per_probe = -(-len(others) // max(1, len(probes) - 1))
        for index, probe in enumerate(probes):
            placed.append(probe)
            placed += others[index * per_probe : (index + 1) * per_probe] if index < len(probes) - 1 else ()
        return placed if len(probes) > 1 else [*others[::2], *probes, *others[1::2]]

    def _fill(self) -> None:
        generator = self._arrays.generator(3)
        for layer in self._kv:
            for tensor in (layer.keys, layer.values):
                shape = (len(self._all), *tensor.shape[1:])
                numbers = self._arrays.randn(shape, generator=generator).to(tensor.dtype)
                tensor.index_copy_(0, self._all, numbers)
        for states in self._states:
            for tensor in (states.state, states.log):
                shape = (len(self._slots_of_states), *tensor.shape[1:])
                numbers = self._arrays.randn(shape, generator=generator).to(tensor.dtype)
                tensor.index_copy_(0, self._slots_of_states, numbers)

    def _prepare(self, spans: dict[int, Span]) -> None:
        """Copy the context into each probe's own page. The pass overwrites one slot of it, and one entry of the
        log of a recurrent state."""
        for states, log in zip(self._states, self._logs, strict=True):
            states.log.index_copy_(0, self._slots_of_states, log)
        page_size = self._bench.page_size
        pages = [
            (self._pages[self._positions[probe] // page_size], span.pages[-1])
            for probe, span in spans.items()
        ]
        source, target = (self._arrays.tensor(each) for each in zip(*pages, strict=True))
        for layer in self._kv:
            for tensor in (layer.keys, layer.values):
                tensor.index_copy_(0, target, tensor.index_select(0, source))

    def _slots(self, span: Span) -> Tensor:
        page, offset = span.pages[-1], span.start % self._bench.page_size
        parts = [
            part
            for layer in self._kv
            for part in (layer.keys[page, :, :, offset], layer.values[page, :, offset])
        ]
        return bits_of(self._arrays.stack(parts))


def _span(
    number: int,
    start: int,
    token_ids: tuple[int, ...],
    pages: tuple[int, ...],
    params: SamplingParams,
    *,
    samples: bool = True,
    with_checksums: bool = False,
    state: SpanState | None = None,
) -> Span:
    return Span(
        request_id=number,
        start=start,
        token_ids=token_ids,
        pages=pages,
        sample_from=0 if samples else len(token_ids),
        sampling=Sampling(params, seed=params.seed or 0, prompt_len=0),
        logprobs=params.logprobs,
        with_checksums=with_checksums,
        state=state,
    )


def _same(found: Sequence[_ProbeResult], expected: Sequence[_ProbeResult]) -> bool:
    sampled = all(one.sampled == other.sampled for one, other in zip(found, expected, strict=True))
    pairs = zip(found, expected, strict=True)
    return sampled and all(bool((one.slots == other.slots).all()) for one, other in pairs)
