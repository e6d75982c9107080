"""Right answers with the model's own thoughts: a batch at a time, chunk by chunk.

The gold answer is fed to the model. An answer is right if each of its tokens, the end included, has
the highest logit at its position. That is exactly when greedy generation gives the gold answer. The
thoughts of a chunk are generated before the next chunk is read, as in serving. The host waits for
the device only at the end.
"""

from copy import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from holdfast_thinking.model.batch import Batch, Bools, Ints
from holdfast_thinking.model.layer import LayerCache, visible
from holdfast_thinking.model.model import ThinkingModel
from holdfast_thinking.model.packed import IGNORED, pack, send


@dataclass(frozen=True)
class Validation:
    is_right: Bools  # [B]
    thoughts: Ints  # [B, K, max_thought], padded with -1


@torch.no_grad()
def validate(model: ThinkingModel, batch: Batch, device: torch.device) -> Validation:
    if model.thinking is None:
        none = np.full((*batch.thoughts.shape[:2], 1), -1, dtype=np.int64)
        return Validation(_validate_plain(model, batch, device), none)
    order = np.argsort(
        -batch.num_tokens, kind="stable"
    )  # the longest first: texts that have ended are at the end
    best, thoughts = _read(model, batch.take(order), device)
    inverse = np.argsort(order)
    best, thoughts = best[inverse], thoughts[inverse]
    wrong = (best[:, :-1] != batch.token_ids[:, 1:]) & batch.is_answer()[:, 1:]
    is_right = np.asarray(np.logical_not(wrong).all(axis=1), dtype=np.bool_)
    return Validation(is_right, thoughts)


def _validate_plain(model: ThinkingModel, batch: Batch, device: torch.device) -> Bools:
    texts = send(pack(batch, model.pack_spec), device)
    rows, _ = model(texts)
    said = model.logits(rows.index_select(0, texts.answer.rows)).argmax(dim=-1)
    is_wrong = (said != texts.answer.ids) & (texts.answer.ids != IGNORED)
    whose = texts.texts.index_select(0, texts.answer.rows)
    # Padding of the lists is never wrong.
    wrong = np.bincount(whose[is_wrong].cpu().numpy(), minlength=len(batch))
    return np.asarray(wrong == 0, dtype=np.bool_)


def _read(model: ThinkingModel, batch: Batch, device: torch.device) -> tuple[Ints, Ints]:
    """Return the most likely next token at every position [B, L], and the thoughts. Longest text first."""
    assert model.thinking is not None
    c, most = model.thinking.chunk, model.thinking.max_thought
    ids = torch.from_numpy(batch.token_ids).to(device)
    due = torch.from_numpy(batch.is_thought_about(model.thinking)).to(device)
    lengths = batch.ends(model.thinking) - c * np.arange(
        due.shape[1]
    )  # [B, K]: of chunks when they are closed
    order = torch.arange(c, device=device)
    is_kept = torch.from_numpy(~batch.is_reset(model.thinking) & model.thinking.carry).to(device)
    caches = [LayerCache(None if window is None else window - 1) for window in model.config.layer_windows]
    best = torch.full_like(ids, -1)
    thoughts = torch.full((*due.shape, most), -1, dtype=torch.long, device=device)
    state: Tensor | None = None
    before = torch.zeros((len(ids), c, model.config.hidden_size), device=device)  # H of the chunk before
    for chunk in range(due.shape[1]):
        at, n = slice(chunk * c, (chunk + 1) * c), int((batch.num_tokens > chunk * c).sum())
        for each in caches:
            each.narrow(n)
        given, unread = None if state is None else state[:n], [copy(each) for each in caches]
        rows, h = _read_chunk(model, ids[:n, at], chunk * c, given, caches)
        length = torch.from_numpy(lengths[:n, chunk, None]).to(device)
        seen = torch.cat((before[:n].to(h.dtype), h), dim=1)  # T reads c rows of it
        seen = seen.gather(1, (length + order)[:, :, None].expand_as(h))
        thought = _think(model, seen, due[:n, chunk])  # [n, max_thought]
        made, is_thought = model.states(thought), thought[:, :1, None] >= 0
        held = torch.zeros_like(made) if given is None else given
        state = torch.where(is_thought, made, held * is_kept[:n, chunk, None, None])
        if (lengths[:n, chunk] < c).any():  # tokens of a closed chunk add its state
            caches = unread
            given = torch.where((order >= length)[:, :, None], state, held)
            rows, h = _read_chunk(model, ids[:n, at], chunk * c, given, caches)
        before = h
        best[:n, at] = model.logits(rows).argmax(dim=-1)
        thoughts[:n, chunk] = thought
    return best.cpu().numpy(), thoughts.cpu().numpy()


def _read_chunk(
    model: ThinkingModel, ids: Tensor, first: int, state: Tensor | None, caches: list[LayerCache]
) -> tuple[Tensor, Tensor]:
    assert model.thinking is not None
    positions = torch.arange(first, first + ids.shape[1], device=ids.device)
    at = model.rotation(positions)
    x = h = model.embed(ids)
    for index, window in enumerate(model.config.layer_windows):
        held = caches[index].keys
        begin = first - (0 if held is None else held.shape[1])
        key_positions = torch.arange(begin, first + ids.shape[1], device=ids.device)
        x = model.model.layer(index)(x, at, visible(positions, key_positions, window), caches[index])
        if index + 1 == model.thinking.l_in and state is not None:
            x = x + state
        if index + 1 == model.thinking.l_out:
            h = x
    return model.model.norm(x), h


def _think(model: ThinkingModel, h: Tensor, due: Tensor) -> Tensor:
    """Greedy thoughts of a chunk [n, max_thought], padded with -1; none where due is false."""
    assert model.thinking is not None
    most = model.thinking.max_thought
    thought = torch.full((len(h), most), -1, dtype=torch.long, device=h.device)
    is_open = due
    for index in range(most):
        rows = model.thought_rows(h, thought[:, :index])[:, -1]  # [n, hidden]
        token = model.logits(rows).argmax(dim=-1)
        is_open = is_open & (token != model.thinking.end_id)
        if h.device.type == "cpu" and not bool(is_open.any()):
            break  # on a GPU the test would wait for the device
        thought[:, index] = torch.where(is_open, token, -1)
    return thought
