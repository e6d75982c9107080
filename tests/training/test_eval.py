"""Evaluation with the engine: eval sets, counts, ablations. The models are tiny and untrained."""

import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from benchmarks.thinking.eval import measure_latency, opposite, swap_last_thought
from holdfast.core.results import Choice, Result, Stats, Thought
from holdfast.engine.llm.llm import LLM
from holdfast.errors import BadWeights, ConfigError
from holdfast.models.locate import COIN, locate
from holdfast_thinking.eval.measures import measure_accuracy
from holdfast_thinking.eval.model import EvalModel, EvalPrompt, final_answer
from holdfast_thinking.eval.report import show_eval
from holdfast_thinking.eval.run import EvalSettings, run_eval
from holdfast_thinking.run.export import INFO_FILE, TrainingInfo, export, read_training_info
from holdfast_thinking.run.loop import start_run
from holdfast_thinking.settings import SIZES, AnswerForm, TrainingSettings

SETTINGS = TrainingSettings(tasks=("parity", "variables"), max_events=4, size=SIZES["tiny"], chunk=4)


def untrained(folder: Path, form: AnswerForm) -> Path:
    settings = replace(SETTINGS, form=form)
    export(start_run(settings, torch.device("cpu")).built, settings, folder)
    return folder


def open_llm(folder: Path) -> LLM:
    """Few batch sizes to certify."""
    return LLM(
        str(folder), device="cpu", prefix_cache=False, max_num_seqs=8, max_model_len=512, max_pass_tokens=64
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[AnswerForm], Path]:
    root, made = tmp_path_factory.mktemp("eval"), {}

    def get(form: AnswerForm) -> Path:
        if form not in made:
            made[form] = untrained(root / form, form)
        return made[form]

    return get


@pytest.fixture(scope="module")
def model(folder: Callable[[AnswerForm], Path]) -> EvalModel:
    return EvalModel("own", folder("thinking"), open_llm, SETTINGS.tasks, 1, True)


@pytest.fixture(scope="module")
def chain(folder: Callable[[AnswerForm], Path]) -> EvalModel:
    return EvalModel("chain", folder("cot"), open_llm, SETTINGS.tasks, 1, True)


def answered(text: str, thoughts: tuple[Thought, ...] = ()) -> Result:
    return Result((1,), (Choice(text, (5,), "stop", None, thoughts),), 0, "none", Stats())


def test_prompts_are_the_same_for_every_answer_form(model: EvalModel, chain: EvalModel) -> None:
    for task in SETTINGS.tasks:
        asked = [each.draw(task, 3, 4) for each in (model, chain)]
        assert [each.token_ids for each in asked[0]] == [each.token_ids for each in asked[1]]
        assert len({tuple(each.final for each in some) for some in asked}) == 1
        assert all(each.num_answer > 6 and "So" in each.answer for each in asked[1])
        assert all(each.answer.strip() == each.final for each in asked[0])


def test_final_answer_of_a_chain_of_thought() -> None:
    assert final_answer(" Alice flips: tails. So tails.", "cot") == "tails."
    assert final_answer(" tails heads", "cot") == ""  # it came to no end
    assert final_answer(" tails.", "thinking") == "tails."


def test_answer_is_right_only_if_the_text_is_equal(model: EvalModel) -> None:
    prompt = EvalPrompt((1, 2), " heads.", "heads.", 2)
    assert model.is_right(prompt, answered(" heads."))
    assert not model.is_right(prompt, answered(" tails."))
    assert not model.is_right(prompt, answered(" heads. heads."))


@pytest.mark.parametrize("task", SETTINGS.tasks)
def test_forced_gold_thoughts_are_reported(model: EvalModel, task: str) -> None:
    prompts = model.draw(task, 3, 3)
    assert all(any(each.thoughts) for each in prompts)
    forced = [model.params(each, forced_thoughts=dict(enumerate(each.thoughts))) for each in prompts]
    results = model.generate(prompts, forced)
    for prompt, result in zip(prompts, results, strict=True):
        own = [thought.token_ids for thought in result.thoughts if thought.chunk < len(prompt.thoughts)]
        assert own == list(prompt.thoughts)


def test_accuracy_has_the_engine_s_counts(model: EvalModel) -> None:
    prompts = model.draw("parity", 3, 3)
    row, results = measure_accuracy(model, "parity", 3, prompts)
    assert (row["count"], len(results)) == (3, 3)
    assert row["answer_tokens"] == sum(len(each.token_ids) for each in results) / 3
    assert row["guessed"] * 3 == sum(each.stats.guessed for each in results) > 0
    assert row["rounds"] * 3 == sum(each.stats.prefill_passes for each in results) > 3
    assert 0 <= row["gold_chunks"] < 1


