"""How many answers are right when the model thinks its own thoughts: a batch at a time, chunk by chunk.

The gold answer is read as if it had been written; an answer counts when every one of its tokens, the end included, was
the highest logit where it stands. That is the greedy answer being the gold one, exactly, with no need to generate it.
A chunk's thoughts are written before the next chunk is read, as in serving.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from holdfast.train.batch import Batch, Bools, Ints
from holdfast.train.layer import Kept, sees
from holdfast.train.model import ThinkingModel


@dataclass(frozen=True)
class Outcome:
    """Of each text: whether its answer was right, whether all its thoughts were gold, and what was thought."""

    is_right: Bools  # [B]
    thinks_right: Bools  # [B]
    thoughts: Ints  # [B, K, max_thought], -1 behind each


@torch.no_grad()
def answer(model: ThinkingModel, batch: Batch, device: torch.device) -> Outcome:
    """Read a batch with the model's own thoughts."""
    ids = torch.from_numpy(batch.token_ids).to(device)
    best, thoughts = _read(model, ids, batch, device)
    says = torch.zeros_like(ids)
    says[:, 1:] = best[:, :-1]
    wrong = (says != ids).cpu().numpy() & batch.is_answer()
    is_right = np.asarray(np.logical_not(wrong).all(axis=1), dtype=np.bool_)
    return Outcome(is_right, _same_thoughts(model, batch, thoughts), thoughts)


def _read(model: ThinkingModel, ids: Tensor, batch: Batch, device: torch.device) -> tuple[Tensor, Ints]:
    """The best next token at every place [B, L], and the thoughts."""
    if model.thinking is None:
        return _best(model, model(ids, None)[0]), np.full((*batch.thoughts.shape[:2], 1), -1, dtype=np.int64)
    c = model.thinking.chunk
    num_chunks = ids.shape[1] // c
    due = torch.from_numpy(batch.is_thought_about(model.thinking.while_answering)).to(device)
    windows = model.config.layer_windows
    kept = [Kept(None if window is None else window - 1) for window in windows]
    state: Tensor | None = None
    best, thoughts = [], []
    for chunk in range(num_chunks):
        rows, h = _read_chunk(model, ids[:, chunk * c : (chunk + 1) * c], chunk * c, state, kept)
        best.append(_best(model, rows))
        thought = _think(model, h, due[:, chunk])  # [B, max_thought]
        is_told = thought[:, 0] >= 0
        state = None
        if bool(is_told.any()):
            made = model.states(thought[is_told])
            state = made.new_zeros(len(ids), *made.shape[1:])
            state[is_told] = made
        thoughts.append(thought)
    return torch.cat(best, dim=1), torch.stack(thoughts, dim=1).cpu().numpy()


def _best(model: ThinkingModel, rows: Tensor) -> Tensor:
    return model.logits(rows).argmax(dim=-1)


def _read_chunk(
    model: ThinkingModel, ids: Tensor, first: int, state: Tensor | None, kept: list[Kept]
) -> tuple[Tensor, Tensor]:
    assert model.thinking is not None
    places = torch.arange(first, first + ids.shape[1], device=ids.device)
    x = h = model.embed(ids)
    for index, window in enumerate(model.config.layer_windows):
        held = kept[index].keys
        begin = first - (0 if held is None else held.shape[2])
        theirs = torch.arange(begin, first + ids.shape[1], device=ids.device)
        x = model.model.layer(index)(x, model.rotation(places), sees(places, theirs, window), kept[index])
        if index + 1 == model.thinking.l_in and state is not None:
            x = x + state
        if index + 1 == model.thinking.l_out:
            h = x
    return model.model.norm(x), h


def _think(model: ThinkingModel, h: Tensor, due: Tensor) -> Tensor:
    """Greedy thoughts of a chunk [B, max_thought], -1 behind each; nothing where none is due."""
    assert model.thinking is not None
    most = model.thinking.max_thought
    thought = torch.full((len(h), most), -1, dtype=torch.long, device=h.device)
    open_ = due.clone()
    for place in range(most):
        rows = model.thought_rows(h, thought[:, :place])[:, -1]  # [B, hidden]
        token = model.logits(rows).argmax(dim=-1)
        open_ = open_ & (token != model.thinking.end_id)
        if not bool(open_.any()):
            break
        thought[:, place] = torch.where(open_, token, -1)
    return thought


def _same_thoughts(model: ThinkingModel, batch: Batch, thoughts: Ints) -> Bools:
    width = max(thoughts.shape[2], batch.thoughts.shape[2])
    own, gold = (
        np.pad(each, ((0, 0), (0, 0), (0, width - each.shape[2])), constant_values=-1)
        for each in (thoughts, batch.thoughts)
    )
    if model.thinking is None:
        return np.ones(len(batch), dtype=np.bool_)
    due = batch.is_thought_about(model.thinking.while_answering)
    differs: Bools = ((own != gold).any(axis=2) & due).any(axis=1)
    return ~differs
