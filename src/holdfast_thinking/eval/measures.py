"""Right answers by task and number of events, the share of thoughts that are gold, and right answers without
states. And the latency of answers.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, quantiles

from holdfast.core.results import Result
from holdfast.errors import ConfigError
from holdfast_thinking.eval.model import EvalModel, EvalPrompt
from holdfast_thinking.eval.report import Row

_WARM_UPS = 3
_Pairs = list[tuple[EvalPrompt, Result]]


def measure_accuracy(
    model: EvalModel, task: str, events: int, prompts: Sequence[EvalPrompt]
) -> tuple[Row, list[Result]]:
    """Measure one task and number of events; 0: the texts have none.

    rounds, guessed, guessed_right: means over prompts. cut_off: answers that reached max_tokens. wrong: which
    texts, to compare models text by text.
    """
    started = time.perf_counter()
    results = model.generate(prompts)
    seconds = time.perf_counter() - started
    pairs = list(zip(prompts, results, strict=True))
    wrong = [index for index, each in enumerate(pairs) if not model.is_right(*each)]
    row: Row = {
        "model": model.name,
        "task": task,
        "events": events,
        "count": len(prompts),
        "right": len(prompts) - len(wrong),
        "prompt_tokens": fmean(len(each.token_ids) for each in prompts),
        "answer_tokens": fmean(len(each.token_ids) for each in results),
        "rounds": fmean(each.stats.prefill_passes for each in results),
        "guessed": fmean(each.stats.guessed for each in results),
        "guessed_right": fmean(each.stats.guessed_right for each in results),
        "seconds": seconds,
        "gold_chunks": None,
        "gold_thoughts": None,
        "gold_prompts": None,
        "cut_off": sum(each.finish_reason == "length" for each in results),
        "wrong": wrong,
        "accuracy": 1 - len(wrong) / len(prompts),
    }
    return row | ({} if model.thinking is None else _gold_shares(pairs)), results


def _gold_shares(pairs: _Pairs) -> Row:
    """Return shares of gold thoughts: of all chunks, of those with a thought, of whole prompts."""
    every: list[list[bool]] = []
    nontrivial: list[bool] = []
    for prompt, result in pairs:
        own = {thought.chunk: thought.token_ids for thought in result.thoughts}
        every.append([own.get(chunk) == gold for chunk, gold in enumerate(prompt.thoughts)])
        nontrivial += [agrees for agrees, gold in zip(every[-1], prompt.thoughts, strict=True) if gold]
    chunks = [agrees for each in every for agrees in each]
    return {
        "gold_chunks": sum(chunks) / max(1, len(chunks)),
        "gold_thoughts": sum(nontrivial) / max(1, len(nontrivial)),
        "gold_prompts": sum(map(all, every)) / len(every),
    }


def show_thoughts(model: EvalModel, task: str, pairs: _Pairs) -> list[Row]:
    """Return the prompts with the model's thoughts in them, the shortest first."""
    return [
        {
            "model": model.name,
            "task": task,
            "prompt": _with_thoughts(model, prompt, result),
            "answer": result.text.strip(),
            "gold": prompt.answer.strip(),
            "is_right": model.is_right(prompt, result),
        }
        for prompt, result in sorted(pairs, key=lambda each: len(each[0].token_ids))
    ]


def _with_thoughts(model: EvalModel, prompt: EvalPrompt, result: Result) -> str:
    decode, text, first = model.tokenizer.decode, "", 0
    for thought in result.thoughts:
        if thought.token_ids and thought.position < len(prompt.token_ids):
            text += decode(list(prompt.token_ids[first : thought.position + 1]), skip_special_tokens=True)
            text += f" ‹{thought.text}›"
            first = thought.position + 1
    return text + decode(list(prompt.token_ids[first:]), skip_special_tokens=True)


def zero_states(model: EvalModel, task: str, events: int, prompts: Sequence[EvalPrompt]) -> Row:
    results = model.generate(prompts, think=False)
    right = sum(model.is_right(*each) for each in zip(prompts, results, strict=True))
    row = {"model": model.name, "task": task, "events": events, "count": len(prompts), "right": right}
    return row | {"accuracy": right / len(prompts)}


def measure_latency(models: Sequence[EvalModel], count: int, events: int, task: str) -> list[Row]:
    """Time all models on the same texts, one request at a time, in turns. Ratios are to the first model's times.

    Two times: from the request to the end of the answer, and from the last token of the prompt, for a reader that
    had read the prompt as it came.
    """
    prompts = [each.draw(task, events, count + _WARM_UPS) for each in models]
    if len(prompts[0]) <= _WARM_UPS:
        raise ConfigError(f"{task} has {len(prompts[0])} texts; latency needs more than {_WARM_UPS}")
    timed = [
        [_time(model, drawn[number]) for model, drawn in zip(models, prompts, strict=True)]
        for number in range(len(prompts[0]))
    ]
    rows = [
        _latency(model, drawn[_WARM_UPS:], took[_WARM_UPS:], task, events)
        for model, drawn, took in zip(models, prompts, map(list, zip(*timed, strict=True)), strict=True)
    ]
    for row in rows:
        row["ratio"] = row["median_ms"] / rows[0]["median_ms"]
        row["answer_ratio"] = row["answer_ms"] / rows[0]["answer_ms"]
    return rows


@dataclass(frozen=True)
class _Timed:
    """Seconds to the first tokens, how many they were, and seconds to the end of the answer."""

    first: float
    num_first: int
    total: float
    result: Result

    @property
    def answer(self) -> float:
        """Seconds from the last token of the prompt on: all answer tokens at the pace of the later ones.

        Without later ones it is the time to the first tokens, which has the prompt in it.
        """
        later = len(self.result.token_ids) - self.num_first
        return (self.total - self.first) * (later + self.num_first) / later if later > 0 else self.first


def _time(model: EvalModel, prompt: EvalPrompt) -> _Timed:
    first, num_first = None, 0
    started = time.perf_counter()
    stream = model.llm.stream(prompt.token_ids, model.params(prompt), want_receipt=False)
    for delta in stream:
        if first is None and delta.token_ids:
            first, num_first = time.perf_counter() - started, len(delta.token_ids)
    total = time.perf_counter() - started
    assert stream.result is not None
    return _Timed(total if first is None else first, num_first, total, stream.result)


def _latency(
    model: EvalModel, prompts: Sequence[EvalPrompt], timed: Sequence[_Timed], task: str, events: int
) -> Row:
    times, results = [each.total for each in timed], [each.result for each in timed]
    tenths = quantiles(times, n=10, method="inclusive") if len(times) > 1 else [times[0]] * 9
    return {
        "model": model.name,
        "form": model.info.form,
        "count": len(times),
        "median_ms": 1000 * median(times),
        "p10_ms": 1000 * tenths[0],
        "p90_ms": 1000 * tenths[-1],
        "prompt_tokens": fmean(len(each.token_ids) for each in prompts),
        "answer_tokens": fmean(len(each.token_ids) for each in results),
        "looked_up": fmean(each.stats.looked_up for each in results),  # of them, from n-grams
        "rounds": fmean(each.stats.prefill_passes for each in results),
        "accuracy": fmean(model.is_right(*each) for each in zip(prompts, results, strict=True)),
        "first_ms": 1000 * median(each.first for each in timed),
        "answer_ms": 1000 * median(each.answer for each in timed),
        "task": task,
        "events": events,
    }
