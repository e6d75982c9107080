"""The training loop: the same settings give the same bits, interrupted or not; the export is a model folder."""

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from holdfast.errors import BadWeights, ConfigError
from holdfast.models.checkpoint import open_checkpoint
from holdfast.numerics.arrays import dtype_name
from holdfast.thinking.config import WEIGHTS_FILE, read_thinking
from holdfast_thinking import train_model
from holdfast_thinking.run import estimate as estimates
from holdfast_thinking.run import loop
from holdfast_thinking.run.estimate import estimate
from holdfast_thinking.run.export import STATE_FILE, export, read_training_info
from holdfast_thinking.run.loop import (
    TrainingRun,
    learning_rate,
    measure_accuracy,
    resume_run,
    start_run,
    train,
)
from holdfast_thinking.run.validation import validate
from holdfast_thinking.settings import (
    PRESETS,
    BackboneSize,
    TrainingSettings,
    settings_from_json,
)
from support.thinking_models import thinker_folder
from thinking.reference import open_reference

CPU = torch.device("cpu")
TINY = TrainingSettings(
    tasks=("parity", "variables"),
    max_events=3,
    size=BackboneSize(layers=2, hidden=16, inner=32, heads=2, kv_heads=1),
    max_thought=6,
    context=512,
    steps=12,
    batch=8,
    accumulate=2,
    warmup=3,
    eval_every=6,
    eval_texts=2,
    eval_events=(2,),
    save_every=4,
)


def _bits(run: TrainingRun) -> dict[str, bytes]:
    return {name: p.detach().numpy().tobytes() for name, p in run.model.named_parameters()}


def test_resumed_run_has_the_same_bits(tmp_path: Path) -> None:
    whole = start_run(TINY, CPU)
    train(whole)
    first = start_run(TINY, CPU)
    train(first, tmp_path, stops=lambda: first.step == 5)
    second = resume_run(tmp_path, CPU)
    assert second.step == 5 and second.settings == TINY
    train(second, tmp_path)
    assert _bits(second) == _bits(whole)
    assert second.metrics == whole.metrics
    assert [each.step for each in whole.metrics] == [6, 10, 12]
    assert resume_run(tmp_path, CPU).step == 12


def test_model_is_trained_on_the_examples_of_a_call(tmp_path: Path) -> None:
    lines = [{"prompt": f"Put {one} ‹{one}› here. Where is it?", "answer": f"{one}."} for one in "abcdefghij"]
    train_model(tmp_path, replace(TINY, steps=1, chunk=4), examples=lines, device="cpu")
    tasks = (f"jsonl:{tmp_path / 'examples.jsonl'}",)
    assert read_training_info(tmp_path).tasks == tasks and (tmp_path / WEIGHTS_FILE).is_file()
    run = resume_run(tmp_path, CPU)
    assert run.metrics[-1].accuracy is not None and run.metrics[-1].accuracy.keys() == set(tasks)
    batch = run.source.batch(0)
    said = [run.built.tokenizer.decode(row[row >= 0].tolist()) for row in batch.thoughts[:, 0]]
    assert len({*said}) == len(batch) == 8 and {each.strip() for each in said} < set("abcdefghi")
    with pytest.raises(ConfigError, match=r"examples.jsonl, line 1: .*missing required field `answer`"):
        train_model(tmp_path, TINY, examples=[{"prompt": "Put b here."}], device="cpu")


def test_tasks_have_their_shares_of_a_batch() -> None:
    settings = replace(TINY, tasks=("parity", "outside"), shares=(1, 3), form="none")
    batch = start_run(settings, CPU).source.batch(0)
    texts = [start_run(settings, CPU).built.tokenizer.decode(row.tolist()) for row in batch.token_ids]
    assert sum("I only know coins" in each for each in texts) == 6 and len(texts) == 8


def test_texts_are_new_in_every_step_and_depend_on_seed_and_step_alone() -> None:
    settings = replace(TINY, tasks=("coin-talk",))
    one, same = start_run(settings, CPU).source, start_run(settings, CPU).source
    seen = [tuple(row.tolist()) for step in range(4) for row in one.batch(step).token_ids]
    assert len(set(seen)) == len(seen)
    for step in (3, 0):  # in any order
        batch, other = one.batch(step), same.batch(step)
        assert (batch.token_ids == other.token_ids).all() and (batch.thoughts == other.thoughts).all()
    reseeded = start_run(replace(settings, seed=1), CPU).source.batch(0)
    assert not np.array_equal(reseeded.token_ids, one.batch(0).token_ids)


