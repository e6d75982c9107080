"""Everything a request may ask for, feature by feature, and random combinations of them.

A feature is aimed at what the model says without it: it forbids a token that would be said, stops at a text that would be
written. So it is known to do something, and a cell of the needle that asks for it proves something.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from holdfast.bench.determinism.stress import ask
from holdfast.bench.determinism.stress_load import Needle
from holdfast.core.results import Choice
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.structured_output import StructuredOutput
from holdfast.engine.engine import Engine
from holdfast.errors import InvalidRequest
from holdfast.scheduler.policy import Speculation

Settings = Mapping[str, Any]  # fields of SamplingParams

PLAIN: Settings = {"max_tokens": 24, "temperature": 0.0, "seed": 7}
_SAMPLED: Settings = {"temperature": 1.1}
_REPLACEMENT = "\ufffd"  # bytes that are no text

_SCHEMA = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["on", "n"],
    "additionalProperties": False,
}
FORMS: Mapping[str, StructuredOutput] = {
    "JSON schema": StructuredOutput(json_schema=_SCHEMA),
    "JSON object": StructuredOutput(json_object=True),
    "regex": StructuredOutput(regex="[a-f]{4,8}-[0-9]{3,6}"),
    "choice": StructuredOutput(choice=("rockweed", "rock pool", "sea lettuce", "kelp")),
    "grammar": StructuredOutput(lark='start: word (" " word){2,5} "."\nword: /[a-z]{2,4}/\n'),
}


@dataclass(frozen=True)
class Feature:
    """What is asked for. `beside` is asked with and without it, so that it has something to change."""

    name: str
    prompt: tuple[int, ...]
    adds: Settings
    beside: Settings = field(default_factory=dict)
    speculation: Speculation | None = None

    @property
    def settings(self) -> Settings:
        return {**self.beside, **self.adds}

    def needle(self, *, deterministic: bool = True) -> Needle:
        return Needle(self.prompt, _params(self.settings, deterministic), self.speculation)

    def without(self) -> Needle:
        """The same request, this feature left out."""
        return Needle(self.prompt, _params(self.beside, True), "off" if self.speculation else None)


def find_features(engine: Engine, prompt: Sequence[int]) -> tuple[Feature, ...]:
    """All features, aimed at what this model says to the prompt; forms only where there is something to follow them."""
    aim = Aim(engine, tuple(prompt))
    forms = _shaping(aim) if find_spec("llguidance") is not None else ()
    return (
        *_choosing(aim),
        *_weighing(aim),
        *_ending(aim),
        *_leaving_out(aim),
        *_reporting(aim),
        *forms,
        *_copying(aim),
    )


def combine(rng: random.Random, features: Sequence[Feature]) -> Feature:
    """Two to six features at once, none of which contradicts another; something is said in all of them."""
    wanted = rng.randint(2, 6)
    speaking = [feature for feature in features if feature.settings.get("max_tokens") != 0]
    while True:
        taken: list[Feature] = []
        for feature in rng.sample(speaking, len(speaking)):
            if len(taken) < wanted and _fits(feature, taken):
                taken.append(feature)
        if len(taken) >= 2:
            return _together(taken)


def _fits(feature: Feature, taken: Sequence[Feature]) -> bool:
    settings = feature.settings
    for other in taken:
        if any(settings.get(name, value) != value for name, value in other.settings.items()):
            return False
    together = _together([*taken, feature]).settings
    if {"structured", "allowed_token_ids"} <= together.keys():
        return False  # hardly anything is left to say
    try:
        _params(together, True)
    except InvalidRequest:
        return False
    return True


def _together(features: Sequence[Feature]) -> Feature:
    settings = {name: value for feature in features for name, value in feature.settings.items()}
    special = next((one for one in features if one.speculation is not None), features[0])
    name = " + ".join(one.name for one in features)
    return Feature(name, special.prompt, settings, speculation=special.speculation)


def _params(settings: Settings, deterministic: bool) -> SamplingParams:
    return SamplingParams(**{**PLAIN, **settings}, deterministic=deterministic)


class Aim:
    """What a model says to a prompt: `said` if nothing else is asked for, `written` if it must be text one can read."""

    def __init__(self, engine: Engine, prompt: tuple[int, ...]) -> None:
        self.prompt = prompt
        self.vocab_size = engine.limits.vocab_size
        self._engine = engine
        self._tokenizer = engine.tokenizer
        plain = self._answer({})
        self.said = plain.token_ids
        self.readable: Settings = {} if self._is_readable(plain) else {"allowed_token_ids": self._letters()}
        self.written = self._answer(self.readable).token_ids
        self._text = self._tokenizer.decode(self.written)

    def feature(self, name: str, adds: Settings, beside: Settings | None = None) -> Feature:
        return Feature(name, self.prompt, adds, beside or {})

    def token(self, at: int) -> int:
        """The at-th token said, or the last one."""
        return self.said[min(at, len(self.said) - 1)]

    def token_of(self, mark: str) -> int:
        return self._tokenizer.encode(mark, add_special_tokens=False)[0]

    def ending_bias(self, at: int) -> dict[int, float]:
        """A bias under which the answer ends with its at-th token at the latest, and would end again soon."""
        before = (*self.prompt, *self.said[:at])
        end = min(self._engine.limits.eos_ids, default=0)
        gap = self._logprob(before, self.token(at)) - self._logprob(before, end)
        return {end: min(100.0, gap + 3.0)}

    def text_across(self) -> str:
        """A piece of the written text that begins in one token and ends in another."""
        edges = [len(self._tokenizer.decode(self.written[:count])) for count in range(len(self.written))]
        for edge in edges[len(edges) // 2 :]:
            if 0 < edge < len(self._text) - 1:
                return self._text[edge - 1 : edge + 2]
        return self._text or "."

    def word(self) -> str:
        """A piece of the written text that is spelled in two tokens, and will be when it is forbidden."""
        for at in range(1, len(self.written) - 1):
            ids = self.written[at : at + 2]
            word = self._tokenizer.decode(ids)
            spellings = [
                self._tokenizer.encode(form, add_special_tokens=False) for form in (word, f" {word.lstrip()}")
            ]
            if list(ids) in spellings and word.strip():
                return word
        return self._text or "."

    def _answer(self, settings: Settings) -> Choice:
        return ask(self._engine, Needle(self.prompt, _params(settings, True))).choices[0]

    def _logprob(self, before: tuple[int, ...], token_id: int) -> float:
        params = SamplingParams(max_tokens=0, temperature=0, prompt_logprobs=0, deterministic=True)
        scored = ask(self._engine, Needle((*before, token_id), params)).prompt_logprobs
        assert scored is not None and scored[-1] is not None
        return scored[-1].logprob

    def _is_readable(self, choice: Choice) -> bool:
        in_vocabulary = max(choice.token_ids) < self._tokenizer.vocab_size
        return in_vocabulary and len(choice.text) > 2 and _REPLACEMENT not in choice.text

    def _letters(self) -> tuple[int, ...]:
        """The tokens that are one plain character, and those that end an answer."""
        texts = {id_: self._tokenizer.token_bytes(id_) for id_ in range(self._tokenizer.vocab_size)}
        plain = {id_ for id_, text in texts.items() if len(text) == 1 and b" " <= text <= b"~"}
        return tuple(sorted(plain | self._engine.limits.eos_ids))


def _choosing(aim: Aim) -> Iterator[Feature]:
    yield aim.feature("greedy", {"temperature": 0.0}, _SAMPLED)
    yield aim.feature("temperature", _SAMPLED)
    yield aim.feature("top-k", {"top_k": 3}, _SAMPLED)
    yield aim.feature("top-p", {"top_p": 0.5}, _SAMPLED)
    yield aim.feature("min-p", {"min_p": 0.3}, _SAMPLED)
    yield aim.feature("n", {"n": 3}, _SAMPLED)


def _weighing(aim: Aim) -> Iterator[Feature]:
    yield aim.feature("presence penalty", {"presence_penalty": -2.0}, _SAMPLED)
    few = tuple(dict.fromkeys(aim.written))[:6]  # so that something is said twice
    yield aim.feature("frequency penalty", {"frequency_penalty": 1.5}, {"allowed_token_ids": few})
    yield aim.feature("repetition penalty", {"repetition_penalty": 1.5})
    other = (aim.token(3) + 7) % aim.vocab_size
    biases = {aim.token(2): -60.0, aim.token(5): -2.0, other: 1.5}
    yield aim.feature("logit bias", {"logit_bias": biases})


def _ending(aim: Aim) -> Iterator[Feature]:
    soon = {"logit_bias": aim.ending_bias(at=6)}
    yield aim.feature("stop text", {"stop": (aim.text_across(), "never said")}, aim.readable)
    yield aim.feature("stop token", {"stop_token_ids": (aim.token(8),)})
    yield aim.feature("min tokens", {"min_tokens": 14}, soon)
    yield aim.feature("ignore eos", {"ignore_eos": True}, soon)


def _leaving_out(aim: Aim) -> Iterator[Feature]:
    some = tuple(id_ for id_ in range(aim.vocab_size) if id_ % 7 != aim.token(0) % 7)
    yield aim.feature("allowed tokens", {"allowed_token_ids": some})
    yield aim.feature("bad tokens", {"bad_token_ids": aim.said[:4]})
    yield aim.feature("bad words", {"bad_words": (aim.word(),)}, aim.readable)


def _reporting(aim: Aim) -> Iterator[Feature]:
    yield aim.feature("logprobs", {"logprobs": 5})
    yield aim.feature("prompt logprobs", {"prompt_logprobs": 3})
    yield aim.feature("scores only", {"max_tokens": 0}, {"prompt_logprobs": 3})
    yield aim.feature("echo", {"echo": True})


def _shaping(aim: Aim) -> Iterator[Feature]:
    """Long enough to be complete; an object of any form is lured to its end."""
    lure = {"logit_bias": {aim.token_of('"'): 5.0, aim.token_of("}"): 2.0}}
    for name, form in FORMS.items():
        beside = {"max_tokens": 64, **(lure if form.json_object else {})}
        yield aim.feature(name, {"structured": form}, beside)


def _copying(aim: Aim) -> Iterator[Feature]:
    """Two tokens in turn, and nothing else allowed: what follows has often been there before."""
    first = aim.written[0]
    second = next((id_ for id_ in aim.written if id_ not in (first, first ^ 1)), first + 2)  # no near twin
    prompt = (first, second, first, second, second) * 6
    pair = {"allowed_token_ids": (first, second), "frequency_penalty": 0.5}
    yield Feature("copied text", prompt, {}, pair, speculation="ngram")
