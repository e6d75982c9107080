"""thinking.json and thinking.safetensors: round trip and refusal of bad files."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from holdfast.errors import BadWeights, ModelError, UnsupportedModel
from holdfast.models.config import DecoderConfig
from holdfast.numerics.arrays import rounded
from holdfast.thinking.config import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    parse_thinking,
    read_thinking,
    thinking_tensors,
    write_thinking,
)
from holdfast.thinking.weights import read_thinking_weights, thinking_parts
from support.thinking_models import thinking_config, tiny_thinker

DECODER: DecoderConfig = tiny_thinker().config
FIELDS = {
    "format": 1,
    "chunk": 4,
    "l_in": 1,
    "l_out": 2,
    "max_thought": 3,
    "start_id": 2,
    "end_id": 1,
    "while_answering": True,
}


def _save_blocks(folder: Path) -> dict[str, torch.Tensor]:
    tensors = {
        name: torch.randn(shape) for name, shape in thinking_tensors(thinking_config(), DECODER).items()
    }
    save_file(tensors, folder / WEIGHTS_FILE)
    return tensors


def test_thinking_config_round_trips(tmp_path: Path) -> None:
    assert read_thinking(tmp_path, DECODER) is None
    write_thinking(tmp_path, thinking_config())
    tensors = _save_blocks(tmp_path)
    assert read_thinking(tmp_path, DECODER) == thinking_config()
    assert json.loads((tmp_path / CONFIG_FILE).read_text()) == FIELDS
    held = read_thinking_weights(tmp_path, thinking_config(), DECODER)
    assert held.keys() == tensors.keys()
    assert all(torch.equal(rounded(held[name], torch.float32), tensors[name]) for name in tensors)


def test_block_tensors_are_named_like_backbone_layers() -> None:
    model = tiny_thinker("qwen3")
    expected = thinking_tensors(thinking_config(), model.config)
    own = {n: tuple(p.shape) for n, p in model.named_parameters() if n.startswith(("t.", "c."))}
    assert own == expected


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", 5),
        ("format", True),
        ("format", None),
        ("carry", True),
        ("chunk", 0),
        ("chunk", True),
        ("chunk", "8"),
        ("l_in", 0),
        ("l_in", 4),
        ("l_in", 3),
        ("l_out", 0),
        ("l_out", 4),
        ("max_thought", 0),
        ("start_id", 40),
        ("end_id", -1),
        ("while_answering", 1),
        ("surprise", 1),
    ],
)
def test_bad_thinking_config_value_is_named(key: str, value: object) -> None:
    with pytest.raises(UnsupportedModel, match=key if key != "l_in" or value != 3 else "l_out"):
        parse_thinking({**FIELDS, key: value}, DECODER)


def test_carried_states_are_format_2(tmp_path: Path) -> None:
    fields = {**FIELDS, "format": 2, "carry": True}
    write_thinking(tmp_path, thinking_config(carry=True))
    assert json.loads((tmp_path / CONFIG_FILE).read_text()) == fields
    assert parse_thinking(fields, DECODER) == thinking_config(carry=True)
    assert parse_thinking({**fields, "carry": False}, DECODER) == thinking_config()
    for bad in ({**fields, "carry": 1}, {**FIELDS, "format": 2}):
        with pytest.raises(UnsupportedModel, match="carry"):
            parse_thinking(bad, DECODER)


def test_fingerprint_names_carry_only_where_states_are_carried(tmp_path: Path) -> None:
    """So a receipt of a model of format 1 stays valid."""
    _save_blocks(tmp_path)
    plain, carried = (
        thinking_parts(tmp_path, thinking_config(carry=carry), DECODER) for carry in (False, True)
    )
    assert plain.keys() == (FIELDS.keys() - {"format"}) | {"weights"}
    assert carried == {**plain, "carry": True}


def test_resets_of_carried_states_are_format_3(tmp_path: Path) -> None:
    fields = {**FIELDS, "format": 3, "carry": True, "reset_ids": [5, 6]}
    config = thinking_config(carry=True, reset_ids=(5, 6))
    write_thinking(tmp_path, config)
    assert json.loads((tmp_path / CONFIG_FILE).read_text()) == fields
    assert parse_thinking(fields, DECODER) == config
    assert parse_thinking({**fields, "reset_ids": []}, DECODER) == thinking_config(carry=True)
    _save_blocks(tmp_path)
    assert thinking_parts(tmp_path, config, DECODER)["reset_ids"] == (5, 6)


@pytest.mark.parametrize("changes", [{}, {"carry": True}, {"carry": True, "reset_ids": [5, 6]}])
def test_settling_is_format_4(tmp_path: Path, changes: dict[str, object]) -> None:
    fields = {**FIELDS, "carry": False, "reset_ids": [], "settle": True, **changes, "format": 4}
    config = thinking_config(**{**changes, "reset_ids": tuple(fields["reset_ids"])}, settle=True)  # type: ignore[arg-type]
    write_thinking(tmp_path, config)
    assert json.loads((tmp_path / CONFIG_FILE).read_text()) == fields
    assert parse_thinking(fields, DECODER) == config
    for bad in ({**fields, "settle": 1}, {**fields, "format": 3}):
        with pytest.raises(UnsupportedModel, match="settle"):
            parse_thinking(bad, DECODER)


@pytest.mark.parametrize(
    "changes",
    [
        *({"reset_ids": bad} for bad in (None, 5, "56", [True], [-1], [40], [5.0], [[5]], [5] * 65)),
        {"format": 2},
        {"carry": False},
    ],
)
def test_bad_resets_are_named(changes: dict[str, object]) -> None:
    fields = {**FIELDS, "format": 3, "carry": True, "reset_ids": [5, 6]}
    with pytest.raises(UnsupportedModel, match="reset_ids"):
        parse_thinking({**fields, **changes}, DECODER)


@pytest.mark.parametrize("key", FIELDS)
def test_every_thinking_config_key_is_required(key: str) -> None:
    with pytest.raises(UnsupportedModel, match=key):
        parse_thinking({name: value for name, value in FIELDS.items() if name != key}, DECODER)


def test_incomplete_thinking_folder_is_refused(tmp_path: Path) -> None:
    write_thinking(tmp_path, thinking_config())
    with pytest.raises(BadWeights, match=WEIGHTS_FILE):
        read_thinking(tmp_path, DECODER)
    tmp_path.joinpath(CONFIG_FILE).unlink()
    _save_blocks(tmp_path)
    with pytest.raises(BadWeights, match=CONFIG_FILE):
        read_thinking(tmp_path, DECODER)
    tmp_path.joinpath(CONFIG_FILE).write_text("{")
    with pytest.raises(ModelError, match=CONFIG_FILE):
        read_thinking(tmp_path, DECODER)


def test_missing_and_misshaped_thinking_tensors_are_named(tmp_path: Path) -> None:
    tensors = _save_blocks(tmp_path)
    tensors.pop("c.scale")
    tensors["c.queries"] = torch.zeros(5, 32)
    save_file(tensors, tmp_path / WEIGHTS_FILE)
    with pytest.raises(BadWeights, match=r"c\.scale.*c\.queries"):
        read_thinking_weights(tmp_path, thinking_config(), DECODER)
    tmp_path.joinpath(WEIGHTS_FILE).write_bytes(b"\x10\x00\x00")  # cut off
    with pytest.raises(BadWeights, match=WEIGHTS_FILE):
        read_thinking_weights(tmp_path, thinking_config(), DECODER)
