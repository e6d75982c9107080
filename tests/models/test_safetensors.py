import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from holdfast.errors import BadWeights, ModelError, ModelNotFound, UnsupportedModel
from holdfast.models.checkpoint import open_checkpoint
from holdfast.numerics.arrays import dtype_name
from support.tiny import random_model

SMALL = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "vocab_size": 24,
    "num_attention_heads": 2,
    "head_dim": 8,
}
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved")
    random_model("qwen3", **SMALL).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "model"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_tensors_round_trip(family: str, shards: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    model = random_model(family, **SMALL, tie_word_embeddings=family == "qwen2").to(dtype)
    model.save_pretrained(tmp_path, max_shard_size=3000 if shards else "1GB")
    assert (tmp_path / INDEX).is_file() == shards
    checkpoint = open_checkpoint(tmp_path)
    state = model.state_dict()
    expected = [name for name in state if not (family == "qwen2" and name == "lm_head.weight")]
    assert sorted(checkpoint.names()) == sorted(expected)
    assert checkpoint.config.torch_dtype == str(dtype).removeprefix("torch.")
    stored_as = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}[dtype]
    for name in checkpoint.names():
        raw = checkpoint.raw(name)
        assert raw.format == stored_as
        assert torch.equal(torch.frombuffer(bytearray(raw.data), dtype=dtype), state[name].flatten())
        assert checkpoint.shape(name) == tuple(state[name].shape)
        assert dtype_name(checkpoint.tensor(name).dtype) == str(dtype).removeprefix("torch.")
        assert torch.equal(checkpoint.tensor(name), state[name])
        assert torch.equal(checkpoint.tensor(name, torch.bfloat16), state[name].to(torch.bfloat16))


def test_stored_tensors_share_the_mapped_file(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    first, second = (checkpoint.tensor("model.embed_tokens.weight") for _ in range(2))
    assert np.shares_memory(first, second)


def test_extra_tensors_are_ignored(folder: Path) -> None:
    tensors = load_file(folder / SINGLE)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4, dtype=torch.float64)
    save_file(tensors, folder / SINGLE)
    checkpoint = open_checkpoint(folder)
    assert not any("inv_freq" in name for name in checkpoint.names())
    for read in (checkpoint.tensor, checkpoint.raw):
        with pytest.raises(KeyError):
            read("model.layers.0.self_attn.rotary_emb.inv_freq")


def test_missing_and_misshaped_tensors_are_listed(folder: Path) -> None:
    tensors = load_file(folder / SINGLE)
    del tensors["lm_head.weight"], tensors["model.layers.1.mlp.up_proj.weight"]
    tensors["model.norm.weight"] = torch.ones(17)
    save_file(tensors, folder / SINGLE)
    with pytest.raises(BadWeights) as caught:
        open_checkpoint(folder)
    for said in (
        "lm_head.weight",
        "model.layers.1.mlp.up_proj.weight",
        "model.norm.weight [17] instead of [16]",
    ):
        assert said in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8, torch.float64])
def test_other_dtypes_are_refused(folder: Path, dtype: torch.dtype) -> None:
    tensors = load_file(folder / SINGLE)
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(dtype)
    save_file(tensors, folder / SINGLE)
    with pytest.raises(UnsupportedModel, match="is stored as"):
        open_checkpoint(folder)


def test_pickle_is_never_opened(folder: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return exec, ("raise SystemExit('the pickle ran')",)

    bomb = pickle.dumps(Bomb())
    (folder / SINGLE).write_bytes(bomb)
    with pytest.raises(BadWeights, match="not a whole safetensors file"):
        open_checkpoint(folder)
    torch.save({"a": torch.ones(2)}, folder / SINGLE)
    with pytest.raises(BadWeights, match="not a whole safetensors file"):
        open_checkpoint(folder)
    (folder / SINGLE).rename(folder / "pytorch_model.bin")
    with pytest.raises(BadWeights, match="never loads one"):
        open_checkpoint(folder)


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "x.bin", "", 3])
def test_shards_are_read_from_the_index_folder(folder: Path, shard: object) -> None:
    (folder / SINGLE).rename(folder.parent / SINGLE)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"lm_head.weight": shard}}))
    with pytest.raises(BadWeights, match="names the shard"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "index", ["", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "[" * 100000, "\udcff"]
)
def test_malformed_indexes_are_refused(folder: Path, index: str) -> None:
    (folder / SINGLE).unlink()
    (folder / INDEX).write_bytes(index.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadWeights, match="index"):
        open_checkpoint(folder)


