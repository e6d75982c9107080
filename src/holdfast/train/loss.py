"""What is learned: the answer, if wished the text before it, and the thoughts.

    loss = answer_weight  * cross-entropy of the answer's tokens (its end included), mean over them
         + text_weight    * cross-entropy of the prompt's tokens, mean over them
         + thought_weight * T's cross-entropy summed over all chunks and their tokens (each thought's end included),
                            over the number of those tokens

Sums are divided by the counts of the whole step, so a step cut into micro-batches has the gradients of the uncut one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from holdfast.train.batch import Batch
from holdfast.train.model import ThinkingModel


@dataclass(frozen=True)
class Weights:
    answer: float = 1.0
    text: float = 0.0
    thought: float = 1.0


@dataclass(frozen=True)
class Counts:
    """How many tokens of a step each part is the mean over."""

    answer: int
    text: int
    thought: int


@dataclass(frozen=True)
class Losses:
    """Each part's share of the step; the total with its weights."""

    total: Tensor
    answer: Tensor
    text: Tensor
    thought: Tensor


def count_tokens(batch: Batch, while_answering: bool) -> Counts:
    thoughts = (batch.thoughts >= 0).sum(axis=2) + 1  # [B, K], with the end
    return Counts(
        answer=int(batch.is_answer().sum()),
        text=int((batch.num_prompt - 1).clip(min=0).sum()),
        thought=int((thoughts * batch.is_thought_about(while_answering)).sum()),
    )


def compute_loss(
    model: ThinkingModel, batch: Batch, counts: Counts, weights: Weights, device: torch.device
) -> Losses:
    """The parallel form, teacher-forced: one pass of everything."""
    ids = torch.from_numpy(batch.token_ids).to(device)  # [B, L]
    gold = torch.from_numpy(batch.thoughts).to(device)  # [B, K, M]
    states = None if model.thinking is None else model.spread_states(gold, ids.shape[1])
    rows, h = model(ids, states)
    zero = rows.new_zeros((), dtype=torch.float32)
    is_answer = torch.from_numpy(batch.is_answer()).to(device)
    answer = _next_token_loss(model, rows, ids, is_answer) / max(1, counts.answer)
    text = zero
    if weights.text:
        places = torch.arange(ids.shape[1], device=device)
        is_text = places < torch.from_numpy(batch.num_prompt).to(device)[:, None]
        text = _next_token_loss(model, rows, ids, is_text) / max(1, counts.text)
    thought = zero
    if model.thinking is not None:
        is_due = torch.from_numpy(batch.is_thought_about(model.thinking.while_answering)).to(device)
        thought = _thought_loss(model, h, gold, is_due, model.thinking.end_id) / max(1, counts.thought)
    total = weights.answer * answer + weights.text * text + weights.thought * thought
    return Losses(total, answer.detach(), text.detach(), thought.detach())


def _next_token_loss(model: ThinkingModel, rows: Tensor, ids: Tensor, is_wanted: Tensor) -> Tensor:
    """Summed over the wanted tokens but the first, each predicted by the row before it."""
    wanted = is_wanted[:, 1:]
    logits = model.logits(rows[:, :-1][wanted])  # [n, vocab]
    return F.cross_entropy(logits.float(), ids[:, 1:][wanted], reduction="sum")


def _thought_loss(model: ThinkingModel, h: Tensor, gold: Tensor, is_due: Tensor, end_id: int) -> Tensor:
    batch, num_chunks, _ = gold.shape
    chunks = h.reshape(batch, num_chunks, -1, h.shape[-1])[is_due]  # [n, c, hidden]
    told = gold[is_due]  # [n, M]
    lens = (told >= 0).sum(dim=1)
    targets = F.pad(told, (0, 1), value=-1)
    targets[torch.arange(len(targets), device=told.device), lens] = end_id  # [n, M + 1]
    is_real = targets >= 0
    rows = model.thought_rows(chunks, told)[is_real]  # [tokens, hidden]
    return F.cross_entropy(model.logits(rows).float(), targets[is_real], reduction="sum")
