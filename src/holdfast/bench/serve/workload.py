"""The requests of a load, drawn from a seed: the same requests for every server.

Ordinary requests have their own prompts. Deterministic requests come from a small pool of prompts
with fixed settings, so that all answers to one of them must be the same text. Without a pool they
have their own prompts, too, and cost as much as ordinary ones.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.bench.serve.http_client import Disconnect
from holdfast.errors import ConfigError

_TEXT = (
    "the sea is cold and every ship that leaves this harbour carries salt timber wool or letters for people who wait on "
    "another shore where winter comes early so nobody sails after october unless a storm has broken all their nets and "
    "there was no fish to sell before snow covered roads between villages under grey hills with few trees but many stones"
)
_NUM_LINES, _LINE_WORDS = 40, 25  # a line fits into a small context
_TEMPERATURE = 0.8
_MAX_WAIT = 0.5  # seconds, of a client that disconnects before the first text


@dataclass(frozen=True)
class TokenRange:
    """A number of tokens from low to high, both included."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str, name: str) -> "TokenRange":
        """Parse `64` or `32-128`."""
        low, dash, high = text.partition("-")
        try:
            parsed = cls(int(low), int(high) if dash else int(low))
        except ValueError:
            raise ConfigError(f"{name} must be a number or a range such as 32-128, not {text!r}") from None
        if not 1 <= parsed.low <= parsed.high:
            raise ConfigError(f"{name} must be at least 1, and a range must not decrease; got {text!r}")
        return parsed

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


@dataclass(frozen=True)
class WorkloadConfig:
    """What requests look like.

    Shares are of all requests, from 0 to 1. pool_len is the number of pool prompts.
    """

    prompt_tokens: TokenRange
    output_tokens: TokenRange
    deterministic_share: float = 0.0
    disconnect_share: float = 0.0
    pool_len: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("deterministic_share", "disconnect_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} must be from 0 to 1, not {getattr(self, name)}")
        if self.pool_len < 0:
            raise ConfigError(f"the number of pool prompts must not be negative, got {self.pool_len}")

    def __str__(self) -> str:
        return (
            f"{self.prompt_tokens} + {self.output_tokens} tokens, {self.deterministic_share:.0%} deterministic, "
            f"{self.disconnect_share:.0%} disconnect"
        )


@dataclass(frozen=True)
class LoadRequest:
    """One request. pool_number is the number of its pool prompt, if it has one."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    seed: int
    deterministic: bool = False
    pool_number: int | None = None
    disconnect: Disconnect | None = None

    def body(self, model: str) -> dict[str, Any]:
        """The request as JSON. ignore_eos gives the answer exactly max_tokens tokens."""
        body = {
            "model": model,
            "prompt": self.prompt_ids,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,  # counts the tokens of an answer whose client disconnects
        }
        return body | ({"deterministic": True} if self.deterministic else {})


class Workload:
    """An endless sequence of requests. The same config and seed give the same requests."""

    def __init__(self, config: WorkloadConfig, corpus_ids: Sequence[int], seed: object = "") -> None:
        self._config = config
        self._corpus_ids = corpus_ids
        pool_rng = random.Random(f"pool {config.seed}")
        self.pool = [self._pool_request(number, pool_rng) for number in range(config.pool_len)]
        self.seed = f"{config.seed} {seed}"
        self._rng = random.Random(f"jobs {self.seed}")

    def draw(self, deterministic: bool | None = None) -> LoadRequest:
        """The next request. Where deterministic is None, the configured share decides."""
        rng, config = self._rng, self._config
        if deterministic is None:
            deterministic = rng.random() < config.deterministic_share
        if deterministic and self.pool:
            request = rng.choice(self.pool)
        else:
            num_tokens, seed = config.output_tokens.draw(rng), rng.getrandbits(32)
            request = LoadRequest(self._prompt(rng), num_tokens, _TEMPERATURE, seed, deterministic)
        if rng.random() < config.disconnect_share:
            return replace(request, disconnect=draw_disconnect(rng, request.max_tokens))
        return request

    def _pool_request(self, number: int, rng: random.Random) -> LoadRequest:
        """Every second one is greedy."""
        return LoadRequest(
            prompt_ids=self._prompt(rng),
            max_tokens=self._config.output_tokens.draw(rng),
            temperature=_TEMPERATURE * (number % 2),
            seed=number,
            deterministic=True,
            pool_number=number,
        )

    def _prompt(self, rng: random.Random) -> tuple[int, ...]:
        """Two random tokens, then a part of the corpus: hardly any two prompts share a prefix."""
        length, ids = self._config.prompt_tokens.draw(rng), self._corpus_ids
        start = rng.randrange(len(ids))
        part = (ids[(start + offset) % len(ids)] for offset in range(max(0, length - 2)))
        return (*rng.choices(ids, k=min(2, length)), *part)


def draw_disconnect(rng: random.Random, max_tokens: int) -> Disconnect:
    """A random moment of an answer: one in five before its first text, the others uniformly inside
    it.
    """
    deltas = max(0, rng.randrange(-(max_tokens // 4), max_tokens))
    return Disconnect(deltas, rng.uniform(0.0, _MAX_WAIT))


def corpus(seed: int) -> list[str]:
    """Lines of text for prompts: words in random order, so that n-gram speculation finds nothing."""
    rng = random.Random(f"corpus {seed}")
    return [" ".join(rng.choices(_TEXT.split(), k=_LINE_WORDS)) for _ in range(_NUM_LINES)]


def poisson_arrivals(rng: random.Random, rate: float) -> Iterator[float]:
    """Arrival times in seconds of a Poisson process with this rate per second."""
    now = 0.0
    while True:
        now += rng.expovariate(rate)
        yield now