@pytest.mark.long
def test_swapped_last_thought_flips_the_answer_of_a_trained_model(model: EvalModel) -> None:
    assert opposite(" heads tails.") == " tails heads."
    coin = EvalModel("coin", locate(COIN).path, open_llm, ("parity",), 1, False)
    for one, events, accuracy in ((model, 3, 0), (coin, 5, 1)):
        prompts = one.draw("parity", events, 3)
        row, results = measure_accuracy(one, "parity", events, prompts)
        found = swap_last_thought(one, events, list(zip(prompts, results, strict=True)))
        assert row["accuracy"] == accuracy and found["count"] + found["without_thought"] == 3
        assert found["unchanged"] == found["count"] > 0  # what was thought anyway changes nothing
        # The untrained one never says heads or tails. One that has learnt it says the other.
        assert found["flipped"] == accuracy * found["count"]


def test_latency_of_two_models(model: EvalModel, chain: EvalModel) -> None:
    own, other = measure_latency([model, chain], 2, events=3, task="parity")
    assert own["ratio"] == 1 and other["ratio"] == other["median_ms"] / own["median_ms"]
    assert own["prompt_tokens"] == other["prompt_tokens"]
    assert all(each["answer_ms"] > 0 and 0 < each["first_ms"] <= each["median_ms"] for each in (own, other))


def test_eval_report_is_written_as_json(folder: Callable[[AnswerForm], Path], tmp_path: Path) -> None:
    folders = [("own", folder("thinking")), ("plain", folder("none"))]
    settings = EvalSettings(events=(2, 4, 5), count=2, ablate=True)
    notes: list[str] = []
    report = run_eval(folders, settings, open_llm, tmp_path, notes.append)
    held = json.loads((tmp_path / "eval-thinking.json").read_text())
    assert [(each["model"], each["count"]) for each in held["accuracy"]] == [("own", 2)] * 6 + [
        ("plain", 2)
    ] * 6
    assert len(held["zeroed"]) == 6
    assert held["settings"]["tasks"] == ["parity", "variables"]
    assert held["models"]["own"]["max_events"] == 4
    assert {(each["task"], each["from_events"]) for each in held["mean_accuracy"]} == {
        ("parity", 4),
        ("variables", 4),
    }
    shares = [
        each["accuracy"] for each in report.accuracy if (each["model"], each["task"]) == ("own", "parity")
    ]
    assert held["mean_accuracy"][0]["accuracy"] == sum(shares[1:]) / 2  # of 4 and 5 events
    assert notes
    with pytest.raises(ConfigError, match="its own name"):
        run_eval(folders[:1] * 2, settings, open_llm, None, notes.append)


def test_training_info_of_a_folder(folder: Callable[[AnswerForm], Path], tmp_path: Path) -> None:
    info = read_training_info(folder("cot"))
    assert info == TrainingInfo("cot", ("parity", "variables"), 4, 0, 1500, True)
    with pytest.raises(BadWeights, match=INFO_FILE):
        read_training_info(tmp_path)
    for wrong in ("{", '{"form": "thinking"}', '{"form": "loud", "tasks": [], "max_events": 4}', "[]"):
        (tmp_path / INFO_FILE).write_text(wrong)
        with pytest.raises(BadWeights, match="does not say"):
            read_training_info(tmp_path)


def test_file_and_text_tasks_are_evaluated_with_their_thoughts(
    folder: Callable[[AnswerForm], Path], tmp_path: Path
) -> None:
    path = tmp_path / "qa9_test.jsonl"
    path.write_text('{"prompt": "Nora went to the hall. Where is Nora?", "answer": "hall."}\n')
    tasks = (f"jsonl:{path}", "outside")
    folders = [("own", folder("thinking")), ("chain", folder("cot"))]
    settings = EvalSettings(tasks=tasks[::-1], count=2, ablate=True)
    report = run_eval(folders, settings, open_llm, tmp_path, lambda text: None)
    found = [tuple(row[key] for key in ("model", "task", "events", "count")) for row in report.accuracy]
    assert found == [
        ("own", "outside", 0, 2),
        ("own", tasks[0], 0, 1),
        ("chain", "outside", 0, 2),
        ("chain", tasks[0], 0, 1),
    ]
    console = Console(file=io.StringIO(), width=220)
    show_eval(report, console)
    shown = console.file.getvalue()
    assert "jsonl qa9_test" in shown
    _, without_states = shown.split("the same checkpoint without states")
    assert re.search(r"own +jsonl qa9_test +1 +0\.0 ", without_states)