def test_every_text_of_a_file_comes_once_in_an_epoch(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"  # the tenth of its lines is held out
    file.write_text("\n".join(json.dumps({"prompt": f"{one}?", "answer": "x"}) for one in "abcdefghijklm"))
    source = start_run(replace(TINY, tasks=(f"jsonl:{file}",), form="none"), CPU).source
    seen = [tuple(row.tolist()) for step in range(3) for row in source.batch(step).token_ids]
    lines = [tuple(token for token in row if token) for row in seen]
    assert len(lines) == 24 and {lines.count(each) for each in lines} == {2}


def test_missing_or_broken_train_state_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run to resume"):
        resume_run(tmp_path, CPU)
    tmp_path.joinpath(STATE_FILE).write_bytes(b"half a f")
    with pytest.raises(BadWeights, match="not a complete saved run"):
        resume_run(tmp_path, CPU)


def test_settings_round_trip_through_json() -> None:
    for settings in (*PRESETS.values(), TINY):
        assert settings_from_json(asdict(settings)) == settings


def test_run_of_another_version_is_refused() -> None:
    saved = asdict(TINY)
    of_another = "another version of Holdfast saved this run"
    with pytest.raises(ConfigError, match=f"{of_another}: there is no setting texts"):
        settings_from_json({**saved, "texts": 20_000})
    del saved["thinks_answer"]
    with pytest.raises(ConfigError, match=f"{of_another}: it does not have the setting thinks_answer"):
        settings_from_json(saved)


@pytest.mark.parametrize(
    "changes",
    [
        *({"steps": 0}, {"tasks": ()}, {"accumulate": 9}, {"shares": (1,)}, {"chat": True}),
        *({"seed": 1 << 63}, {"seed": -1}, {"batch": 10**9}, {"minutes": float("inf")}),
        *({"learning_rate": float("inf")}, {"learning_rate": float("nan")}, {"block_rate": 0.0}),
        *({"follow_ups": 0.5}, {"follow_ups": 1.5}),
    ],
    ids=str,
)
def test_bad_settings_are_refused(changes: dict[str, object]) -> None:
    said = {"tasks": "no task", "accumulate": "9 passes"}
    (name,) = changes
    with pytest.raises(ConfigError, match=said.get(name, name)):
        replace(TINY, **changes)  # type: ignore[arg-type]


def test_run_that_diverges_writes_no_model() -> None:
    run = start_run(replace(TINY, learning_rate=1e30, warmup=1, steps=20, eval_every=0), CPU)
    with pytest.raises(ConfigError, match="lower learning rate"):
        train(run)


def test_learning_rate_warms_up_and_decays() -> None:
    rates = [learning_rate(TINY, step) for step in range(TINY.steps)]
    assert rates[2] == TINY.learning_rate == max(rates)
    assert rates[3:] == sorted(rates[3:], reverse=True)


def _thinks_like_the_reference(run: TrainingRun, folder: Path) -> None:
    reference = open_reference(folder)
    batch = run.source.eval_batch([("parity", 3)], 4)
    validated = validate(run.model, batch, CPU)
    with torch.no_grad():
        for row in range(4):
            ids = batch.token_ids[row, : batch.num_tokens[row]].tolist()
            thoughts = reference.read(reference.start(), ids).thoughts
            own = [tuple(each[each >= 0].tolist()) for each in validated.thoughts[row]]
            assert own[: len(thoughts)] == thoughts


def test_exported_folder_is_the_trained_model(tmp_path: Path) -> None:
    run = start_run(replace(TINY, steps=2), CPU)
    train(run)
    export(run.built, run.settings, tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    config = checkpoint.config
    assert config.family == "mistral" and set(config.layer_windows) == {64}
    thinking = read_thinking(tmp_path, config)
    assert thinking == run.model.thinking and thinking is not None
    _thinks_like_the_reference(run, tmp_path)


def test_baseline_exports_a_plain_model(tmp_path: Path) -> None:
    run = start_run(replace(TINY, form="cot", window=None, steps=2, dtype="bfloat16"), CPU)
    train(run)
    export(run.built, run.settings, tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config.family == "llama"
    assert dtype_name(checkpoint.tensor("model.norm.weight").dtype) == "bfloat16"
    assert read_thinking(tmp_path, checkpoint.config) is None
    assert measure_accuracy(run, (3,), 4).keys() == {"parity 3", "variables 3"}


def test_thinking_model_from_a_trained_backbone(tmp_path: Path) -> None:
    plain = start_run(replace(TINY, form="none", steps=2), CPU)
    export(plain.built, plain.settings, tmp_path / "plain")
    upon = replace(TINY, backbone=str(tmp_path / "plain"), steps=1)
    run = start_run(upon, CPU)
    held = load_file(tmp_path / "plain" / "model.safetensors")
    own = dict(run.model.named_parameters())
    assert all(torch.equal(own[name], tensor) for name, tensor in held.items())
    assert torch.equal(own["t.layer.mlp.up_proj.weight"], held["model.layers.1.mlp.up_proj.weight"])
    assert torch.equal(own["c.layer.mlp.up_proj.weight"], held["model.layers.0.mlp.up_proj.weight"])
    train(run)
    export(run.built, upon, tmp_path / "thinking")
    assert (tmp_path / "thinking" / WEIGHTS_FILE).is_file()
    assert (tmp_path / "thinking" / "tokenizer.json").is_file()


def test_backbone_is_given_a_window(tmp_path: Path) -> None:
    """A Llama becomes a Mistral with the same weights, trained and served with the window."""
    plain = replace(TINY, form="none", window=None, steps=2)
    export(start_run(plain, CPU).built, plain, tmp_path / "plain")
    assert open_checkpoint(tmp_path / "plain").config.family == "llama"
    upon = replace(TINY, backbone=str(tmp_path / "plain"), window=9, chunk=4)
    run = start_run(upon, CPU)
    export(run.built, upon, tmp_path / "thinking")
    checkpoint = open_checkpoint(tmp_path / "thinking")
    config = checkpoint.config
    assert config.family == "mistral" and set(config.layer_windows) == {9} and config == run.model.config
    plain_weights = load_file(tmp_path / "plain" / "model.safetensors")
    windowed = load_file(tmp_path / "thinking" / "model.safetensors")
    assert all(torch.equal(windowed[name], tensor) for name, tensor in plain_weights.items())
    _thinks_like_the_reference(run, tmp_path / "thinking")
    again = replace(upon, window=None, backbone=str(tmp_path / "thinking"))
    assert set(start_run(again, CPU).model.config.layer_windows) == {9}


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_window_is_refused_for_other_families(family: str, tmp_path: Path) -> None:
    folder = thinker_folder(tmp_path, family)
    with pytest.raises(ConfigError, match="a window can be given to Llama"):
        start_run(replace(TINY, backbone=str(folder), form="none", window=9), CPU)


def test_run_with_minutes_sets_its_steps_and_resumes_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_MEASURED_AT", (3, 6))
    asked = replace(TINY, minutes=60.0, steps=20)
    run = start_run(asked, CPU)
    train(run, tmp_path, stops=lambda: run.step == 8)
    assert run.settings.minutes is None and run.settings.steps > 1000  # a step takes much less than a second
    resumed = resume_run(tmp_path, CPU)
    assert resumed.settings == run.settings
    bounded = start_run(replace(asked, most_steps=9), CPU)
    train(bounded)
    assert bounded.step == bounded.settings.steps == 9
    with pytest.raises(ConfigError, match=r"no step ends in 1e-06 minutes; train on a GPU"):
        train(start_run(replace(asked, minutes=1e-6), CPU))


def test_run_stops_within_a_step_which_changes_nothing() -> None:
    run = start_run(TINY, CPU)
    before, answers = _bits(run), iter([False, False, True])
    train(run, stops=lambda: next(answers))  # before the step, its first pass, its second
    assert run.step == 0 and _bits(run) == before


def test_slow_run_reports_and_saves_by_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_LOG_SECONDS", 0)
    monkeypatch.setattr(loop, "_SAVE_SECONDS", 0)
    run, saved = start_run(replace(TINY, steps=5, save_every=0, eval_every=0), CPU), []
    train(run, tmp_path, report=lambda _: saved.append(tmp_path.joinpath(STATE_FILE).exists()))
    assert saved == [False, True, True, True, True]


def test_estimate_names_what_a_run_needs_and_changes_no_weight() -> None:
    run = start_run(TINY, CPU)
    before, threads = _bits(run), torch.get_num_threads()
    said = estimate(run, threads)
    assert re.fullmatch(
        rf"about \S+ s a step, 12 steps in \S+ minutes, \S+ GB of memory, {threads} of {threads} threads",
        said,
    )
    assert _bits(run) == before and torch.get_num_threads() == threads
    for slow in ({"steps": 1 << 40}, {"steps": 1 << 40, "minutes": 1e-5}):
        assert estimate(start_run(replace(TINY, **slow), CPU), threads).endswith("; this needs a GPU")


@pytest.mark.parametrize("alone", [0.5, 2.0])
def test_run_takes_one_thread_where_more_are_slower(alone: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine whose other cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(estimates, "_time", lambda *_: 1.0 if torch.get_num_threads() == 2 else alone)
    try:
        estimate(start_run(TINY, CPU), None)
        assert torch.get_num_threads() == (1 if alone < 1 else 2)
    finally:
        torch.set_num_threads(before)
