"""The parameters of one request. The constructor checks everything, so every `SamplingParams`
object is valid."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import islice
from numbers import Integral, Real
from typing import Any

from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest

MAX_TOKENS_LIMIT = 1 << 24
MAX_LOGPROBS = 100
MAX_NAMED_IDS = 128
MAX_STOPS = 64
MAX_STOP_CHARS = 4096
MAX_SEED = (1 << 64) - 1
MAX_TOKEN_ID = (1 << 31) - 1
MAX_CHOICES = 128
MAX_BIASED = 1024
MAX_LISTED_IDS = 1 << 20
MAX_BAD_WORDS = 1024
MAX_FORCED = 1 << 14  # thoughts, and tokens of one thought
MAX_BAD_CHARS = 1 << 14  # of all of them together: each is tokenised, and searched for at every token

_BOOLEANS = ("ignore_eos", "echo", "think", "skip_special_tokens", "include_stop_str_in_output")

ForcedThoughts = Mapping[int, Collection[int]] | Collection[tuple[int, Collection[int]]]  # by chunk


class RestOfContext(int):
    """max_tokens, if None or -1 was given: a number once the length of the prompt is known."""


@dataclass(frozen=True)
class SamplingParams:
    """How an answer is sampled, when it ends, and what is reported.

    max_tokens None (or -1) is as many as the context holds. temperature 0 is greedy. top_k 0 (or -1) is
    off. A sampled request without a seed gets one, and the result reports it. logprobs asks for the
    logprob of each sampled token and of that many most likely ones, prompt_logprobs for those of the
    prompt's tokens. logprob_token_ids: report the logprobs of these tokens in place of the most likely
    ones. n answers are sampled from one prompt; the first is the same as with n = 1. `deterministic`
    asks for the guarantee: the same tokens and logprob bits, whatever else runs; None is the engine's
    default, see `RequestDefaults`. think=False turns thinking off in a model that thinks.
    forced_thoughts replaces the thoughts after chunks, by chunk number, with these token ids; chunks
    that are never reached are ignored. skip_special_tokens leaves special tokens out of the text.
    include_stop_str_in_output keeps the stop string or stop token at the end of the text.

    From logits to a token: repetition, frequency and presence penalty, logit bias, then masks
    (allowed and bad tokens, bad words, min_tokens, structured output), temperature, top-k, top-p,
    min-p, Gumbel noise.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Collection[str] | None = ()
    stop_token_ids: Collection[int] | None = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    deterministic: bool | None = None
    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | Collection[tuple[int, float]] | None = ()
    allowed_token_ids: Collection[int] | None = None
    bad_token_ids: Collection[int] = ()
    bad_words: str | Collection[str] | None = ()
    prompt_logprobs: int | None = None
    echo: bool = False
    structured: StructuredOutput | None = None
    think: bool = True
    forced_thoughts: ForcedThoughts = ()
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    logprob_token_ids: Collection[int] | None = ()

    def __post_init__(self) -> None:
        put = object.__setattr__  # the dataclass is frozen
        for name in ("stop", "stop_token_ids", "bad_words", "logit_bias", "logprob_token_ids"):
            if getattr(self, name) is None:  # vLLM's default
                put(self, name, ())
        if not isinstance(self.max_tokens, RestOfContext):
            put(self, "max_tokens", _max_tokens(self.max_tokens))
        put(self, "min_tokens", _integer("min_tokens", self.min_tokens, 0, MAX_TOKENS_LIMIT))
        put(self, "temperature", _number("temperature", self.temperature, 0.0, 100.0))
        put(self, "top_k", max(0, _integer("top_k", self.top_k, -1, (1 << 31) - 1)))
        put(self, "top_p", _number("top_p", self.top_p, 0.0, 1.0))
        put(self, "min_p", _number("min_p", self.min_p, 0.0, 1.0))
        put(self, "n", _integer("n", self.n, 1, MAX_CHOICES))
        put(self, "presence_penalty", _number("presence_penalty", self.presence_penalty, -2.0, 2.0))
        put(self, "frequency_penalty", _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0))
        put(self, "repetition_penalty", _number("repetition_penalty", self.repetition_penalty, 0.01, 100.0))
        put(self, "stop", _strings("stop", self.stop, MAX_STOPS))
        put(self, "stop_token_ids", _ids("stop_token_ids", self.stop_token_ids, MAX_STOPS))
        put(self, "bad_words", _strings("bad_words", self.bad_words, MAX_BAD_WORDS))
        put(self, "bad_token_ids", _ids("bad_token_ids", self.bad_token_ids, MAX_LISTED_IDS))
        put(self, "logprob_token_ids", _ids("logprob_token_ids", self.logprob_token_ids, MAX_NAMED_IDS))
        put(self, "logit_bias", _biases(self.logit_bias))
        put(self, "forced_thoughts", _thoughts(self.forced_thoughts))
        if self.allowed_token_ids is not None:
            put(self, "allowed_token_ids", _ids("allowed_token_ids", self.allowed_token_ids, MAX_LISTED_IDS))
        for name, high in (("seed", MAX_SEED), ("logprobs", MAX_LOGPROBS), ("prompt_logprobs", MAX_LOGPROBS)):
            if getattr(self, name) is not None:
                put(self, name, _integer(name, getattr(self, name), 0, high))
        if not isinstance(self.structured, StructuredOutput | None):
            raise InvalidRequest(
                f"structured must be a StructuredOutput, not {type(self.structured).__name__}"
            )
        for name in (*_BOOLEANS, *(() if self.deterministic is None else ("deterministic",))):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest(f"{name} must be true or false, not {show(getattr(self, name))}")
        if sum(map(len, self.bad_texts)) > MAX_BAD_CHARS:
            raise InvalidRequest(
                f"bad_words is too large: more than {MAX_BAD_CHARS} characters in all of its strings"
            )
        self._check_together()

    def _check_together(self) -> None:
        if self.max_tokens == 0 and self.prompt_logprobs is None and not self.echo:
            raise InvalidRequest(
                "max_tokens is 0, so there is nothing to do; ask for at least one token, "
                "or for prompt_logprobs or echo"
            )
        if self.logprob_token_ids and (self.logprobs is None or self.max_tokens == 0):
            raise InvalidRequest(
                "logprob_token_ids requires logprobs and an answer; POST /v1/score has the logprobs of given tokens"
            )
        if self.allowed_token_ids == ():
            raise InvalidRequest(
                "allowed_token_ids is empty, so no token could ever be chosen; leave it out or name some"
            )
        if self.structured is not None and self.ignore_eos:
            raise InvalidRequest("a structured answer ends where its grammar ends; leave ignore_eos out")
        if self.forced_thoughts and not self.think:
            raise InvalidRequest("forced_thoughts are for a request that thinks; leave think as it is")
        if self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens ({self.min_tokens}) is larger than max_tokens ({self.max_tokens}); lower one or raise the other"
            )
        if self.top_p == 0.0:
            raise InvalidRequest("top_p must be above 0; for greedy decoding set temperature to 0")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        assert isinstance(self.stop, tuple)
        return self.stop

    @property
    def stop_ids(self) -> tuple[int, ...]:
        assert isinstance(self.stop_token_ids, tuple)
        return self.stop_token_ids

    @property
    def named_ids(self) -> tuple[int, ...]:
        assert isinstance(self.logprob_token_ids, tuple)
        return self.logprob_token_ids

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        """(token id, what is added to its logit), sorted by id."""
        assert isinstance(self.logit_bias, tuple)
        return self.logit_bias

    @property
    def allowed_ids(self) -> tuple[int, ...] | None:
        assert isinstance(self.allowed_token_ids, tuple | None)
        return self.allowed_token_ids

    @property
    def bad_ids(self) -> tuple[int, ...]:
        assert isinstance(self.bad_token_ids, tuple)
        return self.bad_token_ids

    @property
    def bad_texts(self) -> tuple[str, ...]:
        assert isinstance(self.bad_words, tuple)
        return self.bad_words

    @property
    def forced(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """(chunk, the thought after it), sorted by chunk."""
        assert isinstance(self.forced_thoughts, tuple)
        return self.forced_thoughts

    @property
    def penalises(self) -> bool:
        """Return whether earlier tokens change the logits of later ones."""
        return self.repetition_penalty != 1.0 or self.frequency_penalty != 0.0 or self.presence_penalty != 0.0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def score_params(
    *, deterministic: bool | None, think: bool = True, forced_thoughts: ForcedThoughts = ()
) -> SamplingParams:
    """Parameters of a request that generates nothing and returns the logprobs of the given
    tokens, or with a `Pooling` their embedding."""
    return SamplingParams(
        max_tokens=0,
        temperature=0,
        prompt_logprobs=0,
        deterministic=deterministic,
        think=think,
        forced_thoughts=forced_thoughts,
    )


def params_to_json(params: SamplingParams) -> dict[str, Any]:
    """Return every field as a JSON value. Seeds are strings: many tools round numbers above 2 ** 53.

    logprob_token_ids, which older versions do not know, is only there if it was given.
    """
    settings = {one.name: _to_lists(getattr(params, one.name)) for one in fields(params)}
    settings["seed"] = None if params.seed is None else str(params.seed)
    if not params.named_ids:
        del settings["logprob_token_ids"]
    structured = params.structured
    if structured is not None:
        written: dict[str, object] = {structured.kind: _to_lists(getattr(structured, structured.kind))}
        if structured.kind in ("json_schema", "json_object") and structured.json_rules > 1:
            written["json_rules"] = structured.json_rules
        if structured.special_tokens:
            written["special_tokens"] = True
        settings["structured"] = written
    return settings


def params_from_json(settings: dict[str, Any]) -> SamplingParams:
    """Return the inverse of `params_to_json`; a missing field has its default. Raise `InvalidRequest` for
    wrong values. Structured output without json_rules is older than the second rules."""
    structured, seed = settings.get("structured"), settings.get("seed")
    return SamplingParams(
        **{
            **settings,
            "structured": None if structured is None else StructuredOutput(**{"json_rules": 1, **structured}),
            "seed": None if seed is None else int(seed),
        }
    )


def _to_lists(value: object) -> object:
    return [_to_lists(one) for one in value] if isinstance(value, tuple) else value


def show(value: object) -> str:
    """Return a value as text for an error message, of limited length."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"  # Python writes no more than 4300 digits
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def is_unicode(text: str) -> bool:
    """Return whether a text can be encoded: half of a surrogate pair cannot."""
    try:
        text.encode()  # a hundred times as fast as a loop over the characters
    except UnicodeEncodeError:
        return False
    return True


def _integer(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidRequest(f"{name} must be a whole number from {low} to {high}, not {show(value)}")
    number = int(value)
    if not low <= number <= high:
        raise InvalidRequest(f"{name} must be from {low} to {high}, not {show(number)}")
    return number


def _max_tokens(value: object) -> int:
    number = -1 if value is None else _integer("max_tokens", value, -1, MAX_TOKENS_LIMIT)
    return RestOfContext(MAX_TOKENS_LIMIT) if number == -1 else number


def _number(name: str, value: object, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidRequest(f"{name} must be a number from {low} to {high}, not {show(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or not low <= number <= high:
        raise InvalidRequest(f"{name} must be a finite number from {low} to {high}, not {show(value)}")
    return number


def _limited(name: str, values: Iterable[object], max_count: int, what: str) -> tuple[Any, ...]:
    """Return the values. Read at most one too many."""
    limited = tuple(islice(values, max_count + 1))
    if len(limited) > max_count:
        raise InvalidRequest(f"{name} holds more than {max_count} {what}; at most {max_count} are allowed")
    return limited


def _strings(name: str, value: object, max_count: int) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, Iterable):
        raise InvalidRequest(f"{name} must be a string or a list of strings, not {show(value)}")
    limited = _limited(name, strings, max_count, "strings")
    for one in limited:
        if not isinstance(one, str) or not one:
            raise InvalidRequest(f"every string of {name} must be a non-empty string, not {show(one)}")
        if len(one) > MAX_STOP_CHARS:
            raise InvalidRequest(
                f"a string of {name} has {len(one)} characters; at most {MAX_STOP_CHARS} are allowed"
            )
        if not is_unicode(one):
            raise InvalidRequest(f"a string of {name} is no valid Unicode: it holds half a surrogate pair")
    return limited


def _ids(name: str, value: object, max_count: int) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidRequest(f"{name} must be a list of token ids, not {show(value)}")
    ids = _limited(name, value, max_count, "ids")
    if ids and set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) <= MAX_TOKEN_ID:
        return ids  # the loop below takes a second for a list as long as a vocabulary
    return tuple(_integer(name, token_id, 0, MAX_TOKEN_ID) for token_id in ids)


def _pairs(name: str, value: object, max_count: int, what: str) -> tuple[tuple[Any, Any], ...]:
    """Return the pairs of a mapping, or of a list of pairs. what: such as "token ids to numbers"."""
    pairs = value.items() if isinstance(value, Mapping) else value
    if isinstance(pairs, str) or not isinstance(pairs, Iterable):
        raise InvalidRequest(f"{name} must map {what}, not {show(value)}")
    limited = _limited(name, pairs, max_count, "entries")
    for pair in limited:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidRequest(f"{name} must map {what}; {show(pair)} is no such pair")
    return limited


def _biases(value: object) -> tuple[tuple[int, float], ...]:
    biases: dict[int, float] = {}
    for token_id, bias in _pairs("logit_bias", value, MAX_BIASED, "token ids to numbers"):
        token_id = _integer("a token id of logit_bias", token_id, 0, MAX_TOKEN_ID)
        if token_id in biases:
            raise InvalidRequest(f"logit_bias names token {token_id} twice")
        biases[token_id] = _number("logit_bias", bias, -100.0, 100.0)
    return tuple(sorted(biases.items()))


def _thoughts(value: object) -> tuple[tuple[int, tuple[int, ...]], ...]:
    thoughts: dict[int, tuple[int, ...]] = {}
    for chunk, ids in _pairs("forced_thoughts", value, MAX_FORCED, "chunk numbers to token ids"):
        chunk = _integer("a chunk of forced_thoughts", chunk, 0, MAX_TOKENS_LIMIT)
        if chunk in thoughts:
            raise InvalidRequest(f"forced_thoughts names chunk {chunk} twice")
        thoughts[chunk] = _ids("a thought of forced_thoughts", ids, MAX_FORCED)
    return tuple(sorted(thoughts.items()))
