"""How many answers are right when the model thinks its own thoughts: a batch at a time, chunk by chunk.

The gold answer is read as if it had been written; an answer counts when every one of its tokens, the end included, was
the highest logit where it stands. That is the greedy answer being the gold one, exactly, with no need to generate it.
A chunk's thoughts are written before the next chunk is read, as in serving; nothing waits for the device until the end.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from holdfast.training.batch import Batch, Bools, Ints
from holdfast.training.layer import Kept, sees
from holdfast.training.model import ThinkingModel
from holdfast.training.packed import IGNORED, pack, send


@dataclass(frozen=True)
class Outcome:
    """Of each text: whether its answer was right, whether all its thoughts were gold, and what was thought."""

    is_right: Bools  # [B]
    thinks_right: Bools  # [B]
    thoughts: Ints  # [B, K, max_thought], -1 behind each


@torch.no_grad()
def answer(model: ThinkingModel, batch: Batch, device: torch.device) -> Outcome:
    """Read a batch with the model's own thoughts."""
    if model.thinking is None:
        none = np.full((*batch.thoughts.shape[:2], 1), -1, dtype=np.int64)
        return Outcome(_answer_plainly(model, batch, device), np.ones(len(batch), dtype=np.bool_), none)
    order = np.argsort(-batch.num_tokens, kind="stable")  # the longest first: who is done is at the end
    best, thoughts = _read(model, batch.take(order), device)
    place_of = np.argsort(order)
    best, thoughts = best[place_of], thoughts[place_of]
    wrong = (best[:, :-1] != batch.token_ids[:, 1:]) & batch.is_answer()[:, 1:]
    is_right = np.asarray(np.logical_not(wrong).all(axis=1), dtype=np.bool_)
    return Outcome(is_right, _same_thoughts(model, batch, thoughts), thoughts)


def _answer_plainly(model: ThinkingModel, batch: Batch, device: torch.device) -> Bools:
    texts = send(pack(batch, model.reader), device)
    rows, _ = model(texts)
    said = model.logits(rows.index_select(0, texts.answer.rows)).argmax(dim=-1)
    is_wrong = (said != texts.answer.ids) & (texts.answer.ids != IGNORED)
    whose = texts.texts.index_select(0, texts.answer.rows)
    wrong = np.bincount(
        whose[is_wrong].cpu().numpy(), minlength=len(batch)
    )  # what lists are padded with is never wrong
    return np.asarray(wrong == 0, dtype=np.bool_)


def _read(model: ThinkingModel, batch: Batch, device: torch.device) -> tuple[Ints, Ints]:
    """Of texts, the longest first: the best next token at every place [B, L], and the thoughts."""
    assert model.thinking is not None
    c, most = model.thinking.chunk, model.thinking.max_thought
    ids = torch.from_numpy(batch.token_ids).to(device)
    due = torch.from_numpy(batch.is_thought_about(model.thinking.while_answering)).to(device)
    kept = [Kept(None if window is None else window - 1) for window in model.config.layer_windows]
    best = torch.full_like(ids, -1)
    thoughts = torch.full((*due.shape, most), -1, dtype=torch.long, device=device)
    state: Tensor | None = None
    for chunk in range(due.shape[1]):
        at, n = slice(chunk * c, (chunk + 1) * c), int((batch.num_tokens > chunk * c).sum())
        for each in kept:
            each.narrow(n)
        rows, h = _read_chunk(model, ids[:n, at], chunk * c, None if state is None else state[:n], kept)
        best[:n, at] = model.logits(rows).argmax(dim=-1)
        thought = _think(model, h, due[:n, chunk])  # [n, max_thought]
        state = model.states(thought) * (thought[:, :1, None] >= 0)
        thoughts[:n, chunk] = thought
    return best.cpu().numpy(), thoughts.cpu().numpy()


def _read_chunk(
    model: ThinkingModel, ids: Tensor, first: int, state: Tensor | None, kept: list[Kept]
) -> tuple[Tensor, Tensor]:
    assert model.thinking is not None
    places = torch.arange(first, first + ids.shape[1], device=ids.device)
    at = model.rotation(places)
    x = h = model.embed(ids)
    for index, window in enumerate(model.config.layer_windows):
        held = kept[index].keys
        begin = first - (0 if held is None else held.shape[1])
        theirs = torch.arange(begin, first + ids.shape[1], device=ids.device)
        x = model.model.layer(index)(x, at, sees(places, theirs, window), kept[index])
        if index + 1 == model.thinking.l_in and state is not None:
            x = x + state
        if index + 1 == model.thinking.l_out:
            h = x
    return model.model.norm(x), h


def _think(model: ThinkingModel, h: Tensor, due: Tensor) -> Tensor:
    """Greedy thoughts of a chunk [n, max_thought], -1 behind each; nothing where none is due."""
    assert model.thinking is not None
    most = model.thinking.max_thought
    thought = torch.full((len(h), most), -1, dtype=torch.long, device=h.device)
    open_ = due
    for place in range(most):
        rows = model.thought_rows(h, thought[:, :place])[:, -1]  # [n, hidden]
        token = model.logits(rows).argmax(dim=-1)
        open_ = open_ & (token != model.thinking.end_id)
        if h.device.type == "cpu" and not bool(open_.any()):
            break  # another device would have to be waited for
        thought[:, place] = torch.where(open_, token, -1)
    return thought


def _same_thoughts(model: ThinkingModel, batch: Batch, thoughts: Ints) -> Bools:
    assert model.thinking is not None
    width = max(thoughts.shape[2], batch.thoughts.shape[2])
    own, gold = (
        np.pad(each, ((0, 0), (0, 0), (0, width - each.shape[2])), constant_values=-1)
        for each in (thoughts, batch.thoughts)
    )
    due = batch.is_thought_about(model.thinking.while_answering)
    differs: Bools = ((own != gold).any(axis=2) & due).any(axis=1)
    return ~differs
