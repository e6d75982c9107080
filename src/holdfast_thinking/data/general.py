"""General text: chat prompts, and a model's own answers to them.

    {"prompt": "Explain how a sailing boat works.", "answer": "A sailing boat ..."}

Training on the answers of the backbone itself keeps a model's way of chatting. There is nothing to
think about in them. Some of the prompts are stories with a question, of lamps, doors and numbers of
things: what a model thinks about is not known by the form of a text. Prompts for training and for
evaluation have different subjects and different forms.
"""

import random

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
