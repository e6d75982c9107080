"""Recordings of ordinary answers that differ between alone and loaded, and their control."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from holdfast.bench.determinism.divergence import NUM_ALONE, RecordSettings, record_with
from holdfast.bench.determinism.divergence_plot import plot_recording
from holdfast.bench.determinism.divergence_table import show_recording
from holdfast.bench.determinism.engine_pair import EnginePair
from holdfast.bench.determinism.matrix import products_disagree
from holdfast.bench.determinism.recording import (
    RecordedModel,
    Recording,
    builtin_recordings,
    first_difference,
    read_recording,
)
from holdfast.bench.report import write_report
from holdfast.bench.tiny import tiny_engine
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError
from holdfast.recordings import recording_files

MODEL = RecordedModel("tiny", "random", "fp32", "torch")


@pytest.fixture(scope="module")
def recording() -> Recording:
    config = EngineConfig(
        kernels="torch",
        dtype="fp32",
        device="cpu",
        max_num_seqs=6,
        max_pass_tokens=32,
        max_model_len=128,
    )
    engine = tiny_engine(config, near_ties=True)
    return record_with(EnginePair(engine, engine), MODEL, RecordSettings(runs=5, num_tokens=10, load=5))


def test_ordinary_answers_differ_and_deterministic_ones_do_not(recording: Recording) -> None:
    ordinary, controls = recording.ordinary, recording.controls
    assert [(one.mode, one.runs, one.distinct) for one in controls] == [("verify", 5, 1), ("auto", 5, 1)]
    assert ordinary.runs == sum(one.runs for one in ordinary.answers) == 5
    assert recording.is_good == (ordinary.distinct > 1)
    if products_disagree():
        assert len(ordinary.answers) > 1


def test_first_answer_is_the_one_given_alone(recording: Recording) -> None:
    first, *others = recording.ordinary.answers
    assert first.neighbours[:NUM_ALONE] == [0] * NUM_ALONE and first.first_difference is None
    for one in others:
        at = one.first_difference
        assert at is not None and 0 not in one.neighbours
        assert one.token_ids[:at] == first.token_ids[:at] and one.token_ids[at] != first.token_ids[at]
        assert one.logprob_bits is not None and len(one.logprob_bits) == 8


def test_recording_survives_its_file(recording: Recording, tmp_path: Path) -> None:
    path = tmp_path / "recording.json"
    write_report(recording, path)
    assert read_recording(path) == recording
    path.write_text('{"date": 1}')
    with pytest.raises(ConfigError, match="is not a recording"):
        read_recording(path)


def test_table_says_where_the_recording_was_made(recording: Recording) -> None:
    machine = replace(recording.machine, device="A Machine", torch="2.99")
    shown = io.StringIO()
    show_recording(replace(recording, machine=machine), Console(file=shown, width=200))
    text = shown.getvalue()
    assert f"Recorded on {recording.date} on A Machine: tiny, random weights, fp32, torch kernels" in text
    assert f"ordinary: 5 runs, {len(recording.ordinary.answers)} different answers" in text
    assert "deterministic (verify): 5 runs, 1 answer" in text


def test_plot_is_drawn(recording: Recording, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot_recording(recording, tmp_path / "recording.png")
    assert (tmp_path / "recording.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("one", "other", "at"), [([1, 2], [1, 3], 1), ([1, 2], [1, 2, 3], 2), ([], [1], 0), ([4], [5], 0)]
)
def test_first_difference(one: list[int], other: list[int], at: int) -> None:
    assert first_difference(one, other) == at


def test_recordings_of_the_package_show_the_problem_and_its_control() -> None:
    recordings = builtin_recordings()
    assert recordings
    for one in recordings:
        assert one.is_good and len(one.ordinary.answers) > 1, "an ordinary answer must differ in tokens"
        assert one.machine.device and one.model.name and one.date
    assert all(len(one) < 100_000 for one in recording_files())
