"""Every kernel that an engine launches before its first answer, called on tensors without memory.

A tensor on torch's device `meta` has a shape and a dtype, and nothing is computed. The operations
are those of the canary and of passes, so a kernel gets the argument types and constants here that
it gets on the GPU. One that is missed here is compiled when it is first launched.

Only operations that torch implements in C++ are used: for others on `meta`, such as indexing,
`empty_like` and `arange`, it imports its tracing compiler, which takes seconds.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from holdfast.certification.checks.synthetic import FEW_TOKENS
from holdfast.models.config import DecoderConfig
from holdfast.models.decoder import Decoder
from holdfast.models.dummy import DummyCheckpoint
from holdfast.models.shapes import gemm_shapes
from holdfast.models.weight_loader import load_decoder, norm_dtype
from holdfast.numerics.attention_tiles import TILE_COLUMNS
from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.experts import activate
from holdfast.numerics.forward_batch import ForwardBatch, RecurrentBatch
from holdfast.numerics.layer import RopeCosSin, write_kv
from holdfast.numerics.ops import Backend
from holdfast.numerics.sampling import PenaltyBatch, SamplingBatch, TokensBefore

_log = logging.getLogger(__name__)

META = torch.device("meta")
_SPLITS_OF_K = (0, 2)  # which of them a GEMM gets is not known yet
_CONTEXT = 4096  # one that several programs read
_SMALL_PASSES = (1, 32)  # tokens; the GEMMs for few rows have two tile heights
_LARGE_PASS = 1024  # tokens; with tall tiles
_NUM_TILES = (1, 24, 136)  # short tiles of a pass: one for each variant of the work list
_NUM_LOGPROBS = (2, 5)  # of the reference's own test
_EPS = 1e-5
_LOG_LEN = 64  # of recurrent layers

Call = Callable[[], object]


def call_every_kernel(model: DecoderConfig, dtype: torch.dtype) -> None:
    """Call the operations. One that fails is left out: its kernels are compiled later."""
    for call in _calls(model, dtype):
        try:
            call()
        except Exception:
            _log.debug("an operation could not be called without memory", exc_info=True)


def _calls(model: DecoderConfig, dtype: torch.dtype) -> Iterator[Call]:
    """In the order in which an engine first calls them (recipe search, canary, passes): Triton's hash
    of a kernel's source depends on which kernels were hashed before it."""
    short = _one_layer_of_each_kind(model)
    for split_k in _SPLITS_OF_K:
        backend = _open_backend(model, dtype, split_k)
        decoder = load_decoder(_Shapes(short), backend, dtype, _CONTEXT)
        yield from _gemm_calls(decoder)
        if split_k == _SPLITS_OF_K[0]:
            yield from _token_calls(decoder)
            yield from _sampler_calls(backend, model.vocab_size)
        yield from _pass_calls(decoder)


def _one_layer_of_each_kind(model: DecoderConfig) -> DecoderConfig:
    kinds = model.layer_kinds or (None,) * model.num_layers
    traits = [
        (kinds[layer], model.layer_windows[layer], model.has_experts(layer), model.has_mlp(layer))
        for layer in range(model.num_layers)
    ]
    layers = [traits.index(each) for each in dict.fromkeys(traits)]
    return replace(
        model,
        num_layers=len(layers),
        layer_windows=tuple(model.layer_windows[layer] for layer in layers),
        layer_kinds=model.layer_kinds and tuple(model.layer_kinds[layer] for layer in layers),
        dense_layers=tuple(new for new, layer in enumerate(layers) if layer in model.dense_layers),
        bare_layers=tuple(new for new, layer in enumerate(layers) if not model.has_mlp(layer)),
    )


def _open_backend(model: DecoderConfig, dtype: torch.dtype, split_k: int) -> Backend:
    splits = {
        (n, k): max(split_k, 1 if name in ("head", "router") else 0) for name, n, k, _ in gemm_shapes(model)
    }
    return open_backend(dtype, kernels="triton", num_threads=1, device=META, split_k=splits)


class _Shapes(DummyCheckpoint):
    """The tensors of a checkpoint, without memory."""

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(self.shape(name), dtype=dtype, device=META)


