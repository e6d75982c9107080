"""Adapters: T and C trained on a frozen backbone, exported without it, and served with it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from holdfast import LLM, SamplingParams
from holdfast.errors import BadWeights, ConfigError, ModelNotFound
from holdfast.models.adapter import ADAPTER_FILE
from holdfast.models.locate import locate
from holdfast.thinking.config import WEIGHTS_FILE
from holdfast_thinking.run.export import export
from holdfast_thinking.run.loop import resume_run, start_run, train
from support.plain_training import PLAIN

CPU = torch.device("cpu")
PROMPTS = ["A coin shows heads. Bob flips it. Which side is up? A:", "It rains all day. A:", "Hello"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    export(start_run(PLAIN, CPU).built, PLAIN, folder)
    return folder


@pytest.fixture(scope="module")
def adapter(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trained for two steps, interrupted after the first."""
    folder = tmp_path_factory.mktemp("adapter")
    settings = replace(
        PLAIN,
        form="thinking",
        backbone=str(base),
        adapter=True,
        steps=2,
        tasks=("coin-talk",),
        chunk=4,
    )
    first = start_run(settings, CPU)
    train(first, folder, stops=lambda: first.step == 1)
    run = resume_run(folder, CPU)
    train(run, folder)
    whole = start_run(settings, CPU)
    train(whole)
    named = dict(whole.model.named_parameters())
    assert all(torch.equal(each, named[name]) for name, each in run.model.named_parameters())
    export(run.built, run.settings, folder)
    return folder


def engine(model: Path) -> LLM:
    return LLM(
        str(model), device="cpu", max_num_seqs=4, max_model_len=128, max_pass_tokens=32, prefix_cache=False
    )


def silenced(adapter: Path, folder: Path) -> Path:
    """The adapter with a T that always ends its thought at once."""
    folder.mkdir()
    for path in adapter.iterdir():
        if path.suffix == ".json":
            folder.joinpath(path.name).write_bytes(path.read_bytes())
    held = load_file(adapter / WEIGHTS_FILE)
    base = load_file(Path(json.loads((adapter / ADAPTER_FILE).read_text())["base"]) / "model.safetensors")
    end = json.loads((adapter / "thinking.json").read_text())["end_id"]
    for name in ("t.layer.self_attn.o_proj.weight", "t.layer.mlp.down_proj.weight"):
        held[name] = torch.zeros_like(held[name])
    # T's output is then the norm of the start token's embedding times t.norm: make it the end's.
    start = base["model.embed_tokens.weight"][json.loads((adapter / "thinking.json").read_text())["start_id"]]
    held["t.norm.weight"] = 100 * base["model.embed_tokens.weight"][end] / start
    save_file(held, folder / WEIGHTS_FILE)
    return folder


def test_adapter_has_no_backbone_and_leaves_it_as_it_is(adapter: Path, base: Path) -> None:
    assert not (adapter / "model.safetensors").exists() and not (adapter / "config.json").exists()
    found = locate(str(adapter))
    assert (found.path, found.adapter) == (base, adapter)
    state = load_file(adapter / "training.safetensors")
    assert {name.partition("/")[2][:2] for name in state} == {"t.", "c."}  # nothing frozen is saved


def test_where_nothing_is_thought_the_bits_are_the_backbones(
    adapter: Path, base: Path, tmp_path: Path
) -> None:
    params = SamplingParams(max_tokens=12, temperature=0, logprobs=2, deterministic=True, ignore_eos=True)
    quiet, backbone = engine(silenced(adapter, tmp_path / "quiet")), engine(base)
    own, plain = quiet.generate(PROMPTS, params), backbone.generate(PROMPTS, params)
    for mine, its in zip(own, plain, strict=True):
        assert not any(thought.token_ids for thought in mine.thoughts) and mine.thoughts
        assert mine.choices[0].token_ids == its.choices[0].token_ids
        assert mine.choices[0].logprobs == its.choices[0].logprobs
    assert quiet.engine.fingerprint.digest != backbone.engine.fingerprint.digest


def test_adapter_of_other_weights_is_refused(adapter: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    export(start_run(replace(PLAIN, seed=4), CPU).built, PLAIN, other)
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] + 1
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in adapter.iterdir():
        moved.joinpath(path.name).write_bytes(path.read_bytes())
    fields = json.loads((moved / ADAPTER_FILE).read_text())
    (moved / ADAPTER_FILE).write_text(json.dumps({**fields, "base": str(other)}))
    with pytest.raises(BadWeights, match="has other weights"):
        engine(moved)
    (moved / ADAPTER_FILE).write_text(json.dumps({**fields, "base": str(moved)}))
    with pytest.raises(ModelNotFound, match="is an adapter"):
        engine(moved)
    (moved / ADAPTER_FILE).write_text('{"format": 1}')
    with pytest.raises(BadWeights, match="does not describe an adapter"):
        engine(moved)


def test_adapter_needs_a_backbone_and_thoughts() -> None:
    for wrong in (
        {"backbone": None},
        {"backbone": "smollm2", "form": "none"},
        {"backbone": "smollm2", "window": 9},
    ):
        with pytest.raises(ConfigError, match="an adapter"):
            replace(PLAIN, adapter=True, **{"form": "thinking"} | wrong)


def test_thinking_model_is_trained_further(adapter: Path, base: Path, tmp_path: Path) -> None:
    """From an adapter and from a whole thinking model: T and C are those that were trained."""
    settings = replace(
        PLAIN, form="thinking", backbone=str(adapter), adapter=True, tasks=("parity",), chunk=4
    )
    run = start_run(settings, CPU)
    trained = load_file(adapter / WEIGHTS_FILE)
    named = dict(run.model.named_parameters())
    assert all(torch.equal(named[name].detach(), tensor) for name, tensor in trained.items())
    train(run, tmp_path / "further")
    export(run.built, settings, tmp_path / "further")
    assert json.loads((tmp_path / "further" / ADAPTER_FILE).read_text())["base"] == str(base)
    (answer,) = engine(tmp_path / "further").generate(PROMPTS[:1], SamplingParams(max_tokens=2))
    assert len(answer.token_ids) == 2

    whole = replace(settings, adapter=False, max_thought=settings.max_thought + 2)
    export(start_run(whole, CPU).built, whole, tmp_path / "whole")
    again = start_run(replace(whole, backbone=str(tmp_path / "whole")), CPU).model
    named = dict(again.named_parameters())
    assert all(torch.equal(named[name].detach(), tensor) for name, tensor in trained.items())


@pytest.mark.parametrize(("key", "value"), [("chunk", 8), ("carry", True), ("l_in", 2)])
def test_training_further_keeps_how_the_model_thinks(adapter: Path, key: str, value: int) -> None:
    settings = replace(PLAIN, form="thinking", backbone=str(adapter), chunk=4)
    with pytest.raises(ConfigError, match=f"{key} is {value}.*train it further"):
        start_run(replace(settings, **{key: value}), CPU)
