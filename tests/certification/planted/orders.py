"""Orders of summation of a GEMM, as a library, a thread team or another instruction set has them.

An order divides K into groups, multiplies each group with the backend's own kernel and adds the
partial sums. `ReorderedGemm` is a GEMM in such an order, for any backend.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from holdfast.numerics.ops import Backend, Linear

Groups = Callable[[int], list[Tensor]]  # K -> the indices of each group, in order
Combine = Callable[[Sequence[Tensor]], Tensor]  # fp32 partial sums -> fp32


@dataclass(frozen=True)
class Order:
    """Partial sums of groups of K. Without groups `multiply` computes the product of fp32 operands
    x [M, K] and weight [N, K]."""

    name: str
    groups: Groups | None = None
    combine: Combine | None = None
    multiply: Callable[[Tensor, Tensor], Tensor] | None = None
    bias_first: bool = False


class ReorderedGemm:
    """The two GEMM operations of a backend in another order."""

    def __init__(self, base: Backend, order: Order) -> None:
        self._base, self._order = base, order
        self._weights: dict[int, tuple[Linear, Tensor]] = {}
        self._pieces: dict[int, list[tuple[Tensor, Linear]]] = {}

    def remember(self, packed: Linear, weight: Tensor, bias: Tensor | None) -> None:
        dtype = getattr(torch, self._base.recipe.dtype)
        self._weights[id(packed.data)] = packed, weight.to(self._base.device, dtype)

    def linear(self, x: Tensor, w: Linear, *, canonical: bool) -> Tensor:
        return self.logits(x, w, canonical=canonical).to(x.dtype)

    def logits(self, x: Tensor, w: Linear, *, canonical: bool) -> Tensor:
        order = self._order
        if order.multiply is not None:
            _, weight = self._weights[id(w.data)]
            total = order.multiply(x.to(torch.float32), weight.to(torch.float32))
            return total if w.bias is None else total + w.bias
        parts = [
            self._base.logits(x[:, group].contiguous(), piece, canonical=True)
            for group, piece in self._split(w)
        ]
        assert order.combine is not None
        if w.bias is None:
            return order.combine(parts)
        return (
            order.combine([w.bias + parts[0], *parts[1:]])
            if order.bias_first
            else order.combine(parts) + w.bias
        )

    def _split(self, w: Linear) -> list[tuple[Tensor, Linear]]:
        """The groups of K and the packed weights of each."""
        found = self._pieces.get(id(w.data))
        if found is None:
            _, weight = self._weights[id(w.data)]
            assert self._order.groups is not None
            groups = [group.to(weight.device) for group in self._order.groups(w.in_features) if len(group)]
            found = [(group, self._base.pack(weight[:, group].contiguous())) for group in groups]
            self._pieces[id(w.data)] = found
        return found


def in_sequence(parts: Sequence[Tensor]) -> Tensor:
    return reduce(torch.add, parts)


def pairwise(parts: Sequence[Tensor]) -> Tensor:
    while len(parts) > 1:
        pairs = [parts[i] + parts[i + 1] for i in range(0, len(parts) - 1, 2)]
        parts = [*pairs, *parts[len(parts) // 2 * 2 :]]
    return parts[0]


def _rounded_to(round_one: Callable[[Tensor], Tensor]) -> Combine:
    """The running sum is rounded after every group."""

    def combine(parts: Sequence[Tensor]) -> Tensor:
        return reduce(lambda total, part: round_one(total + part), parts, torch.zeros_like(parts[0]))

    return combine


def to_bf16(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16).to(torch.float32)


def to_tf32(x: Tensor) -> Tensor:
    """Ten bits of mantissa, rounded to nearest."""
    bits = x.contiguous().view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)


def contiguous_groups(count: int) -> Groups:
    return lambda width: list(torch.arange(width).tensor_split(count))


def blocks(length: int) -> Groups:
    return lambda width: [
        torch.arange(start, min(start + length, width)) for start in range(0, width, length)
    ]


def lanes(count: int) -> Groups:
    return lambda width: [torch.arange(width)[lane::count] for lane in range(count)]


def _reversed(width: int) -> list[Tensor]:
    return [torch.arange(width).flip(0)]


def _swapped(first: float, second: float) -> Groups:
    """Two leaves change places; they are given as shares of K."""

    def groups(width: int) -> list[Tensor]:
        order = torch.arange(width)
        i, j = int(first * (width - 1)), int(second * (width - 1))
        j = j if j != i else min(i + 1, width - 1)
        order[i], order[j] = j, i
        return [order]

    return groups


def _tail_apart(length: int) -> Groups:
    """K as a multiple of `length`, then the rest; the last fifth of a block where there is none."""

    def groups(width: int) -> list[Tensor]:
        rest = width % length or max(1, length // 5)
        return [torch.arange(width - rest), torch.arange(width - rest, width)]

    return groups


def _threads(width: int) -> list[Tensor]:
    """Three threads, the first with the smallest share."""
    first = width // 5
    return [torch.arange(first), *torch.arange(first, width).tensor_split(2)]


def _double(x: Tensor, weight: Tensor) -> Tensor:
    return (x.double() @ weight.double().T).to(torch.float32)


def _products(x: Tensor, weight: Tensor) -> Tensor:
    return x.T[:, :, None] * weight.T[:, None, :]  # [K, M, N]


def _chain_without_fma(x: Tensor, weight: Tensor) -> Tensor:
    return in_sequence(list(_products(x, weight)))


def _chain_with_fma(x: Tensor, weight: Tensor) -> Tensor:
    """The product is exact in fp64. The sum is rounded to fp64 and then to fp32."""
    total = torch.zeros(len(x), len(weight), dtype=torch.float32, device=x.device)
    for product in _products(x.double(), weight.double()):
        total = (total.double() + product).to(torch.float32)
    return total


def _kahan(x: Tensor, weight: Tensor) -> Tensor:
    total = torch.zeros(len(x), len(weight), dtype=torch.float32, device=x.device)
    lost = torch.zeros_like(total)
    for product in _products(x, weight):
        term = product - lost
        new = total + term
        lost, total = (new - total) - term, new
    return total


HALVES = Order("K in two halves", contiguous_groups(2), in_sequence)
ELEMENTWISE = (
    Order("products rounded, no fma", multiply=_chain_without_fma),
    Order("one chain of fma", multiply=_chain_with_fma),
    Order("Kahan summation", multiply=_kahan),
    Order("operands rounded to tf32", multiply=lambda x, w: _chain_with_fma(to_tf32(x), to_tf32(w))),
)
ORDERS = (
    HALVES,
    *(Order(f"split-K {n}", contiguous_groups(n), in_sequence) for n in (4, 8)),
    *(Order(f"split-K {n}, pairwise", contiguous_groups(n), pairwise) for n in (4, 8)),
    *(Order(f"blocks of {n} in sequence", blocks(n), in_sequence) for n in (16, 32, 64, 128, 256)),
    *(Order(f"blocks of {n} pairwise", blocks(n), pairwise) for n in (16, 32, 64, 128, 256)),
    *(Order(f"{n} lanes", lanes(n), pairwise) for n in (4, 8, 16, 32)),
    Order("reversed", _reversed, in_sequence),
    Order("first two leaves swapped", _swapped(0, 0), in_sequence),
    Order("two middle leaves swapped", _swapped(0.5, 0.5), in_sequence),
    Order("first and last leaf swapped", _swapped(0, 1), in_sequence),
    Order("two leaves swapped, third apart", _swapped(1 / 3, 2 / 3), in_sequence),
    Order("tail apart", _tail_apart(32), in_sequence),
    Order("three threads over K", _threads, in_sequence),
    Order("fp64 accumulation", multiply=_double),
    Order("running sum rounded to bf16", blocks(64), _rounded_to(to_bf16)),
    Order("running sum rounded to tf32", blocks(64), _rounded_to(to_tf32)),
)
BIAS_FIRST = Order("bias added to the first half", contiguous_groups(2), in_sequence, bias_first=True)
