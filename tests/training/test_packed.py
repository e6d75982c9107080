"""Texts packed for the device: indices, sizes, and a step in which the host never waits for the device."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from holdfast.errors import ConfigError
from holdfast_thinking.model.layer import attend, attend_locally, fold_groups, visible_locally
from holdfast_thinking.model.loss import packed_loss
from holdfast_thinking.model.model import attend_whole
from holdfast_thinking.model.packed import IGNORED, NO_TEXT, WholeTexts, list_whole, pack, padded, send
from holdfast_thinking.run.loop import start_run
from holdfast_thinking.run.prefetch import prefetch_steps, send_step
from holdfast_thinking.settings import PRESETS, SIZES

CPU = torch.device("cpu")
COIN = replace(PRESETS["coin"], size=SIZES["tiny"], max_events=6, batch=12)


@pytest.mark.parametrize("window", [1, 7, 8, 13])
def test_local_attention_equals_masked_attention(window: int) -> None:
    """Three texts and spare rows, in blocks and under one mask over all; gradients too."""
    torch.manual_seed(0)
    block = 16
    texts = torch.tensor([0] * 20 + [1] * 3 + [2] * 33 + [NO_TEXT] * 8)
    given = [torch.randn(64, heads, 8, dtype=torch.double, requires_grad=True) for heads in (4, 2, 2)]
    q, k, v = given
    locally = attend_locally(q, k, v, fold_groups(visible_locally(texts, window, block), 2), block)
    back = torch.arange(64)[:, None] - torch.arange(64)[None, :]
    seen = (back >= 0) & (back < window) & (texts[:, None] == texts[None, :])
    masked = attend(q[None], k[None], v[None], fold_groups(seen, 2))[0]
    assert torch.allclose(locally, masked, atol=1e-12)
    repeated = [each.repeat_interleave(2, dim=1).transpose(0, 1) for each in (k, v)]
    plain = F.scaled_dot_product_attention(q.transpose(0, 1), *repeated, attn_mask=seen).transpose(0, 1)
    assert torch.allclose(locally, plain, atol=1e-12)
    weights = torch.randn_like(locally)
    mine = torch.autograd.grad((locally * weights).sum(), given)
    theirs = torch.autograd.grad((plain * weights).sum(), given)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(mine, theirs, strict=True))


def test_attention_over_whole_texts_equals_masked_attention() -> None:
    """Texts of different lengths and spare rows between them; gradients too."""
    torch.manual_seed(0)
    lens, starts, num_rows = np.array([20, 3, 33]), np.array([0, 24, 28]), 64
    text, position = np.nonzero(np.arange(33) < lens[:, None])
    rows = starts[text] + position
    texts = torch.full((num_rows,), NO_TEXT)
    texts[rows] = torch.from_numpy(text)
    listed = list_whole(lens, starts, text, position, rows, num_rows)
    whole = WholeTexts(*(torch.from_numpy(each) for each in (listed.rows, listed.back, listed.lens)))
    given = [torch.randn(num_rows, heads, 8, dtype=torch.double, requires_grad=True) for heads in (4, 2, 2)]
    mine = attend_whole(whole, texts >= 0, *given)
    order = torch.arange(num_rows)
    seen = (order[:, None] >= order[None, :]) & (texts[:, None] == texts[None, :])
    q, k, v = (each[None] for each in given)
    masked = attend(q, k, v, fold_groups(seen, 2))[0]
    assert torch.allclose(mine[rows], masked[rows], atol=1e-12)
    weights = torch.randn_like(masked[rows])
    gradients = torch.autograd.grad((mine[rows] * weights).sum(), given)
    expected = torch.autograd.grad((masked[rows] * weights).sum(), given)
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(gradients, expected, strict=True))


def test_pack_has_every_text_and_every_target() -> None:
    run = start_run(COIN, CPU)
    batch = run.source.batch(3)
    texts = pack(batch, run.model.pack_spec)
    for row in range(len(batch)):
        n = batch.num_tokens[row]
        own = np.nonzero(texts.texts == row)[0]
        assert own[0] % COIN.chunk == 0 and (np.diff(own) == 1).all()
        assert (texts.token_ids[own] == batch.token_ids[row, :n]).all()
        assert (texts.positions[own] == np.arange(n)).all()
    assert (texts.texts[-COIN.chunk :] == NO_TEXT).all()
    assert texts.thought is not None
    is_real = texts.answer.ids != IGNORED
    assert is_real.sum() == (batch.num_tokens - batch.num_prompt).sum()
    assert (texts.token_ids[texts.answer.rows[is_real] + 1] == texts.answer.ids[is_real]).all()
    is_due = batch.is_thought_about(run.model.thinking)
    said = np.sort(texts.thought.ids[texts.thought.ids != IGNORED])
    gold = batch.thoughts[is_due]
    ends = np.full(is_due.sum(), run.model.thinking.end_id)
    assert (said == np.sort(np.concatenate((gold[gold >= 0], ends)))).all()


@pytest.mark.parametrize("form", ["thinking", "none"])
def test_text_longer_than_the_model_is_refused(form: Any) -> None:
    run = start_run(replace(COIN, form=form, context=48), CPU)
    batch = run.source.batch(0)
    assert run.model.pack_spec.max_len == 48 < batch.num_tokens.max()
    with pytest.raises(ConfigError, match="48 positions; use shorter texts"):
        pack(batch, run.model.pack_spec)


def test_padded_counts_have_few_sizes() -> None:
    assert len({padded(n) for n in range(47_000, 56_000)}) <= 6
    assert all(n <= padded(n) < n + max(16, n / 16 + 1) for n in range(1, 5000))
    assert padded(1000, 24) % 24 == 0


class _Asked(TorchDispatchMode):
    """Refuses operations that make the host wait for the device, or whose result sizes depend on data."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if any(each in name for each in ("nonzero", "_local_scalar_dense", "masked_select", "is_nonzero")):
            self.names.add(name)
        if "index.Tensor" in name and any(i is not None and i.dtype == torch.bool for i in args[1]):
            self.names.add(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("form", "window"), [("thinking", 16), ("thinking", None), ("cot", None)])
