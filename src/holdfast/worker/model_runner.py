"""The model runner: runs step plans on the device. It knows tokens and KV slots, but no requests.

A plan is started, which enqueues all its work on the device, and read later. On a CPU starting
computes. Between plans the runner keeps only the KV cache and the last sampled tokens.
"""

import atexit
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain, islice
from weakref import WeakSet

import numpy as np

from holdfast.core.step_plan import (
    SAMPLED_RING_SIZE,
    Pass,
    PassKind,
    PassResult,
    Sampled,
    Span,
    StepPlan,
    TokenLogprob,
)
from holdfast.models.decoder import Decoder, LayerHook
from holdfast.numerics.arrays import Device, Tensor, arrays_on
from holdfast.numerics.batch_sizes import MAX_SHORT_TILE_TOKENS
from holdfast.numerics.forward_batch import ForwardBatch
from holdfast.numerics.settings_guard import our_settings, without_contexts
from holdfast.worker.cuda_graphs import CudaGraphs, CudaRecorder, Progress
from holdfast.worker.extension import PassExtension
from holdfast.worker.head import HeadGraphs, HeadTokens, LastLayer
from holdfast.worker.input_batch import DeviceBatch, InputBatch, PageTableCache, make_input_batch, send_batch
from holdfast.worker.kv_store import KVStore
from holdfast.worker.logits import Masks, batch_slices, gather_logprobs, max_logits_tokens
from holdfast.worker.logits_processors.device_history import DeviceTokens
from holdfast.worker.logits_processors.token_masks import GrammarMaskWorker
from holdfast.worker.pooling import PooledStates, pool
from holdfast.worker.sampler import SampledTokens, sample
from holdfast.worker.spot_check import SpotCheck
from holdfast.worker.transfer import DeviceStream, HostCopies, send_array

_MAX_SHORT_TILE_READS = 1 << 17  # positions that the short tiles of a pass may read

Scores = tuple[tuple[TokenLogprob, ...], ...]
Samples = tuple[tuple[Sampled, ...], ...]

_runners: "WeakSet[ModelRunner]" = WeakSet()


@atexit.register
def _release_all() -> None:
    """Wait for all devices and drop all graphs, so that nothing runs while the interpreter and CUDA are
    torn down. Threads that step an engine have ended before: their end was registered later."""
    for runner in tuple(_runners):
        runner.release()


