"""Every request feature alone, and random combinations of features, as probes of the stress test.

The settings of a feature are derived from the model's answer without it: a bad token is one the
model would generate, a stop string is one it would write. So each feature is known to change the
answer, and a stress test of it proves something.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from holdfast.bench.load import ProbeRequest
from holdfast.bench.stress import run_alone
from holdfast.core.results import Choice
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.structured_output import StructuredOutput
from holdfast.engine.engine import Engine
from holdfast.errors import InvalidRequest
from holdfast.scheduler.policy import Speculation

Settings = Mapping[str, Any]  # fields of SamplingParams

PLAIN: Settings = {"max_tokens": 24, "temperature": 0.0, "seed": 7}
_SAMPLED: Settings = {"temperature": 1.1}
_REPLACEMENT = "\ufffd"  # stands for bytes that are not valid UTF-8

_SCHEMA = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["on", "n"],
    "additionalProperties": False,
}
STRUCTURED: Mapping[str, StructuredOutput] = {
    "JSON schema": StructuredOutput(json_schema=_SCHEMA),
    "JSON object": StructuredOutput(json_object=True),
    "regex": StructuredOutput(regex="[a-f]{4,8}-[0-9]{3,6}"),
    "choice": StructuredOutput(choice=("rockweed", "rock pool", "sea lettuce", "kelp")),
    "grammar": StructuredOutput(lark='start: word (" " word){2,5} "."\nword: /[a-z]{2,4}/\n'),
}


@dataclass(frozen=True)
class Feature:
    """One feature. base: the settings of the request without it. adds: those of the feature itself."""

    name: str
    prompt: tuple[int, ...]
    adds: Settings
    base: Settings = field(default_factory=dict)
    speculation: Speculation | None = None

    @property
    def settings(self) -> Settings:
        return {**self.base, **self.adds}

    def probe(self, *, deterministic: bool = True) -> ProbeRequest:
        return ProbeRequest(self.prompt, _params(self.settings, deterministic), self.speculation)

    def without(self) -> ProbeRequest:
        return ProbeRequest(self.prompt, _params(self.base, True), "off" if self.speculation else None)


def find_features(engine: Engine, prompt: Sequence[int]) -> tuple[Feature, ...]:
    """Return all features for this model and prompt. Structured output needs llguidance."""
    baseline = Baseline(engine, tuple(prompt))
    structured = _structured_outputs(baseline) if find_spec("llguidance") is not None else ()
    return (
        *_sampling(baseline),
        *_penalties(baseline),
        *_stop_rules(baseline),
        *_token_filters(baseline),
        *_reports(baseline),
        *structured,
        *_repetition(baseline),
    )


def combine(rng: random.Random, features: Sequence[Feature]) -> Feature:
    """Put two to six features in one request. None contradicts another, and all generate tokens."""
    num_features = rng.randint(2, 6)
    generating = [feature for feature in features if feature.settings.get("max_tokens") != 0]
    while True:
        taken: list[Feature] = []
        for feature in rng.sample(generating, len(generating)):
            if len(taken) < num_features and _is_compatible(feature, taken):
                taken.append(feature)
        if len(taken) >= 2:
            return _together(taken)


def _is_compatible(feature: Feature, taken: Sequence[Feature]) -> bool:
    settings = feature.settings
    for other in taken:
        if any(settings.get(name, value) != value for name, value in other.settings.items()):
            return False
    together = _together([*taken, feature]).settings
    if {"structured", "allowed_token_ids"} <= together.keys():
        return False  # hardly any token would be legal
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


class Baseline:
    """The model's answers to a prompt without features, from which features are derived.

    said is the greedy answer; written is the greedy answer restricted to readable text, by the
    settings in readable.
    """

    def __init__(self, engine: Engine, prompt: tuple[int, ...]) -> None:
        self.prompt = prompt
        self.vocab_size = engine.limits.vocab_size
        self._engine = engine
        self._tokenizer = engine.tokenizer
        plain = self._answer({})
        self.said = plain.token_ids
        self.readable: Settings = {} if self._is_readable(plain) else {"allowed_token_ids": self._letters()}
        written = self._answer(self.readable).token_ids
        self.written = tuple(id_ for id_ in written if id_ < self._tokenizer.vocab_size)  # the end may not be
        self._text = self._tokenizer.decode(self.written)

    def feature(self, name: str, adds: Settings, base: Settings | None = None) -> Feature:
        return Feature(name, self.prompt, adds, base or {})

    def token(self, at: int) -> int:
        return self.said[min(at, len(self.said) - 1)]

    def token_of(self, mark: str) -> int:
        return self._tokenizer.encode(mark, add_special_tokens=False)[0]

    def ending_bias(self, at: int) -> dict[int, float]:
        """Return a bias with which the answer ends at its at-th token, and soon again if it goes on."""
        before = (*self.prompt, *self.said[:at])
        end = min(self._engine.limits.eos_ids, default=0)
        gap = self._logprob(before, self.token(at)) - self._logprob(before, end)
        return {end: min(100.0, gap + 3.0)}

    def text_across(self) -> str:
        """Return a part of the written text that begins in one token and ends in another."""
        ends = [len(self._tokenizer.decode(self.written[:count])) for count in range(len(self.written))]
        for end in ends[len(ends) // 2 :]:
            if 0 < end < len(self._text) - 1:
                return self._text[end - 1 : end + 2]
        return self._text or "."

    def word(self) -> str:
        """Return a part of the written text that is two tokens, also when it is encoded as a bad word."""
        for at in range(1, len(self.written) - 1):
            ids = self.written[at : at + 2]
            word = self._tokenizer.decode(ids)
            spellings = [
                self._tokenizer.encode(text, add_special_tokens=False) for text in (word, f" {word.lstrip()}")
            ]
            if list(ids) in spellings and word.strip():
                return word
        return self._text or "."

    def _answer(self, settings: Settings) -> Choice:
        return run_alone(self._engine, ProbeRequest(self.prompt, _params(settings, True))).choices[0]

    def _logprob(self, before: tuple[int, ...], token_id: int) -> float:
        params = SamplingParams(max_tokens=0, temperature=0, prompt_logprobs=0, deterministic=True)
        scored = run_alone(self._engine, ProbeRequest((*before, token_id), params)).prompt_logprobs
        assert scored is not None and scored[-1] is not None
        return scored[-1].logprob

    def _is_readable(self, choice: Choice) -> bool:
        in_vocabulary = max(choice.token_ids) < self._tokenizer.vocab_size
        return in_vocabulary and len(choice.text) > 2 and _REPLACEMENT not in choice.text

    def _letters(self) -> tuple[int, ...]:
        """Return the tokens that are one printable ASCII character, and the end-of-text tokens."""
        texts = {id_: self._tokenizer.token_bytes(id_) for id_ in range(self._tokenizer.vocab_size)}
        plain = {id_ for id_, text in texts.items() if len(text) == 1 and b" " <= text <= b"~"}
        return tuple(sorted(plain | self._engine.limits.eos_ids))


def _sampling(baseline: Baseline) -> Iterator[Feature]:
    yield baseline.feature("greedy", {"temperature": 0.0}, _SAMPLED)
    yield baseline.feature("temperature", _SAMPLED)
    yield baseline.feature("top-k", {"top_k": 3}, _SAMPLED)
    yield baseline.feature("top-p", {"top_p": 0.5}, _SAMPLED)
    yield baseline.feature("min-p", {"min_p": 0.3}, _SAMPLED)
    yield baseline.feature("n", {"n": 3}, _SAMPLED)


def _penalties(baseline: Baseline) -> Iterator[Feature]:
    yield baseline.feature("presence penalty", {"presence_penalty": -2.0}, _SAMPLED)
    few = {"allowed_token_ids": tuple(dict.fromkeys(baseline.written))[:6]}  # so that some repeat
    yield baseline.feature("frequency penalty", {"frequency_penalty": 1.5}, few)
    yield baseline.feature("repetition penalty", {"repetition_penalty": 0.5})  # prefers tokens of the prompt
    other = (baseline.token(3) + 7) % baseline.vocab_size
    biases = {baseline.token(2): -60.0, baseline.token(5): -2.0, other: 1.5}
    yield baseline.feature("logit bias", {"logit_bias": biases})


def _stop_rules(baseline: Baseline) -> Iterator[Feature]:
    soon = {"logit_bias": baseline.ending_bias(at=6)}
    yield baseline.feature("stop text", {"stop": (baseline.text_across(), "never said")}, baseline.readable)
    yield baseline.feature("stop token", {"stop_token_ids": (baseline.token(8),)})
    yield baseline.feature("min tokens", {"min_tokens": 14}, soon)
    yield baseline.feature("ignore eos", {"ignore_eos": True}, soon)


def _token_filters(baseline: Baseline) -> Iterator[Feature]:
    some = tuple(id_ for id_ in range(baseline.vocab_size) if id_ % 7 != baseline.token(0) % 7)
    yield baseline.feature("allowed tokens", {"allowed_token_ids": some})
    yield baseline.feature("bad tokens", {"bad_token_ids": baseline.said[:4]})
    yield baseline.feature("bad words", {"bad_words": (baseline.word(),)}, baseline.readable)


def _reports(baseline: Baseline) -> Iterator[Feature]:
    yield baseline.feature("logprobs", {"logprobs": 5})
    yield baseline.feature("named logprobs", {"logprob_token_ids": baseline.said[:3]}, {"logprobs": 0})
    yield baseline.feature("prompt logprobs", {"prompt_logprobs": 3})
    yield baseline.feature("scores only", {"max_tokens": 0}, {"prompt_logprobs": 3})
    yield baseline.feature("echo", {"echo": True})


def _structured_outputs(baseline: Baseline) -> Iterator[Feature]:
    """max_tokens suffices for a complete answer. A bias makes a free JSON object end early."""
    bias = {"logit_bias": {baseline.token_of('"'): 5.0, baseline.token_of("}"): 2.0}}
    for name, structured in STRUCTURED.items():
        base = {"max_tokens": 64, **(bias if structured.json_object else {})}
        yield baseline.feature(name, {"structured": structured}, base)


def _repetition(baseline: Baseline) -> Iterator[Feature]:
    """Only two tokens are allowed, so the n-gram proposer often finds a match."""
    first = baseline.written[0]
    second = next(
        (id_ for id_ in baseline.written if id_ not in (first, first ^ 1)), first + 2
    )  # no near tie
    prompt = (first, second, first, second, second) * 6
    pair = {"allowed_token_ids": (first, second), "frequency_penalty": 0.5}
    yield Feature("copied text", prompt, {}, pair, speculation="ngram")
