"""The kernels of experts: near fp64, and equal in all forms where every sum is exact.

Their bits for inexact sums are a property of the GPU; `tests/gpu/test_experts_on_gpu.py` compares them
there.
"""

import pytest
import torch
from torch import Tensor

from holdfast.numerics.experts import SigmoidScores
from holdfast.numerics.layer import Activation, LayerShape

pytest.importorskip("triton")

HAS_CUDA = torch.cuda.is_available()
DEVICE = "cuda" if HAS_CUDA else "cpu"
NUM_EXPERTS, TOP_K, WIDTH, OUTPUTS = 5, 2, 80, 72  # no multiples of a tile

pytestmark = [pytest.mark.usefixtures("interpreter"), *([pytest.mark.gpu] if HAS_CUDA else [])]


def _exact(*shape: int, seed: int) -> Tensor:
    """Small multiples of 1/16: each sum of products is exact in fp32, in every order."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.randint(-8, 9, shape, generator=generator) / 16).to(torch.float16).to(DEVICE)


def _ids(num_tokens: int, spread: str) -> Tensor:
    """int32 [tokens, TOP_K]: all tokens with the same experts, or each with its own."""
    first = torch.arange(num_tokens) if spread == "spread" else torch.full((num_tokens,), 3)
    ids = torch.stack([first % NUM_EXPERTS, (first + 2) % NUM_EXPERTS], 1)
    return ids.to(torch.int32).to(DEVICE)


@pytest.mark.parametrize("spread", ["spread", "one-expert"])
@pytest.mark.parametrize("num_tokens", [1, 3, 40, 150])
def test_all_forms_multiply_each_row_by_its_experts(num_tokens: int, spread: str) -> None:
    from holdfast.numerics.backends.triton.gemms import grouped_gemm, routing

    x, weight = _exact(num_tokens, WIDTH, seed=1), _exact(NUM_EXPERTS, OUTPUTS, WIDTH, seed=2)
    bias = _exact(NUM_EXPERTS, OUTPUTS, seed=3).float()
    ids = _ids(num_tokens, spread)
    chosen = ids.flatten().long()
    rows = x.repeat_interleave(TOP_K, 0).double()
    expected = torch.einsum("pk,pnk->pn", rows, weight[chosen].double()) + bias[chosen].double()
    for tile in (*grouped_gemm.forms(torch.float16), *grouped_gemm.forms(torch.float32)):
        assignment = routing.assign(ids, NUM_EXPERTS, tile)
        out = grouped_gemm.multiply(
            x, weight, bias, assignment, tile, rows_per_input=TOP_K, dtype=torch.float32
        )
        assert torch.equal(out.double(), expected)


@pytest.mark.parametrize(
    ("activation", "every_form"),
    [
        pytest.param("silu", True, id="silu"),
        *(pytest.param(each, False, id=each) for each in ("gelu_tanh", "clamped_swiglu")),
        *(
            pytest.param(each, True, id=f"{each} in every form", marks=pytest.mark.long)
            for each in ("gelu_tanh", "clamped_swiglu")
        ),
    ],
)
def test_gate_and_up_are_activated(activation: Activation, every_form: bool) -> None:
    """In every form, or in the canonical form of each dtype."""
    from holdfast.numerics.backends.triton import elementwise
    from holdfast.numerics.backends.triton.gemms import grouped_gemm, routing

    by_dtype = [grouped_gemm.forms(dtype) for dtype in (torch.float16, torch.float32)]
    tiles = [tile for forms in by_dtype for tile in (forms if every_form else forms[-1:])]
    shape = LayerShape(1, 1, 64, 1e-5, 1.0, activation, swiglu_alpha=1.7, swiglu_limit=0.5)
    x, weight = _exact(24, WIDTH, seed=4), _exact(NUM_EXPERTS, 2 * OUTPUTS, WIDTH, seed=5)
    for tile in tiles:
        assignment = routing.assign(_ids(24, "spread"), NUM_EXPERTS, tile)
        fused = grouped_gemm.multiply(x, weight, None, assignment, tile, rows_per_input=TOP_K, gated=shape)
        plain = grouped_gemm.multiply(x, weight, None, assignment, tile, rows_per_input=TOP_K)
        if activation == "clamped_swiglu":
            expected = elementwise.swiglu_mul(plain, None, torch.float16, alpha=1.7, limit=0.5)
        else:
            expected = elementwise.silu_mul(plain, None, torch.float16, gelu=activation == "gelu_tanh")
        assert torch.equal(fused, expected)


def test_ties_go_to_the_lowest_expert_and_no_number_is_chosen_last() -> None:
    from holdfast.numerics.backends.triton.gemms import routing

    nan, inf = float("nan"), float("inf")
    logits = torch.tensor([[1.0, 2, 2, 2], [0, 0, 0, 0], [nan, -1, nan, -2], [inf, 0, inf, -inf]]).to(DEVICE)
    weights, ids = routing.route(logits[None], None, 4, 2, normalizes=True)
    assert ids.tolist() == [[1, 2], [0, 1], [1, 3], [0, 2]]
    assert weights.isfinite().all()
    assert weights[[0, 1, 3]].tolist() == [[0.5, 0.5]] * 3


@pytest.mark.parametrize("normalizes", [True, False])
def test_biased_sigmoids_choose_experts(normalizes: bool) -> None:
    """The bias decides who sees a token, and is no part of the weights."""
    from holdfast.numerics.backends.triton.gemms import routing

    logits = torch.randn((6, NUM_EXPERTS), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    logits[5] = float("nan")
    bias = torch.tensor([0.0, 5.0, 0.1, -5.0, 0.2], device=DEVICE)
    found, ids = routing.route(
        *(logits[None], None, NUM_EXPERTS, TOP_K), normalizes=normalizes, sigmoid=SigmoidScores(bias, 2.5)
    )
    scores = logits.nan_to_num(nan=-1e38).sigmoid()
    chosen = (scores + bias).topk(TOP_K, 1).indices
    weights = scores.gather(1, chosen)
    expected = weights / (weights.sum(1, keepdim=True) + 1e-6) if normalizes else weights
    assert torch.equal(ids.long(), chosen)
    torch.testing.assert_close(found, 2.5 * expected)


@pytest.mark.parametrize("num_tokens", [20, 700, 9000])
def test_assign_lists_the_pairs_of_each_expert_in_order(num_tokens: int) -> None:
    from holdfast.numerics.backends.triton.gemms import grouped_gemm, routing

    ids = torch.randint(0, NUM_EXPERTS, (num_tokens, TOP_K), generator=torch.Generator().manual_seed(7))
    assignment = routing.assign(
        ids.to(torch.int32).to(DEVICE), NUM_EXPERTS + 1, grouped_gemm.forms(torch.float16)[-1]
    )
    assert assignment.members is not None
    assert assignment.counts is not None
    for expert in range(NUM_EXPERTS + 1):
        expected = (ids.flatten() == expert).nonzero().flatten().tolist()
        assert assignment.members[expert, : assignment.counts[expert]].tolist() == expected


def test_combine_adds_in_the_order_of_the_experts() -> None:
    from holdfast.numerics.backends.triton.gemms import routing
    from holdfast.numerics.backends.triton.gemms.partial_sums import ExpertOutputs

    outputs, shared = _exact(6, WIDTH, seed=8), _exact(3, WIDTH, seed=9)
    weights = torch.tensor([[0.5, 0.25], [1.0, 0.0], [0.125, 2.0]], device=DEVICE)
    expected = (outputs.view(3, 2, WIDTH).double() * weights.double()[..., None]).sum(1)
    assert torch.equal(routing.combine(ExpertOutputs(outputs, weights)), expected.to(torch.float16))
    gate = torch.zeros((3, 1), device=DEVICE)
    combined = routing.combine(ExpertOutputs(outputs, weights, shared, gate))
    assert torch.equal(combined, (expected + shared.double() / 2).to(torch.float16))


def test_row_dot_is_near_fp64() -> None:
    from holdfast.numerics.backends.triton.gemms import routing

    x, weight = _exact(7, 1000, seed=10), _exact(1, 1000, seed=11)
    assert torch.equal(routing.row_dot(x, weight).double(), x.double() @ weight.double().T)
