"""A model learns to think: short parity, from nothing, on this CPU."""

from pathlib import Path

import pytest
import torch

from holdfast.models.checkpoint import open_checkpoint
from holdfast.thinking.config import read_thinking
from holdfast.thinking.reference import Reference
from holdfast.thinking.weights import read_thinking_weights
from holdfast.train.export import export
from holdfast.train.loop import measure_accuracy, start_run, train
from holdfast.train.settings import PRESETS

SEED = "A coin's state is heads. Alice flips, then Bob flips. What's the state? A:"


@pytest.mark.slow
def test_short_parity_is_learned_and_thought(tmp_path: Path) -> None:
    run = start_run(PRESETS["short"], torch.device("cpu"))
    train(run)
    found = measure_accuracy(run, (1, 2, 3, 4), 128)
    assert sum(found.values()) / 4 > 0.95, found
    export(run.built, run.settings, tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    thinking = read_thinking(tmp_path, checkpoint.config)
    assert thinking is not None
    weights = {name: checkpoint.tensor(name) for name in checkpoint.names()}
    weights |= read_thinking_weights(tmp_path, thinking, checkpoint.config)
    reference = Reference(checkpoint.config, thinking, weights)
    tokenizer = run.built.tokenizer
    with torch.no_grad():
        said, reading = reference.generate(tokenizer.encode(SEED).ids, 8)
    assert tokenizer.decode(said) == " heads."
    # A coin 's state is heads . Alice | flips , then Bob flips . What 's | the state ? A :
    assert [tokenizer.decode(list(each)) for each in reading.thoughts[:3]] == ["", " tails heads", ""]
