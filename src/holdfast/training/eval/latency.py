"""Latency of answers: all models on the same texts, one request at a time, in turns."""

from collections.abc import Sequence
from statistics import fmean, median, quantiles

from holdfast.core.results import Result
from holdfast.training.eval.accuracy import is_right
from holdfast.training.eval.eval_set import EvalPrompt
from holdfast.training.eval.model import EvalModel
from holdfast.training.eval.report import AnswerLatency

TASK, EVENTS = "parity", 40
_WARM_UPS = 3
_EXAMPLE_EVENTS = 2


def measure_latency(models: Sequence[EvalModel], count: int, events: int = EVENTS) -> list[AnswerLatency]:
    """The ratio of each model is to the first model's time."""
    prompts = [each.eval_set.draw(TASK, events, count + _WARM_UPS) for each in models]
    times: list[list[float]] = [[] for _ in models]
    answers: list[list[Result]] = [[] for _ in models]
    for number in range(count + _WARM_UPS):
        for index, model in enumerate(models):
            seconds, result = model.time(prompts[index][number])
            if number >= _WARM_UPS:
                times[index].append(seconds)
                answers[index].append(result)
    found = [
        _latency(model, drawn[_WARM_UPS:], took, results, events)
        for model, drawn, took, results in zip(models, prompts, times, answers, strict=True)
    ]
    for each in found[1:]:
        each.ratio = each.median_ms / found[0].median_ms
    return found


def _latency(
    model: EvalModel,
    prompts: Sequence[EvalPrompt],
    times: Sequence[float],
    results: Sequence[Result],
    events: int,
) -> AnswerLatency:
    tenths = quantiles(times, n=10, method="inclusive") if len(times) > 1 else [times[0]] * 9
    is_chain = model.info.form in ("cot", "words")
    final = fmean(_num_final(model, each) for each in prompts)
    return AnswerLatency(
        model=model.name,
        form=model.info.form,
        count=len(times),
        median_ms=1000 * median(times),
        p10_ms=1000 * tenths[0],
        p90_ms=1000 * tenths[-1],
        prompt_tokens=fmean(len(each.token_ids) for each in prompts),
        answer_tokens=fmean(len(each.token_ids) for each in results),
        looked_up=fmean(each.stats.looked_up for each in results),
        rounds=fmean(each.stats.prefill_passes for each in results),
        accuracy=fmean(is_right(model, *each) for each in zip(prompts, results, strict=True)),
        tokens_per_event=(fmean(each.num_answer for each in prompts) - final) / events if is_chain else None,
        example=model.eval_set.draw(TASK, _EXAMPLE_EVENTS, 1)[0].answer,
    )


def _num_final(model: EvalModel, prompt: EvalPrompt) -> int:
    """Number of tokens after the chain of thought: " So heads."."""
    text = f" So {prompt.final}"
    return len(model.eval_set.tokenizer.encode(text, add_special_tokens=False).ids)
