"""What a client may ask of one request. A `SamplingParams` that exists is valid: everything is checked when it is made."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from numbers import Integral, Real

from holdfast.errors import InvalidRequest

MAX_TOKENS_LIMIT = 1 << 24
MAX_LOGPROBS = 100
MAX_STOPS = 64
MAX_STOP_CHARS = 4096
MAX_SEED = (1 << 64) - 1


@dataclass(frozen=True)
class SamplingParams:
    """How an answer is sampled, when it ends, and what is reported.

    temperature 0 is greedy. top_k 0 (or -1) is off. A sampled request without a seed gets one, and the result says
    which. logprobs asks for the chosen token's logprob and that many best ones beside it. `deterministic` asks for
    the guarantee: the same tokens and logprob bits, whatever else runs.
    """

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Iterable[str] = ()
    stop_token_ids: Iterable[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    deterministic: bool = False

    def __post_init__(self) -> None:
        put = object.__setattr__  # frozen to everybody else
        put(self, "max_tokens", _integer("max_tokens", self.max_tokens, 1, MAX_TOKENS_LIMIT))
        put(self, "min_tokens", _integer("min_tokens", self.min_tokens, 0, MAX_TOKENS_LIMIT))
        put(self, "temperature", _number("temperature", self.temperature, 0.0, 100.0))
        put(self, "top_k", max(0, _integer("top_k", self.top_k, -1, (1 << 31) - 1)))
        put(self, "top_p", _number("top_p", self.top_p, 0.0, 1.0))
        put(self, "min_p", _number("min_p", self.min_p, 0.0, 1.0))
        put(self, "stop", _stop_strings(self.stop))
        put(self, "stop_token_ids", _stop_ids(self.stop_token_ids))
        if self.seed is not None:
            put(self, "seed", _integer("seed", self.seed, 0, MAX_SEED))
        if self.logprobs is not None:
            put(self, "logprobs", _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS))
        for name in ("ignore_eos", "deterministic"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest(f"{name} must be true or false, not {show(getattr(self, name))}")
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
    def greedy(self) -> bool:
        return self.temperature == 0.0


def show(value: object) -> str:
    """A value as a message can hold it, however long it is."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a number of {value.bit_length()} bits"  # Python writes no more than 4300 digits
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _integer(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidRequest(f"{name} must be a whole number from {low} to {high}, not {show(value)}")
    number = int(value)
    if not low <= number <= high:
        raise InvalidRequest(f"{name} must be from {low} to {high}, not {show(number)}")
    return number


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


def _stop_strings(value: object) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, Iterable):
        raise InvalidRequest(f"stop must be a string or a list of strings, not {show(value)}")
    stops = tuple(islice(strings, MAX_STOPS + 1))
    if len(stops) > MAX_STOPS:
        raise InvalidRequest(f"stop holds more than {MAX_STOPS} strings; at most {MAX_STOPS} are allowed")
    for stop in stops:
        if not isinstance(stop, str) or not stop:
            raise InvalidRequest(f"every stop string must be a non-empty string, not {show(stop)}")
        if len(stop) > MAX_STOP_CHARS:
            raise InvalidRequest(
                f"a stop string has {len(stop)} characters; at most {MAX_STOP_CHARS} are allowed"
            )
    return stops


def _stop_ids(value: object) -> tuple[int, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidRequest(f"stop_token_ids must be a list of token ids, not {show(value)}")
    ids = tuple(islice(value, MAX_STOPS + 1))
    if len(ids) > MAX_STOPS:
        raise InvalidRequest(
            f"stop_token_ids holds more than {MAX_STOPS} ids; at most {MAX_STOPS} are allowed"
        )
    return tuple(_integer("stop_token_ids", token_id, 0, (1 << 31) - 1) for token_id in ids)