def test_missing_shard_and_wrong_index_are_refused(folder: Path) -> None:
    names = open_checkpoint(folder).names()
    (folder / SINGLE).rename(folder / "a.safetensors")
    (folder / INDEX).write_text(
        json.dumps({"weight_map": dict.fromkeys(names, "a.safetensors") | {names[0]: "b.safetensors"}})
    )
    with pytest.raises(BadWeights, match=r"b\.safetensors is missing"):
        open_checkpoint(folder)
    save_file({"other": torch.ones(1)}, folder / "b.safetensors")
    with pytest.raises(BadWeights, match=f"missing: {names[0]}"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "config", ["", "{", "nonsense", "[]", "null", "[" * 100000, '{"hidden_size": 1e999}', "\udcff\udcfe"]
)
def test_malformed_config_files_are_refused(folder: Path, config: str) -> None:
    (folder / "config.json").write_bytes(config.encode("utf-8", "surrogateescape"))
    with pytest.raises(UnsupportedModel):
        open_checkpoint(folder)


def test_folder_without_model_is_refused(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ModelNotFound, match="not a model folder"):
        open_checkpoint(tmp_path)
    with pytest.raises(ModelNotFound, match="there is no"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(ModelNotFound, match="not a model"):
        open_checkpoint(folder / "config.json")
    (folder / SINGLE).unlink()
    with pytest.raises(BadWeights, match="contains no weights"):
        open_checkpoint(folder)


def test_every_truncation_is_an_error(folder: Path) -> None:
    whole = (folder / SINGLE).read_bytes()
    for size in range(0, len(whole), 64):
        (folder / SINGLE).write_bytes(whole[:size])
        with pytest.raises(ModelError):
            open_checkpoint(folder)


def test_corrupt_headers_are_refused(folder: Path) -> None:
    whole = (folder / SINGLE).read_bytes()
    size = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + size])
    name = "lm_head.weight"
    for change in (
        {"shape": [1 << 40, 1 << 40]},
        {"data_offsets": [0, 1 << 62]},
        {"dtype": "X9"},
        {"shape": [-1]},
    ):
        text = json.dumps(header | {name: header[name] | change}).encode()
        (folder / SINGLE).write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + size :])
        with pytest.raises(ModelError):
            open_checkpoint(folder)
    for length in (0, 1, size + 1, 1 << 40, (1 << 64) - 1):
        (folder / SINGLE).write_bytes(length.to_bytes(8, "little") + whole[8:])
        with pytest.raises(ModelError):
            open_checkpoint(folder)


def test_a_convolution_may_be_cut_anywhere(tmp_path: Path) -> None:
    """transformers stores thirds of the convolution of q, k and v, the publisher the three parts."""
    random_model(
        "olmo_hybrid", num_hidden_layers=2, layer_types=["linear_attention", "full_attention"]
    ).save_pretrained(tmp_path)
    names = [f"model.layers.0.linear_attn.{each}_conv1d.weight" for each in "qkv"]

    def found() -> torch.Tensor:
        checkpoint = open_checkpoint(tmp_path)
        return torch.cat([checkpoint.tensor(name) for name in names])

    thirds, tensors = found(), load_file(tmp_path / SINGLE)
    parts = [part.contiguous() for part in thirds.split([48, 48, 192])]
    save_file(tensors | dict(zip(names, parts, strict=True)), tmp_path / SINGLE)
    assert torch.equal(found(), thirds)
    save_file(tensors | {names[0]: parts[0][1:].contiguous()}, tmp_path / SINGLE)
    with pytest.raises(BadWeights, match="q_conv1d"):
        found()
