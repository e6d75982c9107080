"""Examples written as text: a prompt, an answer, and thoughts at characters of the prompt; and the
interface of tasks, which make them.

They are tokenised when a step is built (`make_batch`).

    none        prompt | answer
    thinking    prompt | answer, a thought in the chunk of the token with its character
    cot         prompt | the same thoughts as sentences, "So", answer
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from holdfast.thinking.log import ThinkRule, find_settled
from holdfast_thinking.model.batch import Batch
from holdfast_thinking.settings import AnswerForm, TrainingSettings

if TYPE_CHECKING:
    from tokenizers import Tokenizer

QUESTION_END = " A:"  # of a prompt that is no chat message


@dataclass(frozen=True)
class ThoughtStep:
    """settled_at: the character of the prompt from which on the thought can be inferred.

    thought: what is thought then; "": nothing. state: all that holds after the step; a model that carries its
    states thinks it instead of the thought. A chain of thought does not write it: there, what was said before
    stays in sight. at_once: it is written without a delay: what is asked for has to be there for the answer,
    and a name may be in sight in its own chunk only. said: how a chain of thought writes it; "": as the thought.
    """

    settled_at: int
    thought: str
    state: str = ""
    at_once: bool = False
    said: str = ""


@dataclass(frozen=True)
class TextExample:
    """has_chain: whether an answer with a chain of thought says the thoughts; general text has none. given: all that
    holds before the text, which continues a story; the thought where it begins, not to be learned. Only for a
    model that carries its states. follows: the message before it in a conversation, with its answer; thought
    about as well.
    """

    prompt: str
    answer: str
    steps: tuple[ThoughtStep, ...]
    has_chain: bool = True
    given: str = ""
    follows: "TextExample | None" = None

    @property
    def message(self) -> str:
        """The prompt as a chat message."""
        return self.prompt.removesuffix(QUESTION_END)

    def written_answer(self, form: AnswerForm) -> str:
        if form != "cot" or not self.has_chain:
            return self.answer
        return (
            "".join(f"{step.said or step.thought}." for step in self.steps if step.thought)
            + f" So{self.answer}"
        )


class TextTask(Protocol):
    """Makes texts with a number of events, one by one.

    A class in a file of your own is called with the settings of the run. A task may have an
    `eval_example` for texts of an evaluation, and `has_events = False` if its texts have no length.
    """

    def words(self) -> list[str]: ...

    def example(self, rng: random.Random, events: int) -> TextExample:
        """Make a text for training, and for evaluation unless the task has an `eval_example`."""


@dataclass(frozen=True)
class ChatFrame:
    """The text around a message: the chat template, rendered for one question. between: from an answer to the
    next message of a conversation."""

    before: str
    after: str
    between: str = ""


@dataclass(frozen=True)
class TextRules:
    """How examples become tokens. frame: None for plain texts."""

    settings: TrainingSettings
    eos_id: int
    frame: ChatFrame | None = None

    def prompt(self, example: TextExample) -> str:
        if self.frame is None:
            return example.prompt
        return self.start(example) + example.message + self.frame.after

    def start(self, example: TextExample) -> str:
        """Return what is before the message: of a conversation, all of it so far."""
        if self.frame is None:
            return ""
        if example.follows is None:
            return self.frame.before
        return self.prompt(example.follows) + self.answer(example.follows) + self.frame.between

    def answer(self, example: TextExample) -> str:
        text = example.written_answer(self.settings.form)
        return text if self.frame is None else text.lstrip()

    def steps(self, example: TextExample) -> list[ThoughtStep]:
        """Return the thoughts about the prompt, at its characters. General text has none."""
        own = example.steps
        if self.settings.thinks_answer and self.frame is not None and example.has_chain:
            answer = self.answer(example)
            own = (*own, ThoughtStep(len(example.message) - 1, answer, state=answer, at_once=True))
        before = [] if example.follows is None else self.steps(example.follows)
        shift = len(self.start(example))
        return [*before, *(replace(step, settled_at=shift + step.settled_at) for step in own)]


def make_batch(examples: Sequence[TextExample], tokenizer: "Tokenizer", rules: TextRules) -> Batch:
    """Tokenise examples, padded to the longest, each thought in its chunk."""
    prompts = tokenizer.encode_batch([rules.prompt(each) for each in examples], add_special_tokens=False)
    answers = tokenizer.encode_batch([rules.answer(each) for each in examples], add_special_tokens=False)
    rows = [[*p.ids, *a.ids, rules.eos_id] for p, a in zip(prompts, answers, strict=True)]
    placed: list[dict[int, list[int]]] = [{} for _ in examples]
    if rules.settings.form == "thinking":
        steps = [rules.steps(each) for each in examples]
        said = {text for each in steps for step in each for text in (step.thought, step.state)}
        known = sorted(said | {each.given for each in examples})
        encoded = tokenizer.encode_batch(known, add_special_tokens=False)
        ids = {text: each.ids for text, each in zip(known, encoded, strict=True)}
        placed = [
            _place(each, example, prompt.offsets, len(row), ids, rules)
            for each, example, prompt, row in zip(steps, examples, prompts, rows, strict=True)
        ]
    chunk_len = rules.settings.chunk
    num_chunks = -(-max(map(len, rows)) // chunk_len)
    width = max((len(thought) for each in placed for thought in each.values()), default=1)
    token_ids = np.zeros((len(rows), num_chunks * chunk_len), dtype=np.int64)
    thoughts = np.full((len(rows), num_chunks, width), -1, dtype=np.int64)
    for index, (row, by_chunk) in enumerate(zip(rows, placed, strict=True)):
        token_ids[index, : len(row)] = row
        for chunk, thought in by_chunk.items():
            thoughts[index, chunk, : len(thought)] = thought
    num_given = [
        _first_chunk(each, prompt.offsets, rules) + 1 if each.given else 0
        for each, prompt in zip(examples, prompts, strict=True)
    ]
    num_prompt, num_tokens = [len(each.ids) for each in prompts], [len(each) for each in rows]
    return Batch(
        token_ids,
        np.array(num_prompt, dtype=np.int64),
        np.array(num_tokens, dtype=np.int64),
        thoughts,
        np.array(num_given, dtype=np.int64),
    )


def _place(
    steps: Sequence[ThoughtStep],
    example: TextExample,
    offsets: Sequence[tuple[int, int]],
    num_tokens: int,
    ids: dict[str, list[int]],
    rules: TextRules,
) -> dict[int, list[int]]:
    """Return the thoughts by chunk: a step is in the chunk of its token or, where max_thought is reached, in
    a later one. A step after the last chunk is dropped, and a longer step is truncated. A step's state
    replaces what its chunk has. What is given is in the chunk where the message begins, which has nothing else.
    With `settle`, what is thought about the prompt is thought before its last token.
    """
    s = rules.settings
    settled = find_settled(len(offsets), s.chunk) if s.settle else None
    rule = ThinkRule(settled=settled)
    by_chunk: dict[int, list[int]] = {}
    chunk = 0
    if example.given:
        chunk = _first_chunk(example, offsets, rules)
        by_chunk[chunk] = ids[example.given][: s.max_thought]
        chunk += 1
    for step in steps:
        said = (step.state or step.thought) if s.carry else step.thought
        thought = ids[said][: s.max_thought]
        token = _token_at(offsets, step.settled_at) + (0 if step.at_once else s.thought_delay)
        if settled is not None:
            token = min(token, settled - 1)
        chunk = max(chunk, token // s.chunk)
        if s.carry and step.state:
            by_chunk.pop(chunk, None)
        if len(by_chunk.get(chunk, ())) + len(thought) > s.max_thought:
            chunk += 1
        if rule.end(chunk, s.chunk) > num_tokens:
            break
        if thought:
            by_chunk.setdefault(chunk, []).extend(thought)
    return by_chunk


def _first_chunk(example: TextExample, offsets: Sequence[tuple[int, int]], rules: TextRules) -> int:
    return _token_at(offsets, max(0, len(rules.start(example)) - 1)) // rules.settings.chunk


def _token_at(offsets: Sequence[tuple[int, int]], character: int) -> int:
    low, high = 0, len(offsets) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if offsets[middle][1] > character else (middle + 1, high)
    return low
