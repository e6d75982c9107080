"""An exam through the engine: its texts, its counts, its ablations. The models are tiny and have learnt nothing."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from holdfast.core.results import Choice, Result, Stats, Thought
from holdfast.engine.llm import LLM
from holdfast.errors import BadWeights, ConfigError
from holdfast.models.locate import COIN, locate
from holdfast.training.eval.ablation import opposite, swap
from holdfast.training.eval.accuracy import examine, is_right
from holdfast.training.eval.cost import VARIANTS, measure_cost, plain_copy
from holdfast.training.eval.eval import Candidate, ExamSettings, hold_exam
from holdfast.training.eval.eval_set import Papers, Question, final_answer
from holdfast.training.eval.latency import measure_latency
from holdfast.training.eval.model import Subject, open_subject
from holdfast.training.eval.rounds import coin_texts, measure_rounds
from holdfast.training.export import export
from holdfast.training.loop import start_run
from holdfast.training.settings import SIZES, Settings
from holdfast.training.tasks.task import Form
from holdfast.training.training_record import RECORD_FILE, Record, read_record

SETTINGS = Settings(
    tasks=("parity", "variables"), max_events=4, size=SIZES["tiny"], chunk=4, variables_thought="all"
)


def untrained(folder: Path, form: Form) -> Path:
    settings = replace(SETTINGS, form=form)
    export(start_run(settings, torch.device("cpu")).built, settings, folder)
    return folder


def open_llm(folder: Path) -> LLM:
    return LLM(str(folder), device="cpu", prefix_cache=False, max_num_seqs=8, max_model_len=512)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Form], Path]:
    root, made = tmp_path_factory.mktemp("exam"), {}

    def get(form: Form) -> Path:
        if form not in made:
            made[form] = untrained(root / form, form)
        return made[form]

    return get


@pytest.fixture(scope="module")
def subject(folder: Callable[[Form], Path]) -> Subject:
    return open_subject("own", folder("thinking"), open_llm, SETTINGS.tasks, 1, True, True)


def papers(folder: Path) -> Papers:
    return Papers(folder, read_record(folder), None, SETTINGS.tasks, 1, True)


def answered(text: str, thoughts: tuple[Thought, ...] = ()) -> Result:
    return Result((1,), (Choice(text, (5,), "stop", None, thoughts),), 0, "none", Stats())


def test_every_form_is_asked_the_same_texts(folder: Callable[[Form], Path]) -> None:
    plain, chain, words = (papers(folder(form)) for form in ("none", "cot", "words"))
    for task in SETTINGS.tasks:
        asked = [each.draw(task, 3, 4) for each in (plain, chain, words)]
        assert [each.token_ids for each in asked[0]] == [each.token_ids for each in asked[1]]
        assert len({tuple(each.final for each in some) for some in asked}) == 1
        assert all(each.num_answer > 6 and "So" in each.answer for each in asked[1])
        assert all(each.answer.strip() == each.final for each in asked[0])


def test_the_end_of_a_chain_of_thought_is_the_answer() -> None:
    assert final_answer(" Alice flips: tails. So tails.", "cot") == "tails."
    assert final_answer(" tails heads", "words") == ""  # it came to no end
    assert final_answer(" tails.", "thinking") == "tails."


def test_an_answer_is_right_as_it_is_written(subject: Subject) -> None:
    question = Question((1, 2), " heads.", "heads.", 2)
    assert is_right(subject, question, answered(" heads."))
    assert not is_right(subject, question, answered(" tails."))
    assert not is_right(subject, question, answered(" heads. heads."))


@pytest.mark.parametrize("task", SETTINGS.tasks)
def test_gold_thoughts_by_force_are_reported_as_gold(subject: Subject, task: str) -> None:
    questions = subject.papers.draw(task, 3, 3)
    assert all(any(each.thoughts) for each in questions)
    forced = [subject.params(4, forced_thoughts=dict(enumerate(question.thoughts))) for question in questions]
    results = subject.ask_each(questions, forced)
    for question, result in zip(questions, results, strict=True):
        own = [thought.token_ids for thought in result.thoughts if thought.chunk < len(question.thoughts)]
        assert own == list(question.thoughts)


def test_a_cell_counts_what_the_engine_said(subject: Subject) -> None:
    questions = subject.papers.draw("parity", 3, 3)
    cell, results = examine(subject, "parity", 3, questions)
    assert (cell.count, len(results)) == (3, 3)
    assert cell.answer_tokens == sum(len(each.token_ids) for each in results) / 3
    assert cell.guessed * 3 == sum(each.stats.guessed for each in results) > 0
    assert cell.rounds * 3 == sum(each.stats.prefill_passes for each in results) > 3
    assert cell.gold_chunks is not None and 0 <= cell.gold_chunks < 1


def test_the_last_thought_is_swapped(subject: Subject) -> None:
    assert opposite(" heads tails.") == " tails heads."
    questions = subject.papers.draw("parity", 3, 3)
    _, results = examine(subject, "parity", 3, questions)
    found = swap(subject, 3, questions, results)
    assert found.count + found.without_thought == 3
    assert found.unchanged == found.count > 0  # what was thought anyway changes nothing
    assert found.flipped == 0  # it never says heads or tails
    coin = open_subject("coin", locate(COIN).path, open_llm, ("parity",), 1, False, True)
    questions = coin.papers.draw("parity", 5, 4)
    cell, results = examine(coin, "parity", 5, questions)
    found = swap(coin, 5, questions, results)
    assert cell.accuracy == 1
    assert found.flipped == found.unchanged == found.count > 0  # and one that has learnt it says the other


def test_without_states_it_is_the_plain_model(subject: Subject) -> None:
    questions = subject.papers.draw("variables", 3, 2)
    with plain_copy(subject.folder) as plain:
        llm = open_llm(plain)
        asked = [subject.params(each.max_tokens) for each in questions]
        expected = [each.token_ids for each in subject.ask_each(questions, asked, llm)]
    assert [each.token_ids for each in subject.ask(questions, think=False)] == expected
    assert all(not each.thoughts for each in subject.ask(questions, think=False))


def test_guesses_change_rounds_and_no_answer(subject: Subject) -> None:
    found = measure_rounds(subject, count=1, most_tokens=48)
    assert [each.density for each in found] == ["rare", "few", "medium", "dense"]
    for each in found:
        assert each.same_answers
        assert each.rounds_by_chunk >= each.chunks
        assert each.rounds <= each.rounds_by_chunk


def test_density_is_of_events(subject: Subject) -> None:
    (dense,), (none,) = (coin_texts(subject, density, 1, 120) for density in ("dense", "none"))
    decode = subject.papers.tokenizer.decode
    assert decode(list(dense.token_ids)).count("flip") > 10
    assert decode(list(none.token_ids)).count("flip") == 0
    assert max(len(dense.token_ids), len(none.token_ids)) <= 120


def test_latency_of_models_in_turns(subject: Subject, folder: Callable[[Form], Path]) -> None:
    chain = open_subject("chain", folder("cot"), open_llm, SETTINGS.tasks, 1, True, False)
    own, other = measure_latency([subject, chain], 2, events=3)
    assert own.ratio is None and other.ratio == other.median_ms / own.median_ms
    assert own.prompt_tokens == other.prompt_tokens
    assert own.tokens_per_event is None
    assert other.tokens_per_event is not None and other.tokens_per_event >= 5
    assert " So" in other.example


def test_cost_of_three_variants(subject: Subject) -> None:
    found = measure_cost(subject, open_llm, rounds=2, streams=(1,), most_tokens=40)
    assert [each.variant for each in found] == [*VARIANTS] * 2
    assert {each.texts for each in found} == {"trivial", "thought-rich"}
    assert all(each.prompt_us > 0 for each in found)
    assert all(each.thoughts == 0 for each in found if each.variant != "thinks")


def test_an_exam_is_written_as_json(folder: Callable[[Form], Path], tmp_path: Path) -> None:
    candidates = [
        Candidate("own", folder("thinking")),
        Candidate("plain", folder("none"), is_baseline=True),
    ]
    settings = ExamSettings(events=(2, 4, 5), count=2, baseline_count=1, ablate=True)
    told: list[str] = []
    report = hold_exam(candidates, settings, open_llm, tmp_path, told.append)
    held = json.loads((tmp_path / "eval-thinking.json").read_text())
    assert [(each["model"], each["count"]) for each in held["accuracy"]] == [("own", 2)] * 6 + [
        ("plain", 1)
    ] * 6
    assert len(held["zeroed"]) == 6 and len(held["swapped"]) == 3
    assert held["settings"]["tasks"] == ["parity", "variables"]
    assert held["models"]["own"]["max_events"] == 4
    assert {(each["task"], each["from_events"]) for each in held["mean_accuracy"]} == {
        ("parity", 4),
        ("variables", 4),
    }
    shares = [each.accuracy for each in report.accuracy if each.model == "own" and each.task == "parity"]
    assert report.mean_accuracy("own", "parity") == sum(shares[1:]) / 2  # of 4 and 5 events
    assert told
    with pytest.raises(ConfigError, match="name of its own"):
        hold_exam(candidates[:1] * 2, settings, open_llm, None, told.append)


def test_a_folder_says_how_it_was_trained(folder: Callable[[Form], Path], tmp_path: Path) -> None:
    record = read_record(folder("cot"))
    assert record == Record("cot", ("parity", "variables"), 4, 0, 1500, True, "all")
    with pytest.raises(BadWeights, match=RECORD_FILE):
        read_record(tmp_path)
    for wrong in ("{", '{"form": "thinking"}', '{"form": "loud", "tasks": [], "max_events": 4}', "[]"):
        (tmp_path / RECORD_FILE).write_text(wrong)
        with pytest.raises(BadWeights, match="does not say"):
            read_record(tmp_path)


def test_what_cannot_be_asked_is_said_before_anything_is_opened(folder: Callable[[Form], Path]) -> None:
    own = [Candidate("own", folder("thinking"), is_baseline=False)]
    with pytest.raises(ConfigError, match="latency is measured on parity"):
        hold_exam(own, ExamSettings(tasks=("variables",), latency=True), open_llm, None, print)
