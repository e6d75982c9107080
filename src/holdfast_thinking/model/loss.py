"""The loss: the answer and the thoughts.

    loss = answer_weight  * cross-entropy of the answer's tokens (its end included), mean over them
         + thought_weight * T's cross-entropy of the thoughts' tokens (their ends included), mean over them

Sums are divided by the counts of the whole step, so a step of several micro-batches has the
gradients of one large batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from holdfast.thinking.config import ThinkingConfig
from holdfast_thinking.model.batch import Batch
from holdfast_thinking.model.model import ThinkingModel
from holdfast_thinking.model.packed import Packed, Targets, ThoughtList
from holdfast_thinking.settings import LossWeights


@dataclass(frozen=True)
class TokenCounts:
    answer: int
    thought: int


@dataclass(frozen=True)
class Losses:
    """The terms of this micro-batch, as shares of the step, and their weighted sum."""

    total: Tensor
    answer: Tensor
    thought: Tensor


def count_tokens(batch: Batch, thinking: ThinkingConfig | None) -> TokenCounts:
    lens = (batch.thoughts >= 0).sum(axis=2) + 1  # [B, K], with the end
    num_thought = 0 if thinking is None else lens[batch.is_thought_about(thinking)].sum()
    return TokenCounts(answer=int(batch.is_answer().sum()), thought=int(num_thought))


def packed_loss(
    model: ThinkingModel, texts: Packed[Tensor], counts: TokenCounts, weights: LossWeights
) -> Losses:
    """Compute the loss of packed texts. The host does not wait for the device."""
    rows, h = model(texts)  # [R, hidden] both
    zero = rows.new_zeros((), dtype=torch.float32)
    answer = _target_loss(model, rows, texts.answer) / max(1, counts.answer)
    thought = zero if texts.thought is None else _thought_loss(model, h, texts.target_thoughts, texts.thought)
    thought = thought / max(1, counts.thought)
    total = weights.answer * answer + weights.thought * thought
    return Losses(total, answer.detach(), thought.detach())


def _target_loss(model: ThinkingModel, rows: Tensor, targets: Targets[Tensor]) -> Tensor:
    return model.rowwise.loss(model.logits(rows.index_select(0, targets.rows)), targets.ids)


def _thought_loss(
    model: ThinkingModel, h: Tensor, thoughts: Sequence[ThoughtList[Tensor]], targets: Targets[Tensor]
) -> Tensor:
    assert model.thinking is not None
    order = torch.arange(model.thinking.chunk, device=h.device)
    rows = [model.thought_rows(h[each.rows[:, None] + order], each.tokens) for each in thoughts]
    return _target_loss(model, torch.cat([each.flatten(0, 1) for each in rows]), targets)
