"""Right answers by task and number of events, the share of thoughts that are gold, and examples of them."""

import time
from collections.abc import Sequence
from statistics import fmean

from holdfast.core.results import Result
from holdfast_thinking.eval.eval_set import EvalPrompt, final_answer
from holdfast_thinking.eval.model import EvalModel
from holdfast_thinking.eval.report import AccuracyCell, ThoughtExample


def measure_cell(
    model: EvalModel, task: str, events: int, prompts: Sequence[EvalPrompt]
) -> tuple[AccuracyCell, list[Result]]:
    started = time.perf_counter()
    results = model.generate(prompts)
    seconds = time.perf_counter() - started
    wrong = [
        index for index, each in enumerate(zip(prompts, results, strict=True)) if not is_right(model, *each)
    ]
    cell = AccuracyCell(
        model=model.name,
        task=task,
        events=events,
        count=len(prompts),
        right=len(prompts) - len(wrong),
        prompt_tokens=fmean(len(each.token_ids) for each in prompts),
        answer_tokens=fmean(len(each.token_ids) for each in results),
        rounds=fmean(each.stats.prefill_passes for each in results),
        guessed=fmean(each.stats.guessed for each in results),
        guessed_right=fmean(each.stats.guessed_right for each in results),
        seconds=seconds,
        cut_off=sum(each.finish_reason == "length" for each in results),
        wrong=wrong,
    )
    if model.thinking is not None:
        _compare_thoughts(cell, prompts, results)
    return cell, results


def num_right(model: EvalModel, prompts: Sequence[EvalPrompt], results: Sequence[Result]) -> int:
    return sum(is_right(model, *each) for each in zip(prompts, results, strict=True))


def is_right(model: EvalModel, prompt: EvalPrompt, result: Result) -> bool:
    return final_answer(result.text, model.info.form) == prompt.final


def _compare_thoughts(cell: AccuracyCell, prompts: Sequence[EvalPrompt], results: Sequence[Result]) -> None:
    """Only chunks of the prompt: thoughts about an answer depend on the answer."""
    num_chunks = num_gold = num_thoughts = num_gold_thoughts = num_gold_prompts = 0
    for prompt, result in zip(prompts, results, strict=True):
        own = {thought.chunk: thought.token_ids for thought in result.thoughts}
        agrees = [own.get(chunk) == gold for chunk, gold in enumerate(prompt.thoughts)]
        is_nontrivial = [bool(gold) for gold in prompt.thoughts]
        num_chunks, num_gold = num_chunks + len(agrees), num_gold + sum(agrees)
        num_thoughts += sum(is_nontrivial)
        num_gold_thoughts += sum(a and b for a, b in zip(agrees, is_nontrivial, strict=True))
        num_gold_prompts += all(agrees)
    cell.gold_chunks = num_gold / max(1, num_chunks)
    cell.gold_thoughts = num_gold_thoughts / max(1, num_thoughts)
    cell.gold_prompts = num_gold_prompts / len(prompts)


def thought_examples(
    model: EvalModel, task: str, prompts: Sequence[EvalPrompt], results: Sequence[Result]
) -> list[ThoughtExample]:
    """The examples, the shortest prompts first."""
    pairs = sorted(zip(prompts, results, strict=True), key=lambda each: len(each[0].token_ids))
    return [
        ThoughtExample(
            model=model.name,
            task=task,
            prompt=_with_thoughts(model, prompt, result),
            answer=result.text.strip(),
            gold=prompt.answer.strip(),
            is_right=is_right(model, prompt, result),
        )
        for prompt, result in pairs
    ]


def _with_thoughts(model: EvalModel, prompt: EvalPrompt, result: Result) -> str:
    """The prompt's text, each thought in ‹› after its chunk."""
    assert model.thinking is not None
    chunk, decode = model.thinking.chunk, model.eval_set.tokenizer.decode
    said = {thought.chunk: thought.token_ids for thought in result.thoughts if thought.token_ids}
    text, first = "", 0
    for number in range(-(-len(prompt.token_ids) // chunk)):
        if number in said:
            text += decode(list(prompt.token_ids[first : (number + 1) * chunk]), skip_special_tokens=True)
            text += f" ‹{decode(list(said[number]), skip_special_tokens=False).strip()}›"
            first = (number + 1) * chunk
    return text + decode(list(prompt.token_ids[first:]), skip_special_tokens=True)