def _sampler_calls(backend: Backend, vocab: int) -> Iterator[Call]:
    def empty(dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(8, dtype=dtype, device=META)

    logits = torch.empty((8, vocab), dtype=torch.float32, device=META)
    batch = SamplingBatch(
        *(empty(), empty(torch.int32), empty(), empty(), empty(torch.int64), empty(torch.int64))
    )
    yield partial(backend.sample, logits, batch)
    yield partial(backend.sample_greedy, logits)
    yield partial(backend.logsumexp, logits[:, :FEW_TOKENS].contiguous())
    for count in _NUM_LOGPROBS:
        yield partial(backend.topk, logits, count)
    history = backend.new_token_history(1)
    if history is not None:
        ints, floats = empty(torch.int32), empty()
        before = TokensBefore(ints, ints, torch.empty((8, 8), dtype=torch.int32, device=META), _CONTEXT)
        yield partial(history.penalise, logits, PenaltyBatch(ints, before, ints, floats, floats, floats))


def _gemm_calls(decoder: Decoder) -> Iterator[Call]:
    """GEMMs that no fused kernel follows."""
    backend = decoder.backend
    for canonical, num_rows in ((True, backend.recipe.rows), *((False, size) for size in _SMALL_PASSES)):
        for one in (one for one in decoder.linears() if not one.expert):
            x = torch.empty((num_rows, one.linear.in_features), dtype=decoder.dtype, device=META)
            gemm = backend.logits if one.is_head or one.is_routed else backend.linear
            yield partial(gemm, x, one.linear, canonical=canonical)


def _token_calls(decoder: Decoder) -> Iterator[Call]:
    """Operations one by one."""
    backend, model, rows = decoder.backend, decoder.config, decoder.backend.recipe.rows

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=decoder.dtype, device=META)

    hidden, q = empty(rows, model.hidden_size), empty(rows, model.num_heads, model.head_dim)
    k = empty(rows, model.num_kv_heads, model.head_dim)
    layer = backend.new_kv_layer(2, model.num_kv_heads, model.head_dim)
    norm = empty(model.hidden_size).to(norm_dtype(model.norm, decoder.dtype))
    centered = model.norm == "layer"
    yield partial(backend.rms_norm, hidden, norm, _EPS, centered=centered)
    yield partial(backend.rms_norm, k, empty(model.head_dim), _EPS)
    yield partial(backend.add_rms_norm, hidden, hidden, norm, _EPS, centered=centered)
    yield partial(backend.rope, q, k, *_rope(decoder, rows))
    yield partial(activate, backend, empty(rows, model.activation_inputs), decoder.layer_shape)
    if model.logits_soft_cap is not None:
        logits = torch.empty((rows, model.vocab_size), dtype=torch.float32, device=META)
        yield partial(backend.soft_cap, logits, model.logits_soft_cap)
    yield partial(backend.store_kv, k, k, layer, torch.empty(rows, dtype=torch.int64, device=META))
    yield partial(_attend, decoder, q, _batch(rows, 0, 8))


def _rope(decoder: Decoder, num_tokens: int) -> tuple[Tensor, Tensor]:
    shape = (num_tokens, decoder.config.head_dim // 2)
    return torch.empty(shape, device=META), torch.empty(shape, device=META)


def _pass_calls(decoder: Decoder) -> Iterator[Call]:
    """Attention as the canary and its own check call it, and passes of every form."""
    rows, model = decoder.backend.recipe.rows, decoder.config
    q = torch.empty((max(_NUM_TILES), model.num_heads, model.head_dim), dtype=decoder.dtype, device=META)
    decode = _batch(1, 1, 0, num_pages=1)
    last = torch.empty(2, dtype=torch.int64, device=META)[1:]  # not aligned, as in the canary
    yield partial(_attend, decoder, q[:1], replace(decode, positions=last))
    yield partial(_attend, decoder, q[:1], decode)
    for num_tiles in _NUM_TILES:
        yield partial(_attend, decoder, q[:num_tiles], _batch(num_tiles, num_tiles, 0))
    for num_tokens in _SMALL_PASSES:
        yield partial(_run_pass, decoder, _batch(num_tokens, num_tokens, 0), canonical=False)
    for num_tokens, num_short, num_tall in ((rows, rows, 0), (rows, 0, 8), (_LARGE_PASS, 2 * rows, 96)):
        for canonical in (True, False):
            yield partial(_run_pass, decoder, _batch(num_tokens, num_short, num_tall), canonical=canonical)


def _batch(
    num_tokens: int, num_short: int, num_tall: int, *, num_pages: int = _CONTEXT // 64
) -> ForwardBatch:
    def empty(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=META)

    return ForwardBatch(
        token_ids=empty(num_tokens),
        positions=empty(num_tokens),
        slots=empty(num_tokens),
        span_starts=empty(2, dtype=torch.int32),
        page_table=empty(1, num_pages, dtype=torch.int32),
        tiles=empty(num_short + num_tall, TILE_COLUMNS, dtype=torch.int32),
        num_short_tiles=num_short,
    )


def _run_pass(decoder: Decoder, batch: ForwardBatch, *, canonical: bool) -> None:
    """As `Decoder.forward`. The last layer of a large pass is divided."""
    backend, model, shape = decoder.backend, decoder.config, decoder.layer_shape
    kv = backend.new_kv_layer(2, model.num_kv_heads, model.head_dim)
    if model.mixer is not None:
        kv = replace(kv, states=backend.new_state_layer(2, _LOG_LEN, model.mixer))
        spans = torch.empty((batch.num_tokens, 6), dtype=torch.int32, device=META)
        batch = replace(batch, recurrent=RecurrentBatch(spans, batch.num_tokens))
    batch = backend.prepare(batch, model.num_heads, model.num_kv_heads)
    rope = RopeCosSin(*_rope(decoder, batch.num_tokens))
    residual = decoder.embed(batch.token_ids)
    x = residual.clone()
    if decoder.first_norm is not None:
        x = backend.rms_norm(residual, decoder.first_norm, shape.eps, centered=shape.centered_norm)
    for weights in decoder.layers:
        backend.layer(residual, x, weights, shape, kv, batch, rope, canonical=canonical)
    if batch.num_tokens >= _LARGE_PASS and decoder.layers[-1].mixer is None:
        write_kv(backend, x, decoder.layers[-1], shape, kv, batch, rope, canonical=canonical)


def _attend(decoder: Decoder, q: Tensor, batch: ForwardBatch) -> None:
    backend, model = decoder.backend, decoder.config
    layer, shape = backend.new_kv_layer(2, model.num_kv_heads, model.head_dim), decoder.layer_shape
    attend = partial(backend.attention, q, layer, batch, scale=shape.scale, soft_cap=shape.soft_cap)
    for window in dict.fromkeys(model.layer_windows):
        attend(window=window, sinks=decoder.layers[0].sinks)
