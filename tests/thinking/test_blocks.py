"""T and C batched over chunks: equal to the reference, and each chunk has the bits it has alone. T as CUDA graphs
gives the same thoughts; their captures are faked: work runs again."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor

from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.decoder import Decoder
from holdfast.models.weight_loader import load_decoder
from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.recipe import KernelBackend
from holdfast.numerics.settings import apply_numeric_settings
from holdfast.thinking.blocks import ThoughtBlocks, load_blocks
from holdfast.thinking.config import read_thinking
from holdfast.thinking.graphs import ThoughtGraphs
from support.fake_recorder import FakeRecorder
from support.thinking_engines import Ids
from support.thinking_models import thinker_folder
from thinking.reference import Reference, open_reference

CHUNK, LONGEST = 8, 5
PATHS = [("c", torch.float32), ("torch", torch.float32), ("c", torch.bfloat16)]
COUNTS = (1, 2, 5, 17, 30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return thinker_folder(tmp_path_factory.mktemp("blocks") / "model", chunk=CHUNK, max_thought=LONGEST)


@pytest.fixture(scope="module", params=PATHS, ids=["c", "torch", "c-bf16"])
def decoder(request: pytest.FixtureRequest, folder: Path) -> Decoder:
    path: KernelBackend
    path, dtype = request.param
    backend = open_backend(dtype, kernels=path, num_threads=apply_numeric_settings().threads)
    return load_decoder(open_checkpoint(folder), backend, dtype, max_len=64)


@pytest.fixture
def blocks(folder: Path, decoder: Decoder) -> ThoughtBlocks:
    """With an empty state cache."""
    config = read_thinking(folder, decoder.config)
    assert config is not None
    return load_blocks(folder, config, decoder)


@pytest.fixture(scope="module")
def definition(folder: Path) -> Reference:
    return open_reference(folder)


def _rows(decoder: Decoder, count: int) -> Tensor:
    numbers = torch.randn(count, CHUNK, 32, generator=torch.Generator().manual_seed(3))
    return (numbers * torch.linspace(0.1, 20, count)[:, None, None]).to(decoder.dtype)


def _thoughts(count: int) -> list[Ids]:
    rng = random.Random(count)
    return [tuple(rng.randrange(290) for _ in range(rng.randint(1, LONGEST))) for _ in range(count)]


@torch.inference_mode()
def test_chunk_has_same_thought_alone_and_in_batch(blocks: ThoughtBlocks, decoder: Decoder) -> None:
    rows = _rows(decoder, COUNTS[-1])
    alone = [blocks.think(each[None], canonical=True)[0] for each in rows]
    for count in COUNTS:
        assert blocks.think(rows[:count], canonical=True) == alone[:count]
    shuffled = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1)).tolist()
    assert blocks.think(rows[shuffled], canonical=True) == [alone[at] for at in shuffled]
    many = _rows(decoder, 140)  # two batches
    found = blocks.think(many, canonical=True)
    assert found[128:] == blocks.think(many[128:], canonical=True)
    assert len({len(thought) for thought in found}) > 1
    assert blocks.think(rows[:0], canonical=True) == []


@torch.inference_mode()
def test_state_has_same_bits_alone_and_in_batch(blocks: ThoughtBlocks) -> None:
    blocks._max_states = 0  # disables the state cache
    thoughts = _thoughts(COUNTS[-1])
    alone = torch.cat([blocks.compress([thought]) for thought in thoughts])
    for count in COUNTS:
        assert torch.equal(blocks.compress(thoughts[:count]), alone[:count])
    assert torch.equal(blocks.compress(thoughts[::-1]), alone.flip(0))


@torch.inference_mode()
def test_state_cache_is_bounded_and_exact(blocks: ThoughtBlocks) -> None:
    assert blocks._max_states == (64 << 20) // (CHUNK * 32 * blocks._scale.element_size())
    blocks._max_states = 3
    thoughts = _thoughts(6)
    first = blocks.compress(thoughts)
    assert list(blocks._states) == thoughts[-3:]
    blocks.compress(thoughts[3:4])
    blocks.compress([thoughts[0], thoughts[0]])
    assert list(blocks._states) == [thoughts[5], thoughts[3], thoughts[0]]
    assert torch.equal(blocks.compress([thoughts[at] for at in (0, 3, 1, 0)]), first[[0, 3, 1, 0]])


@torch.inference_mode()
def test_blocks_equal_reference(blocks: ThoughtBlocks, decoder: Decoder, definition: Reference) -> None:
    if decoder.dtype != torch.float32:
        pytest.skip("the definition is in fp32")
    assert definition.thinking is not None
    rows, thoughts = _rows(decoder, 40), _thoughts(20)
    assert blocks.think(rows, canonical=True) == [
        definition.think(each, definition.thinking)[0] for each in rows
    ]
    expected = torch.stack([definition.compress(thought) for thought in thoughts])
    torch.testing.assert_close(blocks.compress(thoughts), expected, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_graphs_give_the_thoughts_of_the_blocks(blocks: ThoughtBlocks, decoder: Decoder) -> None:
    generator = torch.Generator().manual_seed(4)
    rows = torch.randn(1201, 32, generator=generator) * torch.linspace(0.1, 20, 1201)[:, None]
    rows, recorder = rows.to(decoder.dtype), FakeRecorder()
    graphs = ThoughtGraphs(blocks, rows, recorder)
    assert recorder.num_recorded == 8 * 2 * blocks.config.max_thought
    forms = (True, False) if decoder.backend.recipe.path == "c" else (True,)
    for count in (1, 3, 8, 33, 150):
        slots = torch.randperm(1200, generator=generator)[: CHUNK * count].view(count, CHUNK)
        for canonical in forms:
            assert graphs.think(slots, canonical=canonical) == blocks.think(rows[slots], canonical=canonical)
    assert graphs.think(slots[:0], canonical=True) == []