def test_step_never_waits_for_the_device(form: Any, window: int | None) -> None:
    run = start_run(replace(COIN, form=form, window=window), CPU)
    step = send_step(run.step_builder.build(0), CPU)
    with _Asked() as asked:
        packed_loss(run.model, step.passes[0], step.counts, run.settings.weights).total.backward()
        torch.nn.utils.clip_grad_norm_(run.model.parameters(), 1.0, foreach=True)
    assert not asked.names


def test_windows_wider_than_the_texts_have_no_effect() -> None:
    """Blocks with a window, whole texts with a wider one: the same loss if no text is longer."""
    batch = start_run(COIN, CPU).source.batch(0).take_range(0, 4)
    longest = int(batch.num_tokens.max())
    losses = []
    for window in (longest - 1, longest, None):
        run = start_run(replace(COIN, window=window), CPU)
        texts = send(pack(batch, run.model.pack_spec), CPU)
        assert (texts.whole is None) == (window == longest - 1)
        rows, _ = run.model(texts)
        losses.append([rows[texts.texts == row][: longest - 1] for row in range(4)])
    for others in losses[1:]:
        for mine, theirs in zip(losses[0], others, strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.long
def test_processes_build_the_same_steps_as_a_thread() -> None:
    run = start_run(COIN, CPU)
    by_processes, by_thread = (prefetch_steps(run.step_builder, CPU, 5, workers) for workers in (1, 0))
    for _ in range(4):
        mine, theirs = next(by_processes), next(by_thread)
        assert mine.counts == theirs.counts
        arrays: list[list[torch.Tensor]] = [[], []]
        for sent, held in zip((mine, theirs), arrays, strict=True):
            sent.passes[0].map(lambda each, held=held: held.append(each) or each)
        assert all(torch.equal(a, b) for a, b in zip(*arrays, strict=True))
    by_processes.close()
    by_thread.close()
