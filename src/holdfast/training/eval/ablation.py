"""Whether answers hang on thoughts: the same checkpoint without states, and with one thought turned into its opposite."""

from collections.abc import Sequence
from dataclasses import replace

from holdfast.core.results import Result, Thought
from holdfast.training.eval.accuracy import num_right
from holdfast.training.eval.eval_set import Question
from holdfast.training.eval.model import Subject
from holdfast.training.eval.report import Swapped, Zeroed
from holdfast.training.tasks.parity import STATES


def zero(subject: Subject, task: str, events: int, questions: Sequence[Question]) -> Zeroed:
    results = subject.ask(questions, think=False)
    right = num_right(subject, questions, results)
    return Zeroed(subject.name, task, events, len(questions), right)


def swap(subject: Subject, events: int, questions: Sequence[Question], results: Sequence[Result]) -> Swapped:
    """results: what was answered with the model's own thoughts."""
    told = [
        (question, result, thought)
        for question, result in zip(questions, results, strict=True)
        if (thought := _last_thought(question, result, subject)) is not None
    ]
    asked = [question for question, _, _ in told]
    params = [subject.params(each.max_tokens) for each in asked]
    same, other = (
        subject.ask_each(
            asked,
            [
                replace(one, forced_thoughts={thought.chunk: _ids(subject, thought, is_swapped)})
                for one, (_, _, thought) in zip(params, told, strict=True)
            ],
        )
        if asked
        else []
        for is_swapped in (False, True)
    )
    return Swapped(
        model=subject.name,
        events=events,
        count=len(asked),
        flipped=sum(
            got.text == opposite(before.text) != before.text
            for got, (_, before, _) in zip(other, told, strict=True)
        ),
        unchanged=sum(
            got.token_ids == before.token_ids for got, (_, before, _) in zip(same, told, strict=True)
        ),
        without_thought=len(questions) - len(asked),
    )


def opposite(text: str) -> str:
    """Heads for tails, tails for heads."""
    one, other = STATES
    return other.join(part.replace(other, one) for part in text.split(one))


def _last_thought(question: Question, result: Result, subject: Subject) -> Thought | None:
    """Of the prompt, the last that is not trivial."""
    assert subject.thinking is not None
    inside = len(question.token_ids) // subject.thinking.chunk
    said = [thought for thought in result.thoughts if thought.token_ids and thought.chunk < inside]
    return said[-1] if said else None


def _ids(subject: Subject, thought: Thought, is_swapped: bool) -> list[int]:
    if not is_swapped:
        return list(thought.token_ids)
    text = subject.papers.tokenizer.decode(list(thought.token_ids), skip_special_tokens=False)
    most = subject.thinking.max_thought if subject.thinking is not None else 0
    return list(subject.papers.tokenizer.encode(opposite(text), add_special_tokens=False).ids[:most])
