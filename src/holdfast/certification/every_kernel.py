"""Every kernel that an engine launches before its first answer, called on tensors without memory.

A tensor on torch's device `meta` has a shape and a dtype, and nothing is computed. The operations
are those of the canary and of passes, so a kernel gets the argument types and constants here that
it gets on the GPU. One that is missed here is compiled when it is first launched.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from holdfast.certification.canary import run_operations
from holdfast.models.config import DecoderConfig
from holdfast.models.decoder import Decoder, load_decoder
from holdfast.models.dummy import DummyCheckpoint
from holdfast.models.shapes import gemm_shapes
from holdfast.numerics.forward_batch import ForwardBatch
from holdfast.numerics.ops import Backend
from holdfast.numerics.select_backend import open_backend

_log = logging.getLogger(__name__)

META = torch.device("meta")
_SPLITS_OF_K = (0, 2)  # which of them a GEMM gets is not known yet
_CONTEXT = 4096  # one that several programs read
_SMALL_PASSES = (1, 32)  # tokens; the GEMMs for few rows have two tile heights
_LARGE_PASS = 1024  # tokens; with tall tiles
_NUM_TILES = (1, 2, 3, 8, 16, 24, 256, 512)  # short tiles of a pass; the work list has variants
_NUM_LOGPROBS = 2

Call = Callable[[], object]


def call_every_kernel(model: DecoderConfig, dtype: torch.dtype) -> None:
    """Call the operations. One that fails is left out: its kernels are compiled later."""
    for call in _calls(model, dtype):
        try:
            call()
        except Exception:
            _log.debug("an operation could not be called without memory", exc_info=True)


def _calls(model: DecoderConfig, dtype: torch.dtype) -> Iterator[Call]:
    windows = dict.fromkeys(model.layer_windows)
    short = replace(model, num_layers=len(windows), layer_windows=tuple(windows))
    logits = torch.empty((1, model.vocab_size), dtype=torch.float32, device=META)
    for split_k in _SPLITS_OF_K:
        backend = _open_backend(model, dtype, split_k)
        decoder = load_decoder(_Shapes(short), backend, dtype, _CONTEXT)
        yield from _pass_calls(decoder)
        yield partial(run_operations, backend, model)
        yield partial(backend.topk, logits, _NUM_LOGPROBS)


def _open_backend(model: DecoderConfig, dtype: torch.dtype, split_k: int) -> Backend:
    splits = {(n, k): max(split_k, 1 if name == "head" else 0) for name, n, k, _ in gemm_shapes(model)}
    return open_backend(dtype, kernels="triton", num_threads=1, device=META, split_k=splits)


class _Shapes(DummyCheckpoint):
    """The tensors of a checkpoint, without memory."""

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(self.shape(name), dtype=dtype, device=META)


def _pass_calls(decoder: Decoder) -> Iterator[Call]:
    """Passes of every form, and attention as its own check calls it."""
    rows = decoder.backend.recipe.rows
    for num_tokens in _SMALL_PASSES:
        yield partial(_run_pass, decoder, _batch(num_tokens, num_tokens, 0), canonical=False)
    for num_tokens, num_short, num_tall in ((rows, rows, 0), (rows, 0, 8), (_LARGE_PASS, 2 * rows, 96)):
        for canonical in (True, False):
            yield partial(_run_pass, decoder, _batch(num_tokens, num_short, num_tall), canonical=canonical)
    model, dtype = decoder.config, decoder.dtype
    for num_tiles in _NUM_TILES:
        q = torch.empty((num_tiles, model.num_heads, model.head_dim), dtype=dtype, device=META)
        yield partial(_attend, decoder, q, _batch(num_tiles, num_tiles, 0))


def _batch(num_tokens: int, num_short: int, num_tall: int) -> ForwardBatch:
    def empty(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=META)

    return ForwardBatch(
        token_ids=empty(num_tokens),
        positions=empty(num_tokens),
        slots=empty(num_tokens),
        span_starts=empty(2, dtype=torch.int32),
        page_table=empty(1, _CONTEXT // 64, dtype=torch.int32),
        tiles=empty(num_short + num_tall, 3, dtype=torch.int32),
        num_short_tiles=num_short,
    )


def _run_pass(decoder: Decoder, batch: ForwardBatch, *, canonical: bool) -> None:
    backend, model = decoder.backend, decoder.config
    kv = [backend.new_kv_layer(2, model.num_kv_heads, model.head_dim) for _ in decoder.layers]
    hidden = decoder.forward(batch, kv, canonical=canonical)
    if batch.num_tokens >= _LARGE_PASS:
        decoder.forward_body(batch, kv, canonical=canonical)
    backend.sample_greedy(decoder.logits(hidden[: backend.recipe.rows], canonical=canonical))


def _attend(decoder: Decoder, q: Tensor, batch: ForwardBatch) -> None:
    backend, model = decoder.backend, decoder.config
    layer = backend.new_kv_layer(2, model.num_kv_heads, model.head_dim)
    for window in dict.fromkeys(model.layer_windows):
        backend.attention(q, layer, batch, scale=decoder.layer_shape.scale, window=window)
