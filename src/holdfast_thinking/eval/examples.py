"""Prompts with the thoughts a model had while reading them."""

from collections.abc import Sequence

from holdfast.core.results import Result
from holdfast_thinking.eval.accuracy import is_right
from holdfast_thinking.eval.eval_set import EvalPrompt
from holdfast_thinking.eval.model import EvalModel
from holdfast_thinking.eval.report import ThoughtExample


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
