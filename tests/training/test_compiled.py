"""Compiled layers give the gradients of plain ones for any number of rows; a missing compiler is no error."""

import logging
import shutil
from dataclasses import replace

import pytest
import torch

from holdfast_thinking.model.compiled import compile_rowwise
from holdfast_thinking.model.layer import DecoderLayer
from holdfast_thinking.model.loss import packed_loss
from holdfast_thinking.run.loop import start_run
from holdfast_thinking.run.prefetch import send_step
from holdfast_thinking.settings import PRESETS, SIZES

CPU = torch.device("cpu")
COIN = replace(PRESETS["coin"], size=SIZES["tiny"], max_events=6, batch=12)


@pytest.mark.long
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no compiler here")
@pytest.mark.filterwarnings("ignore")  # of the compiler's own
def test_three_compiled_graphs_serve_all_layers_and_sizes() -> None:
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    for events in (3, 6, 9):
        gradients = []
        for is_compiled in (True, False):
            run = start_run(replace(COIN, max_events=events, compile=is_compiled), CPU)
            step = send_step(run.step_builder.build(0), CPU)
            packed_loss(run.model, step.passes[0], step.counts, run.settings.weights).total.backward()
            gradients.append({name: p.grad for name, p in run.model.named_parameters()})
        for name, expected in gradients[1].items():
            torch.testing.assert_close(gradients[0][name], expected, atol=1e-5, rtol=1e-4, msg=name)
    assert counters["stats"]["unique_graphs"] == 3


def test_missing_compiler_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler was found")

    run = start_run(COIN, CPU)
    monkeypatch.setattr(torch, "compile", lambda *_, **__: refuse)
    with caplog.at_level(logging.WARNING):
        assert not compile_rowwise(run.model, CPU)
    assert "not compiled" in caplog.text and "no compiler was found" in caplog.text
    assert run.model.rowwise.before is DecoderLayer.before_attention
    assert all(each.grad is None for each in run.model.parameters())
