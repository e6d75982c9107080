"""Damaged and hostile quantised tensors of GGUF files, in every block format: a clear error, or numbers."""

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast import LLM, SamplingParams
from holdfast.errors import BadWeights, ModelError
from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.gguf.checkpoint import GgufCheckpoint
from holdfast.models.gguf.dequantize import dequantize
from holdfast.models.gguf.reader import STORED
from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.blocks import BLOCK_FORMATS, find_bad_scale, random_blocks
from holdfast.numerics.ops import Backend
from support.tiny import tiny_gguf

WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "std": 0.1}
NAME = "blk.0.ffn_up.weight"
HF_NAME = "model.layers.0.mlp.up_proj.weight"
BAD_SCALES = {"inf": 0x7C00, "-inf": 0xFC00, "nan": 0x7E01, "signalling nan": 0x7C01}
FINE_SCALES = {"zero": 0, "-zero": 0x8000, "subnormal": 1, "largest": 0x7BFF}

Files = Callable[[str], bytes]


@pytest.fixture(scope="module")
def valid(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The bytes of a model in one format."""
    folder, made = tmp_path_factory.mktemp("blocks"), dict[str, bytes]()

    def file_of(name: str) -> bytes:
        if name not in made:
            made[name] = tiny_gguf(folder / f"{name}.gguf", "llama", name, **WIDE).read_bytes()
        return made[name]

    return file_of


def opened(path: Path, content: bytes) -> GgufCheckpoint:
    path.write_bytes(content)
    checkpoint = open_checkpoint(path)
    assert isinstance(checkpoint, GgufCheckpoint)
    return checkpoint


def patched(content: bytes, at: int, layout: str, value: int) -> bytes:
    packed = struct.pack("<" + layout, value)
    return content[:at] + packed + content[at + len(packed) :]


def entry(content: bytes, name: str = NAME) -> int:
    """Where a matrix's entry continues after its name: dimensions u32, their sizes u64 u64, type u32, offset u64."""
    return content.index(name.encode()) + len(name)


def offset_of(content: bytes, name: str) -> int:
    (offset,) = struct.unpack_from("<Q", content, entry(content, name) + 24)
    return int(offset)


HOSTILE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "no dimensions": (lambda all_: patched(all_, entry(all_), "I", 0), "claims 0 dimensions"),
    "many dimensions": (lambda all_: patched(all_, entry(all_), "I", 1 << 31), "dimensions"),
    "an empty row": (lambda all_: patched(all_, entry(all_) + 4, "Q", 0), "cannot have the shape"),
    "half a block": (lambda all_: patched(all_, entry(all_) + 4, "Q", 272), "cannot have the shape"),
    "sizes that overflow": (
        lambda all_: patched(patched(all_, entry(all_) + 4, "Q", 1 << 62), entry(all_) + 12, "Q", 1 << 62),
        "is not inside the file",
    ),
    "another shape": (lambda all_: patched(all_, entry(all_) + 12, "Q", 128), "shape"),
    "a type of tomorrow": (lambda all_: patched(all_, entry(all_) + 20, "I", 4000), "type number 4000"),
    "a type we do not read": (lambda all_: patched(all_, entry(all_) + 20, "I", 10), "stored as Q2_K"),
    "a longer type": (lambda all_: patched(all_, entry(all_) + 20, "I", 0), "overlap|is not inside the file"),
    "an offset inside a block": (
        lambda all_: patched(all_, entry(all_) + 24, "Q", offset_of(all_, NAME) + 2),
        "is not inside the file",
    ),
    "the place of another tensor": (
        lambda all_: patched(all_, entry(all_) + 24, "Q", offset_of(all_, "blk.0.ffn_gate.weight")),
        "the data of the tensors .* overlap",
    ),
    "the last byte cut off": (lambda all_: all_.rstrip(b"\0")[:-1], "is not inside the file"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_directory_is_refused(case: str, valid: Files, tmp_path: Path) -> None:
    """The same code places tensors of every format."""
    change, message = HOSTILE[case]
    for name in ("Q4_0", "Q6_K"):
        with pytest.raises(ModelError, match=message):
            opened(tmp_path / "hostile.gguf", change(valid(name)))


def with_scale(path: Path, content: bytes, name: str, block: int, scale: int) -> bytes:
    """The file with this fp16 number as the last scale of one block."""
    tensor = opened(path, content).file.tensors[NAME]
    form = BLOCK_FORMATS[name]
    return patched(content, tensor.start + block * form.num_bytes + form.scales.stop - 2, "H", scale)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_tensor_of_one_block_is_only_read(name: str) -> None:
    """The pages of a file are private and can be written: what was written would be part of the weights
    until the pages are released."""
    data = random_blocks(name, 1, BLOCK_FORMATS[name].length, seed=1).data.view(-1)
    before = data.clone()
    assert find_bad_scale(name, data) is None
    dequantize(data, next(each for each in STORED.values() if each.name == name))
    assert torch.equal(data, before)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_scale_that_is_no_number_is_refused(name: str, valid: Files, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    for block, scale in enumerate(BAD_SCALES.values(), 7):
        checkpoint = opened(path, with_scale(path, valid(name), name, block, scale))
        message = (
            rf"'{NAME}' of model.gguf is damaged: the scale of its block {block} \({name}\) is not a finite"
        )
        with pytest.raises(BadWeights, match=message):
            checkpoint.blocks(HF_NAME)
        with pytest.raises(BadWeights, match=message):
            checkpoint.tensor(HF_NAME, torch.bfloat16)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_extreme_scales_are_numbers(name: str, valid: Files, tmp_path: Path) -> None:
    """The product is finite and near that of the dequantised matrix."""
    path, content = tmp_path / "model.gguf", valid(name)
    for block, scale in enumerate(FINE_SCALES.values(), 7):
        content = with_scale(path, content, name, block, scale)
    checkpoint = opened(path, content)
    weight = checkpoint.tensor(HF_NAME, torch.float32)
    x = torch.randn(3, weight.shape[1], generator=torch.Generator().manual_seed(1))
    product = product_of(
        open_backend(torch.float32, kernels="c", num_threads=1, block_formats=frozenset({name})),
        checkpoint,
        x,
    )
    exact = x.double() @ weight.double().T
    assert bool(product.isfinite().all())
    largest = weight.abs().amax(1).double() * x.abs().sum(1).double()[:, None]
    assert bool(((product - exact).abs() <= 0.02 * largest + 1e-6).all())


def product_of(backend: Backend, checkpoint: GgufCheckpoint, x: torch.Tensor) -> torch.Tensor:
    blocks = checkpoint.blocks(HF_NAME)
    assert blocks is not None
    packed: Any = backend
    return backend.logits(x, packed.pack_blocks([blocks]), canonical=True)


def test_engine_does_not_start_with_a_damaged_block(valid: Files, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(with_scale(path, valid("Q4_1"), "Q4_1", 3, BAD_SCALES["nan"]))
    options: dict[str, Any] = {"kv_memory": "16MiB", "max_pass_tokens": 32, "determinism": "off"}
    for dtype in ("auto", "bf16"):
        with pytest.raises(ModelError, match="is damaged"):
            LLM(str(path), dtype=dtype, **options)


@pytest.mark.long
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(sorted(BLOCK_FORMATS)),
    edits=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=8),
    cut=st.floats(0, 1) | st.none(),
)
@example(name="Q4_K", edits=[], cut=None)
def test_any_damage_is_an_error_or_a_model_that_answers(
    name: str, edits: list[tuple[float, int]], cut: float | None, valid: Files, tmp_path: Path
) -> None:
    """Bytes anywhere in the file, header and data alike, and any length."""
    damaged = bytearray(valid(name))
    for place, byte in edits:
        damaged[int(place * len(damaged))] = byte
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf"  # an engine may still read the last one
    path.write_bytes(damaged if cut is None else damaged[: int(cut * len(damaged))])
    try:
        llm = LLM(str(path), kv_memory="16MiB", max_pass_tokens=32, determinism="off", max_model_len=64)
    except ModelError:
        return
    (result,) = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=2), use_tqdm=False)
    assert result.error is None and len(result.choices[0].token_ids) <= 2
