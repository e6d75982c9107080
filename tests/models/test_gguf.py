"""GGUF files of every format and family, against the gguf package and transformers' own loader."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from holdfast.errors import BadWeights, ModelNotFound, UnsupportedModel
from holdfast.models.checkpoint import Checkpoint, open_checkpoint
from holdfast.models.config import DecoderConfig, parse_config
from holdfast.models.gguf.dequantize import dequantize
from holdfast.models.gguf.names import _family_fields, gguf_fields
from holdfast.models.gguf.reader import STORED, GgufFile
from holdfast.models.rope import FactorsRope, LinearRope, YarnRope, rope_frequencies
from holdfast.numerics.arrays import rounded
from models.gguf_writer import write_gguf
from support.tiny import LONG_PHI, random_config, random_model, tiny_gguf, tiny_model


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype == torch.float32 and torch.equal(a.view(torch.int32), b.view(torch.int32))


@pytest.mark.parametrize("stored", STORED.values(), ids=lambda each: each.name)
def test_dequantised_bits_match_gguf_package(stored: object) -> None:
    """Random bytes, more than one chunk of blocks, NaN and infinite scales included."""
    kind = gguf.GGMLQuantizationType[stored.name]
    assert (stored.block_len, stored.block_bytes) == gguf.GGML_QUANT_SIZES[kind]
    count = ((1 << 20) // stored.block_len + 3) * stored.block_bytes
    raw = np.random.default_rng(3).integers(0, 256, size=count, dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = torch.from_numpy(gguf.quants.dequantize(raw.reshape(1, -1), kind).reshape(-1).copy())
    real = ~expected.isnan()
    found = rounded(dequantize(raw, stored), torch.float32)
    assert same_bits(found[real], expected[real])


def test_sliding_window_makes_a_mistral_config(tmp_path: Path) -> None:
    model = random_model("mistral")
    path = write_gguf(tmp_path / "tiny.gguf", model, metadata={"llama.attention.sliding_window": 64})
    config = open_checkpoint(path).config
    assert (config.family, config.layer_windows) == ("mistral", (64, 64))


# What llama.cpp knows by the architecture's name and the file does not say.
FAMILY_GGUFS: dict[str, dict[str, Any]] = {
    "granite": {},
    "smollm3": {"num_hidden_layers": 4, "no_rope_layer_interval": 4, "tie_word_embeddings": True},
    "phi3": LONG_PHI,
    "llama": {"attention_bias": True, "mlp_bias": True, "head_dim": 32},
    "qwen3": {"head_dim": 24},
    "olmo2": {},
    "gemma2": {"query_pre_attn_scalar": 24, "tie_word_embeddings": True},
    "gemma3_text": {"query_pre_attn_scalar": 24, "num_hidden_layers": 6, "layer_types": None},
    "cohere2": {"num_hidden_layers": 4, "layer_types": None, "tie_word_embeddings": True},
    "mixtral": {},
    "qwen2_moe": {"mlp_only_layers": []},
    "qwen3_moe": {},
    "olmoe": {"clip_qkv": 0.5},
    "gpt_oss": {"swiglu_limit": 7.0},
}


@pytest.mark.parametrize("family", FAMILY_GGUFS)
def test_other_families_are_those_of_safetensors(family: str, tmp_path: Path) -> None:
    plain = open_checkpoint(tiny_model(tmp_path / "folder", family, **FAMILY_GGUFS[family]))
    stored = open_checkpoint(tiny_gguf(tmp_path / "tiny.gguf", family, **FAMILY_GGUFS[family]))
    offset = plain.config.norm_offset
    assert stored.names() == tuple(name.replace(".router.", ".gate.") for name in plain.names())
    for stored_name, name in zip(stored.names(), plain.names(), strict=True):
        expected = plain.tensor(name, torch.float32) + (offset if name.endswith("norm.weight") else 0.0)
        assert torch.equal(stored.tensor(stored_name, torch.float32), expected), name
    config = dataclasses.replace(plain.config, norm_offset=0.0, interleaved_experts=False)
    assert _rounded(stored.config) == _rounded(config)


def _rounded(config: DecoderConfig) -> dict[str, Any]:
    """Numbers as GGUF stores them, in fp32; without what the tokenizer decides."""

    def rounded(value: Any) -> Any:
        if isinstance(value, float):
            return float(np.float32(value))
        return tuple(map(rounded, value)) if isinstance(value, tuple) else value

    parts = dataclasses.asdict(dataclasses.replace(config, bos_token_id=None, torch_dtype=None))
    scaling = parts.pop("rope_scaling")
    return {key: rounded(value) for key, value in (parts | (scaling or {})).items()}


@pytest.mark.parametrize(
    ("arch", "layers", "hidden", "heads", "head_dim", "scalar"),
    [
        ("gemma2", 26, 2304, 8, 256, 256),
        ("gemma2", 42, 3584, 16, 256, 256),
        ("gemma2", 46, 4608, 32, 128, 144),
        ("gemma3", 48, 3840, 16, 256, 256),
        ("gemma3", 62, 5376, 32, 128, 168),
    ],
    ids=["gemma-2-2b", "gemma-2-9b", "gemma-2-27b", "gemma-3-12b", "gemma-3-27b"],
)
def test_score_scale_of_published_gemma_sizes(
    arch: str, layers: int, hidden: int, heads: int, head_dim: int, scalar: int
) -> None:
    """A file does not say it: `query_pre_attn_scalar` of the published configurations."""
    own = {"block_count": layers, "embedding_length": hidden}
    own |= {"attention.head_count": heads, "attention.key_length": head_dim}
    assert _family_fields(arch, own)["query_pre_attn_scalar"] == scalar


@pytest.mark.parametrize(
    ("pattern", "windows"),
    [(None, (20, None, 20)), (3, (20, 20, None)), (0, (20,) * 3), ([False, True, True], (None, 20, 20))],
    ids=["none", "every-third", "all", "listed"],
)
def test_windows_of_layers_follow_the_file(pattern: Any, windows: tuple[Any, ...], tmp_path: Path) -> None:
    key = "gpt-oss.attention.sliding_window_pattern"
    metadata = {} if pattern is None else {key: pattern}
    path = write_gguf(tmp_path / "tiny.gguf", random_model("gpt_oss"), metadata=metadata)
    assert open_checkpoint(path).config.layer_windows == windows


def test_factors_of_longrope_must_fit_the_head(tmp_path: Path) -> None:
    model = random_model("phi3", **LONG_PHI)
    model.config.rope_parameters["long_factor"] = [1.0] * 5
    with pytest.raises(BadWeights, match=r"rope_factors_long\.weight is F32 \(5,\); expected"):
        open_checkpoint(write_gguf(tmp_path / "tiny.gguf", model))


@pytest.fixture(scope="module")
def llama() -> object:
    return random_model("llama")


def open_with(tmp_path: Path, model: object, metadata: dict[str, object]) -> Checkpoint:
    return open_checkpoint(write_gguf(tmp_path / "tiny.gguf", model, metadata=metadata))


def test_end_of_turn_ends_an_answer_too(tmp_path: Path, llama: object) -> None:
    ids = {"eos_token_id": 3, "eot_token_id": 4, "bos_token_id": 1}
    config = open_with(tmp_path, llama, {f"tokenizer.ggml.{key}": id_ for key, id_ in ids.items()}).config
    assert (config.eos_token_ids, config.bos_token_id) == ((3, 4), 1)


def test_rope_scaling_keys(tmp_path: Path, llama: object) -> None:
    linear = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    assert open_with(tmp_path, llama, linear).config.rope_scaling == LinearRope(4.0)
    assert open_with(tmp_path, llama, {"llama.rope.scaling.type": "none"}).config.rope_scaling is None
    yarn = {
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 2.0,
        "llama.rope.scaling.original_context_length": 256,
    }
    assert open_with(tmp_path, llama, yarn).config.rope_scaling == YarnRope(2.0, 256)
    with pytest.raises(UnsupportedModel, match="short_factor"):
        open_with(tmp_path, llama, {"llama.rope.scaling.type": "longrope"})


def test_metadata_can_be_written_as_config_json(tmp_path: Path) -> None:
    metadata = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    checkpoint = open_with(
        tmp_path, random_model("mistral"), {**metadata, "llama.attention.sliding_window": 64}
    )
    fields = json.loads(json.dumps(gguf_fields(GgufFile(checkpoint.path))))
    assert parse_config(fields) == checkpoint.config
    assert checkpoint.config.rope_scaling == LinearRope(4.0)


def test_rope_freqs_tensor_becomes_factors(tmp_path: Path, llama: object) -> None:
    rope = {"rope_theta": 10000.0, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
    rope |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    plain, _ = rope_frequencies(parse_config(random_config("llama").to_dict()))
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](
        random_config("llama", rope_parameters=rope), torch.device("cpu")
    )
    divisors = plain / scaled.numpy()
    path = write_gguf(tmp_path / "tiny.gguf", llama, tensors={"rope_freqs.weight": divisors})
    config = open_checkpoint(path).config
    assert config.rope_scaling == FactorsRope(tuple(divisors.tolist()))
    inv_freq, attention = rope_frequencies(config)
    assert np.array_equal(inv_freq, plain / divisors)
    assert np.allclose(inv_freq, scaled.numpy(), rtol=1e-6)
    assert attention == 1.0
    for bad in (divisors[1:], divisors * 0, divisors * np.nan):
        with pytest.raises((BadWeights, UnsupportedModel), match="rope_freqs"):
            open_checkpoint(write_gguf(tmp_path / "bad.gguf", llama, tensors={"rope_freqs.weight": bad}))


@pytest.mark.parametrize(
    ("metadata", "said"),
    [
        ({"llama.expert_count": 8}, "expert_used_count"),
        ({"split.count": 3}, "split"),
        ({"tokenizer.ggml.eos_token_id": 4000}, "eos_token_id"),
        ({"llama.rope.scale_linear": -2.0}, "factor"),
        ({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor"),
    ],
)
def test_unsupported_metadata_is_refused(
    metadata: dict[str, object], said: str, tmp_path: Path, llama: object
) -> None:
    with pytest.raises(UnsupportedModel, match=said):
        open_with(tmp_path, llama, metadata)


def test_partial_rotary_is_refused(tmp_path: Path, llama: object) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", llama)
    whole = bytearray(path.read_bytes())
    at = whole.index(b"llama.rope.dimension_count") + len("llama.rope.dimension_count") + 4
    whole[at] = 32
    path.write_bytes(whole)
    with pytest.raises(UnsupportedModel, match="dimension_count"):
        open_checkpoint(path)


def test_other_architectures_and_formats_are_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "bert.gguf", "bert")
    write_and_close(writer)
    with pytest.raises(UnsupportedModel, match="llama, qwen2, qwen3"):
        open_checkpoint(tmp_path / "bert.gguf")
    writer = gguf.GGUFWriter(tmp_path / "ternary.gguf", "llama")
    kind = gguf.GGMLQuantizationType.TQ2_0
    writer.add_tensor("token_embd.weight", np.zeros((2, 66), np.uint8), raw_dtype=kind)
    write_and_close(writer)
    with pytest.raises(UnsupportedModel, match=r"TQ2_0.*F32, F16, BF16, Q4_0"):
        open_checkpoint(tmp_path / "ternary.gguf")


def write_and_close(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_metadata_is_plain_python(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "keys.gguf", "llama")
    values = {"a": [1, 2, 3], "b": [1.5, 2.5], "c": ["x", "ü", ""], "d": [True, False], "e": [[1, 2], [3]]}
    for key, value in values.items():
        writer.add_array(key, value)
    writer.add_int64("f", -(1 << 60))
    writer.add_float64("g", 0.1)
    writer.add_bool("h", True)
    writer.add_string("i", "häh")
    writer.add_int8("j", -3)
    writer.add_uint16("k", 65535)
    write_and_close(writer)
    metadata = GgufFile(tmp_path / "keys.gguf").metadata
    expected = values | {"f": -(1 << 60), "g": 0.1, "h": True, "i": "häh", "j": -3, "k": 65535}
    assert {key: metadata[key] for key in expected} == expected
    assert metadata["d"] == [True, False]
    assert type(metadata["d"][0]) is bool  # type: ignore[index]


def test_folder_with_one_gguf_opens(tmp_path: Path, llama: object) -> None:
    write_gguf(tmp_path / "tiny.gguf", llama)
    assert open_checkpoint(tmp_path).config.family == "llama"
    write_gguf(tmp_path / "other.gguf", llama)
    with pytest.raises(ModelNotFound, match="several GGUF files"):
        open_checkpoint(tmp_path)


def test_missing_tensor_is_listed(tmp_path: Path, llama: object) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", llama)
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"blk.1.ffn_up.weight", b"blk.1.ffn_xx.weight"))
    with pytest.raises(BadWeights, match=r"missing: blk\.1\.ffn_up\.weight"):
        open_checkpoint(path)
