"""Whole passes, as the runner runs them, in the store's own pages: do they give a row the reference's bits?

Operations are certified one by one elsewhere; this is about everything between them: captured graphs, page tables, padding,
the head and the sampler. Random keys and values fill a context as long as there may be, before any request runs. Probe rows
decode at several places of it, up to the last, each with a last page of its own:

    the context's pages   [ 17 | 4 | 90 | 33 | ... ]        shuffled, shared, only read
    probe at position p   [ 17 | 4 | 61 ]                   61: a copy of page 90, into which the row writes its own slot

What a row gave in a reference pass is compared with what it gives among other neighbours, in other seats, pages and totals:
its token, the bits of its logprob and of its logits, and its keys and values in every layer. The pages are zeroed in the end.
"""

import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from holdfast.certification.certificate import OperationCheck
from holdfast.certification.probes import bits_of
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import Pass, PassKind, PassResult, Sampled, Sampling, Span, StepPlan
from holdfast.numerics.forward_batch import KVLayer

_log = logging.getLogger(__name__)

TOTALS = (1, 2, 7, 8, 32, 100, 128, 256, 511, 512, 4096, 8192)
_NUM_PROBES = 8
_FEW_PAGES = 1024  # that neighbours take at most
_NEAR = 1000  # positions of neighbours
_SHORT_CONTEXT = 4000
_STYLES = (
    SamplingParams(temperature=0.0, logprobs=0),  # which ends as most passes do, `greedy_end.py`
    SamplingParams(temperature=0.0, logprobs=2),
    SamplingParams(temperature=0.8, top_p=0.95, seed=7),
)


class PassRunner(Protocol):
    """What of a runner this needs."""

    def run(self, plan: StepPlan) -> list[PassResult]: ...


@dataclass(frozen=True)
class Stage:
    """Where passes are tried: a runner, the store it writes to, and how large things are."""

    runner: PassRunner
    layers: Sequence[KVLayer]
    page_size: int
    vocab_size: int
    reference_rows: int

    @property
    def num_pages(self) -> int:
        return int(self.layers[0].keys.shape[0])


def check_passes(
    stage: Stage, max_rows: int, max_len: int, canonical_totals: Sequence[int] = ()
) -> OperationCheck:
    """Totals that differ are named; 0 stands for canonical passes, whose totals are multiples of the reference's."""
    totals = tuple(total for total in TOTALS if total <= max_rows)
    canonical = sorted({stage.reference_rows, *canonical_totals})
    trials = [(0, total, False) for total in canonical if total <= max_rows]
    trials += [(total, total, True) for total in totals]
    differing: set[int] = set()
    compared = 0
    contexts: set[int] = set()
    # A pass of many rows at the longest context may be too large for a graph: those are met at a short one.
    for length in sorted({max_len, min(max_len, _SHORT_CONTEXT)}):
        with torch.inference_mode():
            scene = _Scene(stage, length)
            try:
                found, count = _try(scene, stage.reference_rows, trials)
            finally:
                scene.clear()
        differing |= found
        compared += count
        contexts.add(scene.context)
    shape = f"{len(stage.layers)} layers, context {' and '.join(map(str, sorted(contexts)))}"
    return OperationCheck("pass", shape, totals, tuple(sorted(differing)), compared)


def _try(
    scene: "_Scene", reference_rows: int, trials: Sequence[tuple[int, int, bool]]
) -> tuple[set[int], int]:
    """Each trial is a label, a total, and whether the pass is a certified one; the labels that differ, and how many rows."""
    differing: set[int] = set()
    compared = 0
    for style, params in enumerate(_STYLES):
        expected = scene.ask(params, reference_rows, certified=False, turn=style)
        for label, total, certified in trials:
            found = scene.ask(params, total, certified=certified, turn=total + style + 1)
            compared += len(found)
            if not _alike(found, expected):
                differing.add(label)
    return differing, compared


def kernels_of_a_pass(stage: Stage, max_len: int) -> tuple[str, ...]:
    """The names of the device's kernels in a decoding pass and in one with a chunk of a prompt; none where the device cannot
    be watched."""
    with torch.inference_mode():
        scene = _Scene(stage, min(max_len, _NEAR))
        try:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                for turn, total in enumerate((2 * stage.reference_rows, _NUM_PROBES)):
                    scene.ask(_STYLES[0], total, certified=True, turn=turn)
                torch.cuda.synchronize()
        except RuntimeError as error:
            _log.warning("the kernels of a pass could not be seen: %s", error)
            return ()
        finally:
            scene.clear()
    names = {event.key for event in profile.key_averages() if event.device_type.name == "CUDA"}
    return tuple(sorted(name for name in names if not name.startswith(("Memcpy", "Memset"))))


@dataclass(frozen=True)
class _Answer:
    """What one probe gave."""

    sampled: Sampled
    slots: Tensor  # the bits of its keys and values in every layer


