"""Right answers by task and number of events, with states and without, and the share of gold thoughts."""

import time
from collections.abc import Sequence
from statistics import fmean

from holdfast.core.results import Result
from holdfast_thinking.eval.model import EvalModel, EvalPrompt
from holdfast_thinking.eval.report import Row

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


def zero_states(model: EvalModel, task: str, events: int, prompts: Sequence[EvalPrompt]) -> Row:
    results = model.generate(prompts, think=False)
    right = sum(model.is_right(*each) for each in zip(prompts, results, strict=True))
    row = {"model": model.name, "task": task, "events": events, "count": len(prompts), "right": right}
    return row | {"accuracy": right / len(prompts)}