class ModelRunner:
    """Runs a decoder over a KV store, with what the model adds to a pass. What an extension finds is awaited
    when a pass is started, so the plans of such a model are never in flight."""

    def __init__(self, decoder: Decoder, store: KVStore, extension: PassExtension | None = None) -> None:
        self._decoder = decoder
        self._store = store
        self._extension = extension
        self._mask_worker = GrammarMaskWorker()
        self._page_tables = PageTableCache()
        backend, config = decoder.backend, decoder.config
        self._device = backend.device
        self._arrays = arrays_on(backend.device)
        self._group = config.num_heads // config.num_kv_heads
        has_windows = any(window is not None for window in config.layer_windows)
        self._split_pages = 0 if has_windows else backend.split_pages
        self._max_logits_tokens = max_logits_tokens(self._device)
        self._certified_head = backend.can.certifies_head
        self._stream = DeviceStream(self._device)
        self._ring = SampledRing(self._device)
        history = backend.new_token_history(store.num_pages)
        self._tokens = None if history is None else DeviceTokens(history, self._page_tables)
        tall_tile_tokens = backend.tile_tokens(1 << 20, self._group) or 1
        needs_all_tokens = extension is not None and extension.needs_all_tokens
        self._last_layer = LastLayer(decoder, store.layers, needs_all_tokens=needs_all_tokens)
        self._graphs = CudaGraphs(
            decoder, store.layers, tall_tile_tokens, self._last_layer.is_separate, self._captured_hook
        )
        self._head_graphs = HeadGraphs(decoder)
        _runners.add(self)

    def run(self, plan: StepPlan) -> list[PassResult]:
        """Run the passes of a plan in order."""
        return self.start(plan)()

    def start(self, plan: StepPlan) -> Callable[[], list[PassResult]]:
        """Enqueue the passes of a plan in order. Return a function that waits for them and reads their
        results. Once this returns or raises, the plan's grammars are not used any more."""
        with our_settings(self._device), self._arrays.inference(), self._stream.entered():
            copies = HostCopies(self._device)
            started = [self._start_pass(pass_, copies) for pass_ in plan.passes]
            copies.finish()

        def read() -> list[PassResult]:
            with without_contexts(self._device):
                copies.wait()
                return [each() for each in started]

        return read

    def capture(
        self,
        sizes: Sequence[int],
        canonical_sizes: Sequence[int],
        progress: Progress | None = None,
        *,
        max_len: int = 32768,
        lazily: bool = False,
    ) -> None:
        """Capture CUDA graphs for passes of these padded sizes, with requests of up to max_len. On a CPU do
        nothing. lazily: each when it is first used."""
        if self._stream.cuda is None:
            return
        page_size = self._decoder.backend.page_size
        max_pages = min(self._store.num_pages, -(-max_len // page_size))
        with our_settings(self._device), self._arrays.inference(), self._stream.entered():
            recorder = CudaRecorder(self._stream.cuda)
            if self._extension is not None:
                self._extension.capture(max((*sizes, *canonical_sizes)), recorder)
            self._graphs.capture(sizes, canonical_sizes, max_pages, recorder, progress, lazily=lazily)
            if not lazily:
                self._last_layer.warm_up()
            output = self._graphs.output
            self._head_graphs.capture(output, sizes, canonical_sizes, recorder, lazily=lazily)

    def capture_next(self) -> bool:
        """Capture one more graph that no pass has used yet. Return False if there is none."""
        with our_settings(self._device), self._arrays.inference(), self._stream.entered():
            return self._graphs.capture_next() or self._head_graphs.capture_next()

    def list_kernels(self) -> tuple[str, ...]:
        """Return the names of the GPU kernels of passes. They must have run once."""
        with our_settings(self._device), self._arrays.inference(), self._stream.entered():
            return tuple(sorted(self._graphs.list_kernels() | self._head_graphs.list_kernels()))

    def release(self) -> None:
        """Wait for the device and drop all graphs. Passes run without them from now on."""
        if self._stream.cuda is not None:
            with suppress(RuntimeError):  # the device has failed
                self._stream.wait()
        self._graphs.release()
        self._head_graphs.release()
        if self._extension is not None:
            self._extension.release()

    def _start_pass(self, pass_: Pass, copies: HostCopies) -> Callable[[], PassResult]:
        if pass_.kind is PassKind.CHECK:
            mismatch = self._start_check(pass_, copies)
            return lambda: PassResult(((),), mismatch=mismatch())
        canonical = pass_.kind is PassKind.CANONICAL
        with self._mask_worker.computing(pass_.spans) as masks:
            batch = self._make_batch(pass_)
            sent, hidden, size = self._forward(pass_, batch)  # [scored, pooled, sampled tokens; hidden]
            self._save_states(pass_)
            extra = () if self._extension is None else self._extension.finish(pass_, canonical=canonical)
            canonical_head = canonical and not (pass_.certified and self._certified_head)
            num_unsampled = batch.num_scored + batch.num_pooled
            scores: Callable[[], Scores] = tuple
            pooled: Callable[[], tuple[PooledStates, ...]] = tuple
            if batch.num_scored:
                scores = self._score(hidden[: batch.num_scored], pass_.spans, canonical_head, copies)
            if batch.num_pooled:
                pooled = pool(hidden[batch.num_scored : num_unsampled], pass_.spans, copies)
            if size is not None and self._head_graphs.fits(
                size, batch, pass_.spans, canonical=canonical_head
            ):
                num_tokens = len(batch.logits_indices)
                tokens = self._head_graphs.sample(
                    size, num_tokens, pass_.spans, copies, canonical=canonical_head
                )
                samples = self._collect([tokens], pass_.spans, sent)
            else:
                sampled = hidden[num_unsampled:] if num_unsampled else hidden
                samples = self._sample(sampled, pass_.spans, masks(), canonical_head, sent, copies)
        return lambda: PassResult(samples(), scores(), extra, pooled=pooled())

    def _make_batch(self, pass_: Pass) -> InputBatch:
        backend, group = self._decoder.backend, self._group
        only_short = pass_.num_tokens_padded <= MAX_SHORT_TILE_TOKENS and self._prefers_short_tiles(pass_)
        return make_input_batch(
            pass_,
            backend.page_size,
            lambda span_len: backend.tile_tokens(1 if only_short else span_len, group),
            self._page_tables,
            self._split_pages,
        )

    def _prefers_short_tiles(self, pass_: Pass) -> bool:
        """Return whether short tiles in a CUDA graph cost less than tall ones without a graph: every tile
        reads all positions before it. Spot checks are rare and always take short tiles."""
        tile_tokens = self._decoder.backend.tile_tokens(1, self._group) or 1
        num_reads = sum(
            -(-span.num_tokens // tile_tokens) * span.stop for span in pass_.spans if span.num_tokens > 1
        )
        return pass_.kind is PassKind.CHECK or num_reads <= _MAX_SHORT_TILE_READS

    def _start_check(self, pass_: Pass, copies: HostCopies) -> Callable[[], str | None]:
        check = SpotCheck(pass_, self._store, self._decoder.backend.page_size, self._extension)
        check.prepare()
        _, hidden, _ = self._forward(pass_, self._make_batch(pass_))
        return check.compare(self._decoder, hidden, copies)

    def _forward(self, pass_: Pass, batch: InputBatch) -> tuple[DeviceBatch, Tensor, int | None]:
        """Run the pass up to the head. Return the batch, the hidden states of the tokens that need
        logits, and the size of the CUDA graph if one computed all layers."""
        # A certified pass runs in fast form: its batch size is certified to give the canonical bits.
        exact = pass_.kind is not PassKind.FAST
        canonical = exact and not pass_.certified
        size = self._graphs.size_for(
            batch, pass_.num_tokens_padded, pass_.larger_sizes, canonical=canonical, exact=exact
        )
        extension, layers = self._extension, self._store.layers
        given = None if extension is None else extension.begin(pass_, batch)
        self._copy_states(pass_)
        if size is None:
            sent = send_batch(batch, pass_.num_tokens_padded, self._device)
            self._read_ring(batch, sent)
            hook = None if extension is None else extension.hook(sent.forward, given)
            is_separate = self._last_layer.is_separate(pass_.num_tokens_padded, len(batch.logits_indices))
            if is_separate:
                body = self._decoder.forward_body(sent.forward, layers, canonical=canonical, layer_hook=hook)
            else:
                hidden = self._decoder.forward(sent.forward, layers, canonical=canonical, layer_hook=hook)
        else:
            sent = self._graphs.load(batch, size, canonical=canonical)
            self._read_ring(batch, sent)
            if extension is not None and given is not None:
                extension.load(given, size)
            hidden = self._graphs.replay(size, canonical=canonical)
            is_separate = self._last_layer.is_separate(size)
            if is_separate:
                body = self._graphs.residual(size), hidden
        if is_separate:
            return sent, self._last_layer.run(batch, sent, body, canonical=canonical, exact=exact), None
        if batch.logits_come_first:
            return sent, hidden[: len(batch.logits_indices)], size
        return sent, hidden[sent.logits_indices], size

    def _copy_states(self, pass_: Pass) -> None:
        """Copy recurrent states before the pass. Refuse a span whose log would lose what a later pass reads."""
        for span in pass_.spans:
            if span.state is not None and pass_.kind is not PassKind.CHECK:
                assert span.stop - span.state.store <= self._store.num_uncertain, "a log is too short"
        states = [span.state for span in pass_.spans if span.state is not None]
        self._store.copy_states([(one.load, one.slot) for one in states if one.load >= 0])
        self._store.copy_states([(one.slot, one.snapshot) for one in states if one.snapshot >= 0])

    def _save_states(self, pass_: Pass) -> None:
        """Copy recurrent states after the pass."""
        states = [span.state for span in pass_.spans if span.state is not None]
        self._store.copy_states([(one.slot, one.save) for one in states if one.save >= 0])

    def _captured_hook(self, batch: ForwardBatch) -> LayerHook | None:
        return None if self._extension is None else self._extension.hook(batch, None)

    def _read_ring(self, batch: InputBatch, sent: DeviceBatch) -> None:
        """Fill in the token ids that earlier passes sampled, and keep all of them beside the KV."""
        self._ring.grow(batch.num_request_indices)
        if len(batch.ring_read_indices):
            self._ring.read(sent.forward.token_ids, sent.ring_read_indices, sent.ring_read_slots)
        if batch.num_request_indices and self._tokens is not None:
            forward, count = sent.forward, batch.num_tokens
            self._tokens.history.write(forward.slots[:count], forward.token_ids[:count])

    def _sample(
        self,
        hidden: Tensor,
        spans: Sequence[Span],
        masks: Sequence[Masks],
        canonical: bool,
        sent: DeviceBatch,
        copies: HostCopies,
    ) -> Callable[[], Samples]:
        """Sample all sampled tokens of the spans, in batches of limited size."""
        found: list[SampledTokens] = []
        done = 0
        for slices in batch_slices(spans, masks, self._max_logits_tokens):
            num_tokens = sum(one.num_tokens for one in slices)
            some = hidden if num_tokens == hidden.shape[0] else hidden[done : done + num_tokens]
            logits = self._decoder.logits(some, canonical=canonical)
            found.append(sample(self._decoder.backend, logits, slices, copies, self._tokens))
            done += num_tokens
        return self._collect(found, spans, sent)

    def _collect(
        self, found: Sequence[SampledTokens | HeadTokens], spans: Sequence[Span], sent: DeviceBatch
    ) -> Callable[[], Samples]:
        """Write the sampled tokens to the ring. Return a function that reads them by span."""
        self._write_ring(found, sent)
        is_one_each = all(span.num_sampled == 1 for span in spans)

        def read() -> Samples:
            sampled = list(chain.from_iterable(tokens.read() for tokens in found))
            if is_one_each:
                return tuple(zip(sampled))
            rest = iter(sampled)
            return tuple(tuple(islice(rest, span.num_sampled)) for span in spans)

        return read

    def _write_ring(self, found: Sequence[SampledTokens | HeadTokens], sent: DeviceBatch) -> None:
        """Write sampled tokens to the ring, for passes that are enqueued before the host knows them."""
        if not sent.ring_write_indices.shape[0]:
            return
        token_ids = found[0].token_ids
        if len(found) > 1:
            token_ids = self._arrays.cat([tokens.token_ids for tokens in found])
        if len(sent.ring_write_indices) < len(token_ids):
            token_ids = token_ids.index_select(0, sent.ring_write_indices)
        self._ring.write(sent.ring_write_slots, token_ids)

    def _score(
        self, hidden: Tensor, spans: Sequence[Span], canonical: bool, copies: HostCopies
    ) -> Callable[[], Scores]:
        """Compute the logprobs of each span's scored tokens."""
        tokens = [token_id for span in spans for token_id in span.scored_ids]
        counts = [span.sampling.params.prompt_logprobs or 0 for span in spans for _ in span.scored_ids]
        chosen = send_array(np.array(tokens, np.int64), self._device)
        found = []
        for start in range(0, len(tokens), self._max_logits_tokens):
            some = slice(start, start + self._max_logits_tokens)
            logits = self._decoder.logits(hidden[some], canonical=canonical)  # fp32 [n, vocab]
            logprobs = gather_logprobs(self._decoder.backend, logits, chosen[some], counts[some], copies)
            found.append((logprobs, tokens[some]))

        def read() -> Scores:
            rest = (each for logprobs, token_ids in found for each in logprobs.read(token_ids))
            return tuple(tuple(islice(rest, len(span.scored_ids))) for span in spans)

        return read


class SampledRing:
    """The last sampled tokens of every request, on the device, for passes that are already enqueued.

    A table int64 [request indices, SAMPLED_RING_SIZE], as `core/step_plan.py` says. NO_TOKEN is embedded
    as token 0; the result is discarded, because the request has ended.
    """

    def __init__(self, device: Device) -> None:
        xp = arrays_on(device)
        self._table = xp.zeros((0, SAMPLED_RING_SIZE), dtype=xp.int64)

    def grow(self, num_request_indices: int) -> None:
        """Make room for so many requests."""
        present = len(self._table)
        if num_request_indices > present:
            larger = self._table.new_zeros((1 << (num_request_indices - 1).bit_length(), SAMPLED_RING_SIZE))
            larger[:present] = self._table
            self._table = larger

    def read(self, token_ids: Tensor, indices: Tensor, slots: Tensor) -> None:
        """Set token_ids[indices] = ring[slots], all int64: token_ids [tokens], the others [n]."""
        token_ids.index_copy_(0, indices, self._table.view(-1).index_select(0, slots))

    def write(self, slots: Tensor, token_ids: Tensor) -> None:
        """Set ring[slots] = token_ids, int64 [n] both. No slot occurs twice."""
        self._table.view(-1).index_copy_(0, slots, token_ids)
