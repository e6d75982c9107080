"""General prompts, and a model's own answers to them. Trained with them, it keeps its way of answering.

There is nothing to think about in most of them. Some of the prompts are stories with a question, of lamps, doors and
numbers of things: what a model thinks about is not known by the form of a text. Prompts of tasks may be
among them, those that a model is to think nothing about: `words/stories.txt`, or other tasks. A message that tells
of a coin, and then wants something else, is thought about up to there; the last thought says that it is `OTHER`.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.llm.llm import LLM
from holdfast.errors import ConfigError, EngineStopped
from holdfast_thinking.data.jsonl import ChatLine, Thought
from holdfast_thinking.data.source import draw_prompts
from holdfast_thinking.data.text_examples import TextExample, ThoughtStep
from holdfast_thinking.data.words import Words, read_words
from holdfast_thinking.grammar.words import FEW_NAMES
from holdfast_thinking.tasks.coin_talk import SIDES, begin
from holdfast_thinking.tasks.typed import typed

_general = read_words("general")
_STORY_SHARE = 0.3  # of the prompts
STORIES, COIN_MESSAGES = "stories", "coin-messages"  # tasks of `sample_prompts` alone
OTHER = " other"
_TEMPERATURE = 0.7


def sample_prompts(count: int, seed: int, tasks: Sequence[str] = ()) -> list[TextExample]:
    """Draw `count` general prompts, and as many of each task, or of the stories that come with the package.

    Of messages about coins three times as many.
    """
    told = [*training_prompts(count, seed)]
    for task in tasks:
        if task != COIN_MESSAGES:
            told += quiet_stories(count, seed) if task == STORIES else draw_prompts(task, count, seed)
    return [
        *(TextExample(each, "", ()) for each in told),
        *(coin_messages(3 * count, seed) if COIN_MESSAGES in tasks else ()),
    ]


def coin_messages(count: int, seed: int) -> list[TextExample]:
    """Draw stories of coins with another instruction before or after them, and other messages about coins."""
    rng, told = random.Random(f"coin messages {seed}"), read_words("coin_instructions")
    return [_coin_message(rng, told) for _ in range(count)]


def _coin_message(rng: random.Random, told: Words) -> TextExample:
    kind, subject = rng.random(), rng.choice(_general.SUBJECTS)
    if kind < 0.15:
        return TextExample(told.draw("ALONE", rng).format(s=subject), "", ())
    text, steps = _short_text(rng, told) if rng.random() < 0.4 else begin(rng, rng.randint(1, 5)).told
    if kind < 0.55:
        asked = f"{told.draw('FIRST', rng)} {rng.choice(told.SHOWN).replace('@', text)}"
        return typed(TextExample(asked.replace(" \n", "\n"), "", ()), rng)
    before, _, after = rng.choice(told.BEFORE).partition("@")
    asked = f"{before}{text}{after}{' ' * (after[-1:] != chr(10))}{told.draw('LAST', rng).format(s=subject)}"
    if not steps:
        return TextExample(asked, "", ())
    steps = tuple(replace(each, settled_at=each.settled_at + len(before)) for each in steps)
    return typed(TextExample(asked, "", (*steps, ThoughtStep(len(asked) - 1, OTHER, OTHER, True))), rng)


def _short_text(rng: random.Random, told: Words) -> tuple[str, tuple[ThoughtStep, ...]]:
    side = rng.choice(SIDES)
    known, bar, rest = (
        told.draw("TEXTS", rng).replace("{c}", side).replace("{C}", side.title()).partition("|")
    )
    return known + rest, (ThoughtStep(len(known) - 1, "", f" {side}"),) if bar else ()


def quiet_stories(count: int, seed: int) -> list[str]:
    """Draw stories with a question that are about no coin: things in boxes, people in rooms, towns."""
    stories = read_words("stories").STORIES
    return random.Random(f"stories {seed}").sample(stories, min(count, len(stories)))


def write_samples(llm: LLM, path: Path, prompts: Sequence[TextExample], max_tokens: int, seed: int) -> int:
    """Returns the number of answers. An answer that does not end in time ends with its last sentence."""
    params = [
        SamplingParams(max_tokens=max_tokens, temperature=_TEMPERATURE, seed=seed + index)
        for index in range(len(prompts))
    ]
    conversations = [[{"role": "user", "content": each.prompt}] for each in prompts]
    results = llm.chat(conversations, params, use_tqdm=False, want_receipts=False)
    lines = []
    for prompt, result in zip(prompts, results, strict=True):
        if result.error is not None:
            raise EngineStopped(str(result.error))
        answer = result.text.strip()
        if result.finish_reason == "length":  # end with the last sentence
            answer = answer[: max(answer.rfind(mark) for mark in ".!?") + 1]
        if answer:
            told = [
                Thought(s.settled_at, s.thought.strip(), s.state.strip(), s.at_once) for s in prompt.steps
            ]
            lines.append(msgspec.json.encode(ChatLine(prompt.prompt, answer, told)) + b"\n")
    if not lines:
        raise ConfigError(f"no answer ends within max_tokens, which is {max_tokens}; nothing was written")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"".join(lines))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error
    return len(lines)


def training_prompts(count: int, seed: int) -> list[str]:
    rng = random.Random(f"general {seed}")
    every = [form.format(s=subject) for form in _general.FORMS for subject in _general.SUBJECTS]
    prompts = [*_general.OWN, *rng.sample(every, min(count, len(every)))]
    return [_story(rng) if rng.random() < _STORY_SHARE else prompt for prompt in prompts][:count]


def _story(rng: random.Random) -> str:
    """Something happens to a thing, or the number of some things changes; then a question."""
    people = dict(zip("NM", rng.sample(FEW_NAMES, 2), strict=True))
    if rng.random() < 0.5:
        thing, states, *events = rng.choice(_general.SWITCHED).split("|")
        state, other = rng.sample(states.split("/"), 2)
        fields = {"o": thing, "s": state, "t": other}
        first, asks = "The {o} is {s}.", _general.SWITCHED_ASKS
    else:
        fields = {"o": rng.choice(_general.COUNTED)}
        first, events = "{N} has {i} {o} and {M} has {j}.", list(_general.COUNTED_EVENTS)
        asks = _general.COUNTED_ASKS
    told = [first, *rng.choices(events, k=rng.randint(1, 4)), rng.choice(asks)]
    return " ".join(
        each.format(**fields, **people, i=rng.randint(2, 30), j=rng.randint(2, 30)) for each in told
    )
