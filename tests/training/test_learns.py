"""A model learns short parity with thoughts, from scratch, on a CPU."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from holdfast_thinking.run.export import export
from holdfast_thinking.run.loop import measure_accuracy, start_run, train
from holdfast_thinking.settings import PRESETS
from thinking.reference import open_reference

SEED = "A coin's state is heads. Alice flips, then Bob flips. What's the state? A:"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """A tiny model trains no faster with more threads, which would compete with other test workers."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.long
@pytest.mark.usefixtures("one_thread")
def test_training_learns_short_parity_with_thoughts(tmp_path: Path) -> None:
    run = start_run(PRESETS["short"], torch.device("cpu"))
    train(run)
    found = measure_accuracy(run, (1, 2, 3, 4), 128)
    assert min(found.values()) > 0.95, found
    export(run.built, run.settings, tmp_path)
    reference = open_reference(tmp_path)
    tokenizer = run.built.tokenizer
    with torch.no_grad():
        said, reading = reference.generate(tokenizer.encode(SEED).ids, 8)
    assert tokenizer.decode(said) == " heads."
    # A coin 's state is heads . Alice | flips , then Bob flips . What 's | the state ? A :
    assert [tokenizer.decode(list(each)) for each in reading.thoughts] == ["", " tails heads"]
