"""T as CUDA graphs gives the thoughts of T itself. Captures are faked: work runs again."""

from pathlib import Path

import pytest
import torch

from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.weight_loader import load_decoder
from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.settings import apply_numeric_settings
from holdfast.thinking.blocks import ThoughtBlocks, load_blocks
from holdfast.thinking.config import read_thinking
from holdfast.thinking.graphs import ThoughtGraphs
from support.fake_recorder import FakeRecorder
from support.thinking_models import thinker_folder


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> ThoughtBlocks:
    folder: Path = thinker_folder(tmp_path_factory.mktemp("graphs"))
    threads = apply_numeric_settings().threads
    backend = open_backend(torch.float32, kernels="c", num_threads=threads)
    decoder = load_decoder(open_checkpoint(folder), backend, torch.float32, max_len=64)
    config = read_thinking(folder, decoder.config)
    assert config is not None
    return load_blocks(folder, config, decoder)


@torch.inference_mode()
def test_thought_graphs_give_the_thoughts_of_the_blocks(blocks: ThoughtBlocks) -> None:
    generator = torch.Generator().manual_seed(4)
    rows = torch.randn(601, 32, generator=generator) * torch.linspace(0.1, 20, 601)[:, None]
    recorder = FakeRecorder()
    graphs = ThoughtGraphs(blocks, rows, recorder)
    assert recorder.num_recorded == 8 * 2 * blocks.config.max_thought
    for count in (1, 3, 8, 33, 150):
        slots = torch.randperm(600, generator=generator)[: 4 * count].view(count, 4)
        for canonical in (True, False):
            found = graphs.think(slots, canonical=canonical)
            assert found == blocks.think(rows[slots], canonical=canonical)
    assert len({len(thought) for thought in found}) > 1  # trivial ones and others
    assert graphs.think(slots[:0], canonical=True) == []
