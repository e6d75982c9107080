"""A search for inputs that give other bits than the unchanged operation, at one batch size.

It shares nothing with the certification's probes. Inputs are drawn from several distributions:

    gaussian     activations and weights of a random model
    wide         exponents spread over many powers of two
    cancelling   sums whose terms cancel exactly, so that only rounding is left
    dust         one large term among tiny ones
    tiny         products near the smallest normal number
    real         rows of a model's embedding and columns of its weights
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.models.config import DecoderConfig
from holdfast.numerics.backends.torch.noise import noise_bits
from holdfast.numerics.bits import bits_differ
from holdfast.numerics.forward_batch import ForwardBatch, KVLayer
from holdfast.numerics.ops import Backend
from holdfast.numerics.sampling import SamplingBatch

KINDS = ("gaussian", "wide", "cancelling", "dust", "tiny")
NUM_ROUNDS = 12  # of all distributions, at each batch size

_WINDOW = 40
_NUM_INTERPRETED_ROUNDS = 2  # in Triton's interpreter, which is slow

Search = Callable[[Any, Any, int], bool]  # (base, changed, size) -> some input gives other bits


@dataclass(frozen=True)
class RealWeights:
    """Matrices of a model, from which weights and activations of any shape are cut."""

    name: str
    embedding: Tensor  # fp32 [vocabulary, hidden]
    weights: tuple[Tensor, ...]  # fp32 [N, K]

    def weight(self, outputs: int, width: int, round_number: int) -> Tensor:
        return _cut(self.weights[round_number % len(self.weights)], outputs, width, round_number)

    def activations(self, rows: int, width: int, round_number: int) -> Tensor:
        rows_of_table = _cut(self.embedding, rows, width, 31 * round_number)
        return rows_of_table / rows_of_table.pow(2).mean(-1, keepdim=True).sqrt().clamp(min=1e-6)


def _cut(matrix: Tensor, rows: int, width: int, start: int) -> Tensor:
    at = (torch.arange(rows) + start * rows) % matrix.shape[0]
    return matrix[at][:, torch.arange(width) % matrix.shape[1]]


def _num_rounds(base: Backend) -> int:
    return _NUM_INTERPRETED_ROUNDS if base.can.is_interpreted else NUM_ROUNDS


def differ(one: Tensor, other: Tensor) -> bool:
    return bool(bits_differ(one, other).any())


class Numbers:
    """Random numbers of one distribution, in fp32, for an operation in `dtype`."""

    def __init__(self, dtype: str, seed: int, device: torch.device) -> None:
        self._spread = 2.0 if dtype == "float16" else 6.0  # of the exponents
        self._tiny = 2.0**-10 if dtype == "float16" else 2.0**-66
        self._device = device
        self._generator = torch.Generator(device).manual_seed(seed)

    def randn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator, device=self._device)

    def rand(self, size: int) -> Tensor:
        return torch.rand(size, generator=self._generator, device=self._device)

    def _permutation(self, length: int) -> Tensor:
        return torch.randperm(length, generator=self._generator, device=self._device)

    def draw(self, kind: str, rows: int, width: int) -> Tensor:
        x = self.randn(rows, width)
        if kind == "wide":
            return x * torch.exp2(self.randn(rows, width) * self._spread)
        if kind == "cancelling":
            half = width // 2
            order = self._permutation(half)
            x[:, half : 2 * half] = -x[:, :half][:, order]
        if kind == "dust":
            x *= 2.0**-12
            x[:, :: max(2, width // 3)] *= 2.0**14
        if kind == "tiny":
            x *= self._tiny
        return x

    def cancelling_pair(self, rows: int, outputs: int, width: int) -> tuple[Tensor, Tensor]:
        """x [rows, width] and weight [outputs, width] whose product is exactly 0, up to rounding."""
        half = width // 2
        order = self._permutation(half)
        x, weight = self.draw("wide", rows, width), self.randn(outputs, width)
        x[:, half : 2 * half] = -x[:, :half][:, order]
        weight[:, half : 2 * half] = weight[:, :half][:, order]
        x[:, 2 * half :] = 0
        return x, weight


def search_gemm(
    outputs: int, width: int, has_bias: bool, real: RealWeights | None, operation: str = "logits"
) -> Search:
    def operands(numbers: Numbers, size: int, number: int) -> Iterator[tuple[Tensor, Tensor]]:
        for kind in KINDS:
            if kind == "cancelling":
                yield numbers.cancelling_pair(size, outputs, width)
            else:
                weight = numbers.draw("tiny" if kind == "tiny" else "gaussian", outputs, width)
                yield numbers.draw(kind, size, width), weight
        if real is not None:
            yield real.activations(size, width, number), real.weight(outputs, width, number)

    def search(base: Backend, changed: Any, size: int) -> bool:
        dtype, numbers = base.recipe.dtype, Numbers(base.recipe.dtype, size, base.device)
        for number in range(_num_rounds(base)):
            for x, weight in operands(numbers, size, number):
                bias = numbers.randn(outputs) if has_bias else None
                packed = changed.pack(weight.to(base.device), None if bias is None else bias.to(base.device))
                rows = x.to(base.device, getattr(torch, dtype))
                expected = getattr(base, operation)(rows, packed, canonical=True)
                if differ(getattr(changed, operation)(rows, packed, canonical=False), expected):
                    return True
        return False

    return search


def search_token_op(operation: str, width: int, head_dim: int = 16) -> Search:
    """Operations on single rows: norms, rope, activation."""

    def search(base: Backend, changed: Any, size: int) -> bool:
        dtype, numbers = getattr(torch, base.recipe.dtype), Numbers(base.recipe.dtype, size, base.device)
        for number in range(_num_rounds(base)):
            for kind in KINDS:
                x = (numbers.draw(kind, size, width) * 2.0 ** (number % 5 - 2)).to(base.device, dtype)
                other = (numbers.draw(kind, size, width)).to(base.device, dtype)
                weight = numbers.randn(width).to(base.device, dtype)
                found = [
                    _run_token_op(one, operation, x.clone(), other.clone(), weight, head_dim)
                    for one in (base, changed)
                ]
                if differ(*found):
                    return True
        return False

    return search


def _run_token_op(
    backend: Any, operation: str, x: Tensor, other: Tensor, weight: Tensor, head_dim: int
) -> Tensor:
    if operation == "rms_norm":
        normed: Tensor = backend.rms_norm(x, weight, 1e-5)
        return normed
    if operation == "add_rms_norm":
        return torch.cat([backend.add_rms_norm(x, other, weight, 1e-5), x], 1)
    if operation == "rope":
        q, k = x.view(len(x), -1, head_dim), other.view(len(x), -1, head_dim)
        angles = weight[: head_dim // 2].to(torch.float32).expand(len(x), -1)
        backend.rope(q, k, angles.cos().contiguous(), angles.sin().contiguous())
        return torch.cat([x, other], 1)
    activated: Tensor = backend.silu_mul(x)
    return activated


def search_attention(model: DecoderConfig) -> Search:
    """One request, its last tokens as one chunk and as single decode tokens."""

    def search(base: Backend, changed: Any, size: int) -> bool:
        numbers = Numbers(base.recipe.dtype, size, base.device)
        for number in range(-(-_num_rounds(base) // 3)):
            for kind in ("gaussian", "wide", "cancelling", "dust"):
                paged = _PagedRequest(base, model, numbers, kind, 2.0 ** (number % 4))
                for window in (None, _WINDOW):
                    for spans in paged.spans(size):
                        if differ(*(paged.attend(one, spans, window) for one in (base, changed))):
                            return True
        return False

    return search


class _PagedRequest:
    """The K and V of one request in pages in order."""

    def __init__(
        self, base: Backend, model: DecoderConfig, numbers: Numbers, kind: str, query_scale: float
    ) -> None:
        self._base, self._model = base, model
        dtype, context = getattr(torch, base.recipe.dtype), model.max_position_embeddings

        def draw(length: int, heads: int, kind: str) -> Tensor:
            return numbers.draw(kind, length, heads * model.head_dim).view(length, heads, model.head_dim)

        self._q = (draw(context, model.num_heads, "gaussian") * query_scale).to(base.device, dtype)
        k = draw(context, model.num_kv_heads, "gaussian").to(base.device, dtype)
        # the values of a position cancel those of another one
        v = draw(context, model.num_kv_heads, kind).to(base.device, dtype)
        self._pages = -(-context // base.page_size)
        self._layer: KVLayer = base.new_kv_layer(self._pages, model.num_kv_heads, model.head_dim)
        base.store_kv(k, v, self._layer, torch.arange(context, device=base.device))

    def spans(self, size: int) -> list[list[int]]:
        """Positions of the tokens of a pass, as one span and as one span each."""
        end = self._model.max_position_embeddings
        chunk = list(range(max(0, end - size), end))
        return [chunk, [(end - 1 - 7 * index) % end for index in range(size)]]

    def attend(self, backend: Any, positions: list[int], window: int | None) -> Tensor:
        device, count = self._base.device, len(positions)
        is_chunk = count > 1 and positions[1] == positions[0] + 1
        at = torch.tensor(positions, device=device)
        starts = [0, count] if is_chunk else list(range(count + 1))
        table = torch.arange(self._pages, dtype=torch.int32, device=device).expand(len(starts) - 1, -1)
        batch = ForwardBatch(
            token_ids=torch.zeros(count, dtype=torch.int64, device=device),
            positions=at,
            slots=at,
            span_starts=torch.tensor(starts, dtype=torch.int32, device=device),
            page_table=table.contiguous(),
        )
        scale = self._model.head_dim**-0.5
        out: Tensor = backend.attention(self._q[at], self._layer, batch, scale=scale, window=window)
        return out


def search_logsumexp(vocab: int) -> Search:
    def search(base: Backend, changed: Any, size: int) -> bool:
        numbers = Numbers("float32", size, base.device)
        for number in range(_num_rounds(base)):
            for kind in ("gaussian", "dust"):
                logits = (numbers.draw(kind, size, vocab) * 2.0 ** (number % 5 - 2)).to(base.device)
                if differ(base.logsumexp(logits), changed.logsumexp(logits)):
                    return True
        return False

    return search


def search_sample(vocab: int) -> Search:
    """Near ties: logits that cancel the noise, and two tokens at the top-p threshold."""

    def search(base: Backend, changed: Any, size: int) -> bool:
        numbers = Numbers("float32", size, base.device)
        for number in range(4 * _num_rounds(base)):
            for case in (_cancelled_noise, _top_p_threshold):
                logits, batch = case(numbers, size, vocab, number)
                moved = SamplingBatch(
                    *(
                        getattr(batch, name).to(base.device)
                        for name in ("temperature", "top_k", "top_p", "min_p", "seeds", "positions")
                    )
                )
                logits = logits.to(base.device)
                if differ(base.sample(logits, moved), changed.sample(logits, moved)):
                    return True
        return False

    return search


def _batch(size: int, number: int, temperature: float, top_p: Tensor) -> SamplingBatch:
    return SamplingBatch(
        temperature=torch.full((size,), temperature),
        top_k=torch.zeros(size, dtype=torch.int32),
        top_p=top_p,
        min_p=torch.zeros(size),
        seeds=torch.arange(size) + 1000 * number,
        positions=torch.full((size,), number),
    )


def _cancelled_noise(numbers: Numbers, size: int, vocab: int, number: int) -> tuple[Tensor, SamplingBatch]:
    """Logits that leave every token within rounding of every other one after the noise is added."""
    temperature = (0.8, 1.0, 1.3)[number % 3]
    batch = _batch(size, number, temperature, torch.ones(size))
    noise = np.stack([_gumbel(int(seed), number, vocab) for seed in batch.seeds])
    return torch.from_numpy((-noise * temperature).astype(np.float32)), batch


def _top_p_threshold(numbers: Numbers, size: int, vocab: int, number: int) -> tuple[Tensor, SamplingBatch]:
    """Two tokens, of which the second is kept if the first alone has less than top_p of the mass.
    top_p is that mass, to the last bit."""
    gap = numbers.rand(size).cpu() * 0.5 + 0.01
    logits = torch.full((size, vocab), -1e4)
    logits[:, 3], logits[:, 1] = 0.0, -gap
    return logits, _batch(size, number, 1.0, (1.0 / (1.0 + torch.exp(-gap.double()))).to(torch.float32))


def _gumbel(seed: int, position: int, vocab: int) -> NDArray[np.float64]:
    """The noise as `backends/c/sampling.c` defines it, in fp64."""
    bits = noise_bits(seed, position, np.arange(vocab))
    w = np.minimum(
        (bits.astype(np.float32) + np.float32(0.5)) * np.float32(2.0**-32), np.float32(1 - 2.0**-24)
    )
    noise: NDArray[np.float64] = -np.log(-np.log1p(-w.astype(np.float64)))
    return noise
