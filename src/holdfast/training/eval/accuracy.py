"""Right answers by task and number of events, and how far the thoughts behind them are the gold ones."""

import time
from collections.abc import Sequence
from statistics import fmean

from holdfast.core.results import Result
from holdfast.training.eval.eval_set import Question, final_answer
from holdfast.training.eval.model import Subject
from holdfast.training.eval.report import Cell


def examine(
    subject: Subject, task: str, events: int, questions: Sequence[Question]
) -> tuple[Cell, list[Result]]:
    started = time.perf_counter()
    results = subject.ask(questions)
    seconds = time.perf_counter() - started
    cell = Cell(
        model=subject.name,
        task=task,
        events=events,
        count=len(questions),
        right=num_right(subject, questions, results),
        prompt_tokens=fmean(len(each.token_ids) for each in questions),
        answer_tokens=fmean(len(each.token_ids) for each in results),
        rounds=fmean(each.stats.prefill_passes for each in results),
        guessed=fmean(each.stats.guessed for each in results),
        guessed_right=fmean(each.stats.guessed_right for each in results),
        seconds=seconds,
        cut_off=sum(each.finish_reason == "length" for each in results),
    )
    if subject.thinking is not None:
        _compare_thoughts(cell, questions, results)
    return cell, results


def num_right(subject: Subject, questions: Sequence[Question], results: Sequence[Result]) -> int:
    return sum(is_right(subject, *each) for each in zip(questions, results, strict=True))


def is_right(subject: Subject, question: Question, result: Result) -> bool:
    return final_answer(result.text, subject.record.form) == question.final


def _compare_thoughts(cell: Cell, questions: Sequence[Question], results: Sequence[Result]) -> None:
    """Chunks of the prompt alone: what is thought of an answer depends on what was answered."""
    chunks = same = told = same_told = whole = 0
    for question, result in zip(questions, results, strict=True):
        own = {thought.chunk: thought.token_ids for thought in result.thoughts}
        agrees = [own.get(chunk) == gold for chunk, gold in enumerate(question.thoughts)]
        speaks = [bool(gold) for gold in question.thoughts]
        chunks, same = chunks + len(agrees), same + sum(agrees)
        told += sum(speaks)
        same_told += sum(a and b for a, b in zip(agrees, speaks, strict=True))
        whole += all(agrees)
    cell.gold_chunks = same / max(1, chunks)
    cell.gold_thoughts = same_told / max(1, told)
    cell.gold_prompts = whole / len(questions)