class _Scene:
    """The context, the probes' places in it, and the pages that are left for their own."""

    def __init__(self, stage: Stage, max_len: int) -> None:
        self._stage, self._max_len = stage, max_len
        self._rng = random.Random(11)
        pages = list(range(stage.num_pages))
        self._rng.shuffle(pages)
        pages = pages[: -(-max_len // stage.page_size) + _FEW_PAGES]
        num_own = min(_FEW_PAGES, max(1, len(pages) // 2))
        self._own, self._pages = pages[:num_own], pages[num_own:]
        if not self._pages:
            self._pages = self._own[-1:]  # a store of one page: there is nothing to read but what is written
        self.context = max(1, min(max_len, len(self._pages) * stage.page_size))
        self._all = torch.tensor(sorted({*self._own, *self._pages}), device=stage.layers[0].keys.device)
        last = self.context - 1
        near = (last, last - 1, last // 2 + 1, 3 * last // 4, 1025, 257, stage.page_size, 0)
        self._positions = [min(max(0, position), last) for position in near]
        self._tokens = [self._rng.randrange(stage.vocab_size) for _ in self._positions]
        self._fill()

    def clear(self) -> None:
        """No trace of the check is left."""
        for layer in self._stage.layers:
            for tensor in (layer.keys, layer.values):
                tensor.index_fill_(0, self._all, 0)

    def ask(self, params: SamplingParams, total: int, *, certified: bool, turn: int) -> list[_Answer]:
        """What every probe gives in passes of so many rows, by probe."""
        most = min(_NUM_PROBES, total, len(self._own))
        order = [(turn + index) % _NUM_PROBES for index in range(_NUM_PROBES)]
        found: dict[int, _Answer] = {}
        for start in range(0, _NUM_PROBES, most):
            found |= self._ask_some(order[start : start + most], params, total, certified, turn)
        return [found[probe] for probe in range(_NUM_PROBES)]

    def _ask_some(
        self, probes: Sequence[int], params: SamplingParams, total: int, certified: bool, turn: int
    ) -> dict[int, _Answer]:
        own = self._own[turn % len(self._own) :] + self._own[: turn % len(self._own)]
        spans = {probe: self._probe(probe, own[index], params) for index, probe in enumerate(probes)}
        self._prepare(spans)
        others = self._neighbours(own[len(probes) :], total - len(probes), params, chunk=turn % 2 == 0)
        placed = self._seat(list(spans.values()), others)
        one = Pass(PassKind.CANONICAL, tuple(placed), total, certified=certified)
        (result,) = self._stage.runner.run(StepPlan((one,)))
        samples = dict(zip((span.request_id for span in placed), result.samples, strict=True))
        return {probe: _Answer(samples[probe][0], self._slots(span)) for probe, span in spans.items()}

    def _probe(self, probe: int, own: int, params: SamplingParams) -> Span:
        position = self._positions[probe]
        before = self._pages[: position // self._stage.page_size]
        return _span(
            probe,
            position,
            (self._tokens[probe],),
            (*before, own),
            params,
            with_checksums=bool(params.logprobs),
        )

    def _neighbours(
        self, own: Sequence[int], room: int, params: SamplingParams, *, chunk: bool
    ) -> list[Span]:
        """Decoding rows at other places; in every second pass a chunk of a prompt, and a few rows of padding behind them."""
        size = self._stage.page_size
        spans: list[Span] = []
        room -= min(3, room // 4)
        number = _NUM_PROBES
        if chunk and room > 4:
            length = min(room // 2, len(own) // 2 * size, self._max_len)
            if length:
                pages = own[: -(-length // size)]
                own, room = own[len(pages) :], room - length
                spans.append(
                    _span(number, 0, self._random_tokens(length), tuple(pages), params, samples=False)
                )
        for page in own[:room]:
            number += 1
            position = self._rng.randrange(min(_NEAR, self.context))
            before = self._pages[: position // size]
            spans.append(_span(number, position, self._random_tokens(1), (*before, page), params))
        return spans

    def _random_tokens(self, count: int) -> tuple[int, ...]:
        return tuple(self._rng.randrange(self._stage.vocab_size) for _ in range(count))

    def _seat(self, probes: list[Span], others: list[Span]) -> list[Span]:
        """The probes spread among their neighbours, the first in front, the last behind them."""
        placed: list[Span] = []
        per_probe = -(-len(others) // max(1, len(probes) - 1))
        for index, probe in enumerate(probes):
            placed.append(probe)
            placed += others[index * per_probe : (index + 1) * per_probe] if index < len(probes) - 1 else ()
        return placed if len(probes) > 1 else [*others[::2], *probes, *others[1::2]]

    def _fill(self) -> None:
        device = self._all.device
        generator = torch.Generator(device).manual_seed(3)
        for layer in self._stage.layers:
            for tensor in (layer.keys, layer.values):
                shape = (len(self._all), *tensor.shape[1:])
                numbers = torch.empty(shape, dtype=tensor.dtype, device=device)
                tensor.index_copy_(0, self._all, numbers.normal_(generator=generator))

    def _prepare(self, spans: dict[int, Span]) -> None:
        """Into each probe's own page what the context has there; the row will write over one slot of it."""
        size, device = self._stage.page_size, self._all.device
        pages = [
            (self._pages[self._positions[probe] // size], span.pages[-1]) for probe, span in spans.items()
        ]
        source, target = (torch.tensor(each, device=device) for each in zip(*pages, strict=True))
        for layer in self._stage.layers:
            for tensor in (layer.keys, layer.values):
                tensor.index_copy_(0, target, tensor.index_select(0, source))

    def _slots(self, span: Span) -> Tensor:
        page, offset = span.pages[-1], span.start % self._stage.page_size
        parts = [
            part
            for layer in self._stage.layers
            for part in (layer.keys[page, :, :, offset], layer.values[page, :, offset])
        ]
        return bits_of(torch.stack(parts))


def _span(
    number: int,
    start: int,
    token_ids: tuple[int, ...],
    pages: tuple[int, ...],
    params: SamplingParams,
    *,
    samples: bool = True,
    with_checksums: bool = False,
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
    )


def _alike(found: Sequence[_Answer], expected: Sequence[_Answer]) -> bool:
    sampled = all(one.sampled == other.sampled for one, other in zip(found, expected, strict=True))
    pairs = zip(found, expected, strict=True)
    return sampled and all(torch.equal(one.slots, other.slots) for one, other in pairs)
