"""What an answer costs in time: the thinking model and its baselines on the same texts, one request at a time, in turns."""

from collections.abc import Sequence
from statistics import fmean, median, quantiles

from holdfast.core.results import Result
from holdfast.training.eval.accuracy import is_right
from holdfast.training.eval.eval_set import Question
from holdfast.training.eval.model import Subject
from holdfast.training.eval.report import Latency

TASK, EVENTS = "parity", 40
_WARM_UPS = 3
_EXAMPLE_EVENTS = 2


def measure_latency(subjects: Sequence[Subject], count: int, events: int = EVENTS) -> list[Latency]:
    """The first subject's time is what the others' is compared with."""
    papers = [each.papers.draw(TASK, events, count + _WARM_UPS) for each in subjects]
    times: list[list[float]] = [[] for _ in subjects]
    answers: list[list[Result]] = [[] for _ in subjects]
    for number in range(count + _WARM_UPS):
        for index, subject in enumerate(subjects):
            seconds, result = subject.time(papers[index][number])
            if number >= _WARM_UPS:
                times[index].append(seconds)
                answers[index].append(result)
    found = [
        _latency(subject, paper[_WARM_UPS:], took, results, events)
        for subject, paper, took, results in zip(subjects, papers, times, answers, strict=True)
    ]
    for each in found[1:]:
        each.ratio = each.median_ms / found[0].median_ms
    return found


def _latency(
    subject: Subject,
    questions: Sequence[Question],
    times: Sequence[float],
    results: Sequence[Result],
    events: int,
) -> Latency:
    tenths = quantiles(times, n=10, method="inclusive") if len(times) > 1 else [times[0]] * 9
    is_chain = subject.record.form in ("cot", "words")
    final = fmean(_num_final(subject, each) for each in questions)
    return Latency(
        model=subject.name,
        form=subject.record.form,
        count=len(times),
        median_ms=1000 * median(times),
        p10_ms=1000 * tenths[0],
        p90_ms=1000 * tenths[-1],
        prompt_tokens=fmean(len(each.token_ids) for each in questions),
        answer_tokens=fmean(len(each.token_ids) for each in results),
        looked_up=fmean(each.stats.looked_up for each in results),
        rounds=fmean(each.stats.prefill_passes for each in results),
        accuracy=fmean(is_right(subject, *each) for each in zip(questions, results, strict=True)),
        tokens_per_event=(fmean(each.num_answer for each in questions) - final) / events
        if is_chain
        else None,
        example=subject.papers.draw(TASK, _EXAMPLE_EVENTS, 1)[0].answer,
    )


def _num_final(subject: Subject, question: Question) -> int:
    """Tokens of what stands behind the chain of thought: " So heads."."""
    text = f" So {question.final}"
    return len(subject.papers.tokenizer.encode(text, add_special_tokens=False).ids)
