"""Whether answers depend on thoughts: the checkpoint without states, and with one thought inverted."""

from collections.abc import Sequence
from dataclasses import replace

from holdfast.core.results import Result, Thought
from holdfast_thinking.eval.accuracy import num_right
from holdfast_thinking.eval.eval_set import EvalPrompt
from holdfast_thinking.eval.model import EvalModel
from holdfast_thinking.eval.report import SwappedThoughts, ZeroedStates
from holdfast_thinking.tasks.parity import STATES


def zero_states(model: EvalModel, task: str, events: int, prompts: Sequence[EvalPrompt]) -> ZeroedStates:
    results = model.generate(prompts, think=False)
    right = num_right(model, prompts, results)
    return ZeroedStates(model.name, task, events, len(prompts), right)


def swap_last_thought(
    model: EvalModel, events: int, prompts: Sequence[EvalPrompt], results: Sequence[Result]
) -> SwappedThoughts:
    """results: the answers with the model's own thoughts."""
    forced = [
        (prompt, result, thought)
        for prompt, result in zip(prompts, results, strict=True)
        if (thought := _last_thought(prompt, result, model)) is not None
    ]
    chosen = [prompt for prompt, _, _ in forced]
    params = [model.params(each.max_tokens) for each in chosen]
    same, other = (
        model.generate_each(
            chosen,
            [
                replace(one, forced_thoughts={thought.chunk: _ids(model, thought, is_swapped)})
                for one, (_, _, thought) in zip(params, forced, strict=True)
            ],
        )
        if chosen
        else []
        for is_swapped in (False, True)
    )
    return SwappedThoughts(
        model=model.name,
        events=events,
        count=len(chosen),
        flipped=sum(
            got.text == opposite(before.text) != before.text
            for got, (_, before, _) in zip(other, forced, strict=True)
        ),
        unchanged=sum(
            got.token_ids == before.token_ids for got, (_, before, _) in zip(same, forced, strict=True)
        ),
        without_thought=len(prompts) - len(chosen),
    )


def opposite(text: str) -> str:
    """Swap heads and tails."""
    one, other = STATES
    return other.join(part.replace(other, one) for part in text.split(one))


def _last_thought(prompt: EvalPrompt, result: Result, model: EvalModel) -> Thought | None:
    """The last thought about the prompt that is not trivial."""
    assert model.thinking is not None
    inside = len(prompt.token_ids) // model.thinking.chunk
    said = [thought for thought in result.thoughts if thought.token_ids and thought.chunk < inside]
    return said[-1] if said else None


def _ids(model: EvalModel, thought: Thought, is_swapped: bool) -> list[int]:
    if not is_swapped:
        return list(thought.token_ids)
    text = model.eval_set.tokenizer.decode(list(thought.token_ids), skip_special_tokens=False)
    most = model.thinking.max_thought if model.thinking is not None else 0
    return list(model.eval_set.tokenizer.encode(opposite(text), add_special_tokens=False).ids[:most])
