"""Runs plans: one trip down, one up. Knows rows and slots, no requests, and keeps nothing between plans but the KV and the
tokens sampled last.

A plan is started, which enqueues all of it on the device, and read later. On CPU starting is computing.
"""

from collections.abc import Callable, Sequence
from itertools import chain, islice

import numpy as np
import torch
from torch import Tensor

from holdfast.core.step_plan import Pass, PassKind, PassResult, Sampled, Span, StepPlan, TokenLogprob
from holdfast.models.decoder import Decoder
from holdfast.numerics.batch_sizes import MAX_SHORT_TILE_TOKENS
from holdfast.worker.cuda_graphs import CudaGraphs, CudaRecorder, Progress
from holdfast.worker.greedy_head import GreedyChoices, GreedyHeadGraph
from holdfast.worker.input_batch import DeviceBatch, InputBatch, batch_of, send_batch
from holdfast.worker.kv_store import KVStore
from holdfast.worker.last_layer import LastLayer
from holdfast.worker.logits_processors.grammar_masks import MaskWorker
from holdfast.worker.logits_slices import Masks, max_slice_rows, slice_parts
from holdfast.worker.logprobs import logprobs_of
from holdfast.worker.page_table_cache import PageTableCache
from holdfast.worker.sampled_ring import SampledRing
from holdfast.worker.sampler import Choices, sample
from holdfast.worker.spot_check import SpotCheck
from holdfast.worker.thought_runner import ThoughtRunner
from holdfast.worker.transfer import HostCopies, Stream, send_array

_MOST_READ = 1 << 17  # positions the short tiles of a pass may read

Scores = tuple[tuple[TokenLogprob, ...], ...]
Samples = tuple[tuple[Sampled, ...], ...]


