"""General prompts, and a model's own answers to them. Trained with them, it keeps its way of answering.

There is nothing to think about in them. Some of the prompts are stories with a question, of lamps, doors and
numbers of things: what a model thinks about is not known by the form of a text. Prompts of tasks may be
among them, those that a model is to think nothing about: `words/stories.txt`, or other tasks. Prompts for
training and for evaluation have different subjects and different forms.
"""

import json
import random
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.llm import LLM
from holdfast.errors import ConfigError, EngineStopped
from holdfast_thinking.data.source import draw_prompts
from holdfast_thinking.data.words import read_words
from holdfast_thinking.tasks.filler import NAMES

_general = read_words("general")
NUM_EVAL_PROMPTS = 200
_STORY_SHARE = 0.3  # of the prompts
# What there is, its two states, and what is done to it.
_SWITCHED = (
    ("lamp", ("on", "off"), ("{N} presses the switch.", "{N} turns it {s}.", "{N} unplugs the {o}.")),
    ("light in the hall", ("on", "off"), ("{N} flips the switch.", "Somebody turns it {s}.")),
    ("radio", ("on", "off"), ("{N} pushes the button.", "{N} turns the {o} {s}.", "{N} turns it up.")),
    ("door", ("open", "closed"), ("{N} walks through it.", "{N} slams the {o}.", "The wind moves it.")),
    ("window", ("open", "closed"), ("{N} shuts the {o}.", "{N} looks out of it.", "{N} opens it again.")),
    ("card", ("face up", "face down"), ("{N} turns it over.", "{N} flips the {o}.", "{N} leaves it alone.")),
    ("pancake", ("brown", "pale"), ("{N} flips it.", "{N} tosses the {o}.", "{N} turns it over.")),
    ("page", ("blank", "printed"), ("{N} turns the {o}.", "{N} turns it back.", "{N} reads it.")),
    ("glass", ("full", "empty"), ("{N} drinks it.", "{N} turns it upside down.", "{N} fills the {o}.")),
    ("boat", ("upright", "upside down"), ("{N} turns it over.", "A wave flips the {o}.", "{N} rows it.")),
    ("sign", ("green", "red"), ("{N} turns it round.", "{N} paints the {o}.", "{N} only looks at it.")),
)
STORIES = "stories"  # a task of `sample_prompts` alone
_TEMPERATURE = 0.7


def sample_prompts(count: int, seed: int, tasks: Sequence[str] = ()) -> list[str]:
    """Draw `count` general prompts, and as many of each task, or of the stories that come with the package."""
    drawn = (
        quiet_stories(count, seed) if task == STORIES else draw_prompts(task, count, seed) for task in tasks
    )
    return [*training_prompts(count, seed), *chain.from_iterable(drawn)]


def quiet_stories(count: int, seed: int) -> list[str]:
    """Draw stories with a question that are about no coin: things in boxes, people in rooms, towns."""
    stories = read_words("stories").STORIES
    return random.Random(f"stories {seed}").sample(stories, min(count, len(stories)))


def write_samples(llm: LLM, path: Path, prompts: Sequence[str], max_tokens: int, seed: int) -> int:
    """Returns the number of answers. An answer that does not end in time ends with its last sentence."""
    params = [
        SamplingParams(max_tokens=max_tokens, temperature=_TEMPERATURE, seed=seed + index)
        for index in range(len(prompts))
    ]
    conversations = [[{"role": "user", "content": each}] for each in prompts]
    results = llm.chat(conversations, params, use_tqdm=False, want_receipts=False)
    lines = []
    for prompt, result in zip(prompts, results, strict=True):
        if result.error is not None:
            raise EngineStopped(str(result.error))
        answer = result.text.strip()
        if result.finish_reason == "length":
            answer = _whole_sentences(answer)
        if answer:
            lines.append(json.dumps({"prompt": prompt, "answer": answer}))
    if not lines:
        raise ConfigError(f"no answer ends within max_tokens, which is {max_tokens}; nothing was written")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error
    return len(lines)


def _whole_sentences(text: str) -> str:
    """The text up to its last full stop; "" without one."""
    last = max(text.rfind(mark) for mark in ".!?")
    return text[: last + 1]


def training_prompts(count: int, seed: int) -> list[str]:
    rng = random.Random(f"general {seed}")
    every = [form.format(s=subject) for form in _general.FORMS for subject in _general.SUBJECTS]
    prompts = [*_general.OWN, *rng.sample(every, min(count, len(every)))]
    return [_story(rng) if rng.random() < _STORY_SHARE else prompt for prompt in prompts][:count]


def _story(rng: random.Random) -> str:
    """Something happens to a thing, or the number of some things changes; then a question."""
    people = dict(zip("NM", rng.sample(NAMES, 2), strict=True))
    if rng.random() < 0.5:
        thing, states, happening = rng.choice(_SWITCHED)
        state, other = rng.sample(states, 2)
        fields = {"o": thing, "s": state, "t": other}
        first, events, asks = "The {o} is {s}.", list(happening), _general.SWITCHED_ASKS
    else:
        fields = {"o": rng.choice(_general.COUNTED)}
        first, events, asks = (
            "{N} has {i} {o} and {M} has {j}.",
            list(_general.COUNTED_EVENTS),
            _general.COUNTED_ASKS,
        )
    told = [first, *rng.choices(events, k=rng.randint(1, 4)), rng.choice(asks)]
    return " ".join(
        each.format(**fields, **people, i=rng.randint(2, 30), j=rng.randint(2, 30)) for each in told
    )


def eval_prompts() -> list[str]:
    """The 200 prompts on which a thinking model should think nothing."""
    every = [form.format(s=subject) for form in _general.EVAL_FORMS for subject in _general.EVAL_SUBJECTS]
    return random.Random("general evaluation").sample(every, NUM_EVAL_PROMPTS)
