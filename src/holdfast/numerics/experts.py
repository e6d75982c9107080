"""The experts of one layer: routing, and the sum of a token's expert outputs.

    x [tokens, hidden] -> router -> fp32 logits [tokens, experts] -> the top k of each token
    tokens sorted by expert, each expert's tokens through its own gate_up and down
    back in the order of tokens: [tokens, k, hidden], summed in the order of a token's own top k

How many tokens an expert gets depends on the batch. So the products of router and experts run in
canonical form in every pass, and a row of the result depends on the same row of x only. Outside the
backend only operations are used that copy, or whose result IEEE 754 defines.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.numerics.arrays import Tensor, arrays_on

_LARGEST = float.fromhex("0x1.fffffep127")  # of fp32

if TYPE_CHECKING:
    from holdfast.numerics.layer import LayerShape
    from holdfast.numerics.ops import Backend, Linear


@dataclass(frozen=True)
class Expert:
    """One gated MLP; gate and up are fused along the output dimension."""

    gate_up: "Linear"
    down: "Linear"


@dataclass(frozen=True)
class ExpertLinears:
    """Hold one projection of all experts of a layer.

    linears: a weight for each expert. stacked: the same memory as one tensor, data [experts, N, K] and bias
    fp32 [experts, N]; None if the backend multiplies expert by expert.
    """

    linears: "tuple[Linear, ...]"
    stacked: "Linear | None" = None


@dataclass(frozen=True)
class SigmoidScores:
    """Experts are chosen by sigmoid(logit) + bias, fp32 [experts]; their weights are sigmoid(logit), times
    `scale` in the end. Weights that add up to 1 are divided by their sum and `eps`."""

    bias: Tensor
    scale: float = 1.0
    eps: float = 1e-6


@dataclass(frozen=True)
class Experts:
    """The experts of one layer; gate and up are fused along the output dimension. top_k experts see a
    token. normalizes: their weights add up to 1, else they are probabilities among all experts.

    shared: an expert for all tokens. With shared_gate its output is multiplied by sigmoid(shared_gate x). sigmoid:
    None: the probabilities are a softmax.
    """

    router: "Linear"
    gate_up: ExpertLinears
    down: ExpertLinears
    top_k: int
    normalizes: bool
    shared: Expert | None = None
    shared_gate: "Linear | None" = None
    sigmoid: SigmoidScores | None = None


def run_experts(ops: "Backend", x: Tensor, layer: Experts, shape: "LayerShape", *, canonical: bool) -> Tensor:
    """x [tokens, hidden] -> [tokens, hidden], summed in fp32 and rounded once."""
    logits = ops.logits(x, layer.router, canonical=True)  # fp32 [tokens, experts]
    weights, ids = ops.route(logits, layer.top_k, normalizes=layer.normalizes, sigmoid=layer.sigmoid)
    experts = [Expert(*parts) for parts in zip(layer.gate_up.linears, layer.down.linears, strict=True)]
    outputs = _expert_outputs(ops, x, ids, experts, shape)  # [tokens, k, hidden]
    total = ops.combine(outputs, weights)  # fp32 [tokens, hidden]
    if layer.shared is not None:
        shared = _run_expert(ops, x, layer.shared, shape, canonical=canonical).float()
        if layer.shared_gate is not None:
            shared = shared * sigmoid(ops, ops.logits(x, layer.shared_gate, canonical=True))
        total += shared
    return total.to(x.dtype)


def route(
    ops: "Backend",
    logits: Tensor,
    top_k: int,
    *,
    normalizes: bool,
    sigmoid: SigmoidScores | None = None,
) -> tuple[Tensor, Tensor]:
    """fp32 logits [tokens, experts] -> the weights fp32 [tokens, k] and ids int64 [tokens, k] of each
    token's experts, by descending probability, ties to the lowest id.

    A logit that is no number is the lowest.
    """
    lowest, highest = -_LARGEST / 4, _LARGEST / 4
    logits = logits.nan_to_num(nan=lowest, posinf=highest, neginf=lowest)
    if sigmoid is not None:
        return _route_by_sigmoid(ops, logits, top_k, sigmoid, normalizes=normalizes)
    top, ids = ops.topk(logits, top_k)
    if not normalizes:
        return ops.exp(top - ops.logsumexp(logits)[:, None]), ids
    weights = ops.exp(top - top[:, :1])
    return weights / _sum_in_order(weights), ids


def _route_by_sigmoid(
    ops: "Backend", logits: Tensor, top_k: int, by: SigmoidScores, *, normalizes: bool
) -> tuple[Tensor, Tensor]:
    scores = sigmoid(ops, logits)
    _, ids = ops.topk(scores + by.bias, top_k)
    weights = scores.gather(1, ids)
    if normalizes:
        weights = weights / (_sum_in_order(weights) + by.eps)
    return weights * by.scale, ids


def _sum_in_order(weights: Tensor) -> Tensor:
    """fp32 [tokens, k] -> [tokens, 1], added in the order of k."""
    total = weights[:, :1].clone()
    for k in range(1, weights.shape[1]):
        total += weights[:, k : k + 1]
    return total


def combine(outputs: Tensor, weights: Tensor) -> Tensor:
    """outputs [tokens, k, hidden], weights fp32 [tokens, k] -> fp32 [tokens, hidden], added in the
    order of k. Every product and every sum is rounded to fp32."""
    total = outputs[:, 0].float() * weights[:, :1]
    for k in range(1, outputs.shape[1]):
        total += outputs[:, k].float() * weights[:, k : k + 1]
    return total


def sigmoid(ops: "Backend", x: Tensor) -> Tensor:
    """1 / (1 + e^-x) of fp32 x."""
    return 1.0 / (ops.exp(-x) + 1.0)


def _expert_outputs(
    ops: "Backend", x: Tensor, ids: Tensor, experts: Sequence[Expert], shape: "LayerShape"
) -> Tensor:
    """x [tokens, hidden], ids int64 [tokens, k] -> the output of each token's experts, [tokens, k,
    hidden]."""
    num_tokens, top_k = ids.shape
    xp = arrays_on(x.device)
    order = ids.flatten().argsort(stable=True)  # int64 [tokens * k]: by expert, then by token
    counts = xp.bincount(ids.flatten(), minlength=len(experts)).tolist()
    rows = x.index_select(0, order // top_k)
    outputs = xp.empty_like(rows)
    start = 0
    for expert, count in zip(experts, counts, strict=True):
        if count:
            part = _run_expert(ops, rows[start : start + count], expert, shape, canonical=True)
            outputs.index_copy_(0, order[start : start + count], part)
            start += count
    return outputs.view(num_tokens, top_k, -1)


def _run_expert(ops: "Backend", x: Tensor, expert: Expert, shape: "LayerShape", *, canonical: bool) -> Tensor:
    inner = activate(ops, ops.linear(x, expert.gate_up, canonical=canonical), shape)
    return ops.linear(inner, expert.down, canonical=canonical)


def activate(ops: "Backend", gate_up: Tensor, shape: "LayerShape") -> Tensor:
    """gate_up [tokens, 2 * intermediate], without a gate [tokens, intermediate] -> [tokens, intermediate]."""
    match shape.activation:
        case "silu":
            return ops.silu_mul(gate_up)
        case "gelu_tanh":
            return ops.gelu_mul(gate_up)
        case "clamped_swiglu":
            return ops.swiglu_mul(gate_up, alpha=shape.swiglu_alpha, limit=shape.swiglu_limit)
        case "relu2":
            positive = gate_up.clamp(min=0)
            return positive.mul_(positive)