class ModelRunner:
    """A decoder over a KV store; with a thinker, one that thinks. What is thought is waited for when a pass is started, so
    such a runner has nothing in flight."""

    def __init__(self, decoder: Decoder, store: KVStore, thinker: ThoughtRunner | None = None) -> None:
        self._decoder = decoder
        self._store = store
        self._thinker = thinker
        self._mask_worker = MaskWorker()
        self._page_rows = PageTableCache()
        backend, config = decoder.backend, decoder.config
        self._device = backend.device
        self._group = config.num_heads // config.num_kv_heads
        self._slice_rows = max_slice_rows(self._device)
        # A certified pass may have any number of wanted rows. The Triton path's certificate tried them all; elsewhere the
        # head is always computed as the reference does.
        self._certified_head = backend.recipe.path == "triton"
        self._stream = Stream(self._device)
        self._lanes = SampledRing(self._device)
        tall_rows = backend.tile_tokens(1 << 20, self._group) or 1
        layer_hook = None if thinker is None else thinker.captured_layer_hook
        all_seen = thinker is not None and thinker.looks_behind_the_last_layer
        self._last_layer = LastLayer(decoder, store.layers, all_seen=all_seen)
        self._graphs = CudaGraphs(decoder, store.layers, tall_rows, self._last_layer.is_apart, layer_hook)
        self._greedy_end = GreedyHeadGraph(decoder)

    def run(self, plan: StepPlan) -> list[PassResult]:
        """The passes of a plan, in order."""
        return self.start(plan)()

    def start(self, plan: StepPlan) -> Callable[[], list[PassResult]]:
        """Enqueue the passes of a plan, in order; what is returned waits for them and reads what they gave.

        When it returns or raises, nobody uses the plan's grammars any more.
        """
        up = HostCopies(self._device)
        with torch.inference_mode(), self._stream.entered():
            started = [self._start_pass(one, up) for one in plan.passes]
            up.seal()

        def read() -> list[PassResult]:
            up.wait()
            return [each() for each in started]

        return read

    def capture(
        self,
        sizes: Sequence[int],
        canonical_sizes: Sequence[int],
        progress: Progress | None = None,
        *,
        max_len: int = 32768,
    ) -> None:
        """CUDA graphs for passes padded to these sizes, with sequences up to max_len; on CPU there is nothing to do."""
        if self._stream.cuda is None:
            return
        page_size = self._decoder.backend.page_size
        max_pages = min(self._store.num_pages, -(-max_len // page_size))
        with torch.inference_mode(), self._stream.entered():
            recorder = CudaRecorder(self._stream.cuda)
            if self._thinker is not None:
                self._thinker.capture(max((*sizes, *canonical_sizes)), recorder)
            self._graphs.capture(sizes, canonical_sizes, max_pages, recorder, progress)
            self._last_layer.warm()
            self._greedy_end.capture(self._graphs.output, sizes, canonical_sizes, recorder)

    def _start_pass(self, one: Pass, up: HostCopies) -> Callable[[], PassResult]:
        if one.kind is PassKind.CHECK:
            mismatch = self._start_check(one, up)
            return lambda: PassResult(((),), mismatch=mismatch())
        canonical = one.kind is PassKind.CANONICAL
        with self._mask_worker.working_on(one.spans) as masks:
            batch = self._batch(one)
            sent, hidden, size = self._forward(one, batch)  # [given and sampled, hidden]
            thinker = self._thinker
            thoughts = thinker.finish(one, canonical=canonical) if thinker is not None else ()
            reference = canonical and not (one.certified and self._certified_head)
            scores = self._score(hidden[: batch.num_scored], one.spans, reference, up)
            if size is not None and self._greedy_end.fits(size, batch, one.spans, canonical=reference):
                num_rows = len(batch.wanted)
                best = self._greedy_end.choose(size, num_rows, one.spans, up, canonical=reference)
                samples = self._take([best], one.spans, sent)
            else:
                samples = self._sample(hidden[batch.num_scored :], one.spans, masks(), reference, sent, up)
        return lambda: PassResult(samples(), scores(), thoughts)

    def _batch(self, one: Pass) -> InputBatch:
        backend, group = self._decoder.backend, self._group
        only_short = one.num_tokens_padded <= MAX_SHORT_TILE_TOKENS and self._is_cheap(one)
        return batch_of(
            one,
            backend.page_size,
            lambda span_len: backend.tile_tokens(1 if only_short else span_len, group),
            self._page_rows,
        )

    def _is_cheap(self, one: Pass) -> bool:
        """Whether short tiles, which graphs have, cost the pass less than to be launched kernel by kernel. Every one of them
        reads all that stands before it. A check is rare, and always cheap enough."""
        rows = self._decoder.backend.tile_tokens(1, self._group) or 1
        read = sum(-(-span.num_tokens // rows) * span.stop for span in one.spans if span.num_tokens > 1)
        return one.kind is PassKind.CHECK or read <= _MOST_READ

    def _start_check(self, one: Pass, up: HostCopies) -> Callable[[], str | None]:
        check = SpotCheck(one, self._store, self._decoder.backend.page_size, self._thinker)
        check.prepare()
        _, hidden, _ = self._forward(one, self._batch(one))
        return check.compare(self._decoder, hidden, up)

    def _forward(self, one: Pass, batch: InputBatch) -> tuple[DeviceBatch, Tensor, int | None]:
        """The pass on the device, and its wanted rows; and if a graph left all rows behind the last layer, of how many."""
        # A certified pass runs the fast backend at a shape whose bits are known to be the reference's.
        exact = one.kind is not PassKind.FAST
        canonical = exact and not one.certified
        size = self._graphs.size_for(batch, one.num_tokens_padded, canonical=canonical, exact=exact)
        read_from = self._thinker.begin(one, batch) if self._thinker is not None else None
        if size is None:
            sent = send_batch(batch, one.num_tokens_padded, self._device)
            self._resolve(batch, sent)
            layer_hook = None
            if self._thinker is not None and read_from is not None:
                layer_hook = self._thinker.layer_hook(sent.rows.slots, read_from)
            layers = self._store.layers
            if not self._last_layer.is_apart(one.num_tokens_padded, len(batch.wanted)):
                hidden = self._decoder.forward(sent.rows, layers, canonical=canonical, layer_hook=layer_hook)
                return sent, hidden[sent.wanted], None
            left = self._decoder.forward_body(sent.rows, layers, canonical=canonical, layer_hook=layer_hook)
            return sent, self._last_layer.run(batch, sent, left, canonical=canonical, exact=exact), None
        sent = self._graphs.load(batch, size, canonical=canonical)
        self._resolve(batch, sent)
        if self._thinker is not None and read_from is not None:
            self._thinker.load(read_from, size)
        hidden = self._graphs.replay(size, canonical=canonical)
        if self._last_layer.is_apart(size):
            left = self._graphs.residual(size), hidden
            return sent, self._last_layer.run(batch, sent, left, canonical=canonical, exact=exact), None
        wanted = hidden[: len(batch.wanted)] if batch.wants_first_rows else hidden[sent.wanted]
        return sent, wanted, size

    def _resolve(self, batch: InputBatch, sent: DeviceBatch) -> None:
        """Tokens that earlier passes sampled."""
        self._lanes.ensure(batch.num_request_indices)
        if len(batch.unknown):
            self._lanes.resolve(sent.rows.token_ids, sent.unknown, sent.unknown_from)

    def _sample(
        self,
        hidden: Tensor,
        spans: Sequence[Span],
        masks: Sequence[Masks],
        canonical: bool,
        sent: DeviceBatch,
        up: HostCopies,
    ) -> Callable[[], Samples]:
        """The sampled rows of each span."""
        found: list[Choices] = []
        done = 0
        for parts in slice_parts(spans, masks, self._slice_rows):
            num_rows = sum(part.num_rows for part in parts)
            logits = self._decoder.logits(hidden[done : done + num_rows], canonical=canonical)
            found.append(sample(self._decoder.backend, logits, parts, up))
            done += num_rows
        return self._take(found, spans, sent)

    def _take(
        self, found: Sequence[Choices | GreedyChoices], spans: Sequence[Span], sent: DeviceBatch
    ) -> Callable[[], Samples]:
        """What was chosen goes into the lanes, and is to be read by span."""
        self._tell(found, sent)
        is_one_each = all(span.num_sampled == 1 for span in spans)

        def read() -> Samples:
            sampled = list(chain.from_iterable(choices.read() for choices in found))
            if is_one_each:
                return tuple(zip(sampled))
            left = iter(sampled)
            return tuple(tuple(islice(left, span.num_sampled)) for span in spans)

        return read

    def _tell(self, found: Sequence[Choices | GreedyChoices], sent: DeviceBatch) -> None:
        """For passes that are planned before it is known."""
        if not len(sent.told):
            return
        token_ids = found[0].token_ids
        if len(found) > 1:
            token_ids = torch.cat([choices.token_ids for choices in found])
        if len(sent.told) < len(token_ids):
            token_ids = token_ids.index_select(0, sent.told)
        self._lanes.tell(sent.told_to, token_ids)

    def _score(
        self, hidden: Tensor, spans: Sequence[Span], canonical: bool, up: HostCopies
    ) -> Callable[[], Scores]:
        """The logprobs of each span's given tokens; nothing if there are none."""
        if not len(hidden):
            return lambda: ()
        tokens = [token_id for span in spans for token_id in span.scored_ids]
        counts = [span.sampling.params.prompt_logprobs or 0 for span in spans for _ in span.scored_ids]
        chosen = send_array(np.array(tokens, np.int64), self._device)
        found = []
        for at in range(0, len(tokens), self._slice_rows):
            some = slice(at, at + self._slice_rows)
            logits = self._decoder.logits(hidden[some], canonical=canonical)  # fp32 [slice, vocab]
            found.append(
                (logprobs_of(self._decoder.backend, logits, chosen[some], counts[some], up), tokens[some])
            )

        def read() -> Scores:
            left = (each for logprobs, token_ids in found for each in logprobs.read(token_ids))
            return tuple(tuple(islice(left, len(span.scored_ids))) for span in spans)

        return read
