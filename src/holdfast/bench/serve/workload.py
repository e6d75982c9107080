"""What a load asks for: requests drawn by a seed, the same ones whoever runs them.

Ordinary requests have prompts of their own. Deterministic ones come from a small pool of prompts with fixed settings, so
that all answers to one of them must be one text; without a pool they have prompts of their own, too, and cost as much as
ordinary ones.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.bench.serve.http_client import Leaving
from holdfast.errors import ConfigError

_TEXT = (
    "the sea is cold and every ship that leaves this harbour carries salt timber wool or letters for people who wait on "
    "another shore where winter comes early so nobody sails after october unless a storm has broken all their nets and "
    "there was no fish to sell before snow covered roads between villages under grey hills with few trees but many stones"
)
_NUM_LINES, _LINE_WORDS = 40, 25  # a line fits a small context
_TEMPERATURE = 0.8
_LONGEST_WAIT = 0.5  # seconds, of a client that leaves before the first text


@dataclass(frozen=True)
class Span:
    """A whole number from low to high, both included."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str, name: str) -> "Span":
        """Of `64` or `32-128`."""
        low, dash, high = text.partition("-")
        try:
            span = cls(int(low), int(high) if dash else int(low))
        except ValueError:
            raise ConfigError(f"{name} must be a number or a range such as 32-128, not {text!r}") from None
        if not 1 <= span.low <= span.high:
            raise ConfigError(f"{name} must be at least 1, and a range goes upwards; {text!r} is neither")
        return span

    def draw(self, rng: random.Random) -> int:
        return rng.randint(self.low, self.high)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


@dataclass(frozen=True)
class Shape:
    """What requests look like. Shares are of all requests, from 0 to 1; deterministic ones come from pool_len prompts."""

    prompt_tokens: Span
    output_tokens: Span
    deterministic_share: float = 0.0
    disconnect_share: float = 0.0
    pool_len: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("deterministic_share", "disconnect_share"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} must be from 0 to 1, not {getattr(self, name)}")
        if self.pool_len < 0:
            raise ConfigError(f"the pool cannot have {self.pool_len} prompts")


@dataclass(frozen=True)
class Job:
    """One request. pool_number says which of the pool's prompts it has, if it has one."""

    prompt_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    seed: int
    deterministic: bool = False
    pool_number: int | None = None
    leaving: Leaving | None = None

    def body(self, model: str) -> dict[str, Any]:
        """As a server is asked. ignore_eos: an answer has the length the load wants."""
        body = {
            "model": model,
            "prompt": self.prompt_ids,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "return_token_ids": True,  # so that the tokens of an answer that was left can be counted
        }
        return body | ({"deterministic": True} if self.deterministic else {})


class Jobs:
    """An endless supply of requests; a seed gives the same ones each time."""

    def __init__(self, shape: Shape, corpus_ids: Sequence[int], seed: object = "") -> None:
        self._shape = shape
        self._corpus_ids = corpus_ids
        pool_rng = random.Random(f"pool {shape.seed}")
        self.pool = [self._pool_job(number, pool_rng) for number in range(shape.pool_len)]
        self.seed = f"{shape.seed} {seed}"
        self._rng = random.Random(f"jobs {self.seed}")

    def draw(self, deterministic: bool | None = None) -> Job:
        """The next request; of this kind, or of the kind the shares decide."""
        rng, shape = self._rng, self._shape
        if deterministic is None:
            deterministic = rng.random() < shape.deterministic_share
        if deterministic and self.pool:
            job = rng.choice(self.pool)
        else:
            num_tokens, seed = shape.output_tokens.draw(rng), rng.getrandbits(32)
            job = Job(self._prompt(rng), num_tokens, _TEMPERATURE, seed, deterministic)
        if rng.random() < shape.disconnect_share:
            return replace(job, leaving=draw_leaving(rng, job.max_tokens))
        return job

    def _pool_job(self, number: int, rng: random.Random) -> Job:
        """Every other one greedy."""
        return Job(
            prompt_ids=self._prompt(rng),
            max_tokens=self._shape.output_tokens.draw(rng),
            temperature=_TEMPERATURE * (number % 2),
            seed=number,
            deterministic=True,
            pool_number=number,
        )

    def _prompt(self, rng: random.Random) -> tuple[int, ...]:
        """A piece of the corpus behind two tokens of elsewhere, so that hardly two prompts begin alike."""
        length, ids = self._shape.prompt_tokens.draw(rng), self._corpus_ids
        start = rng.randrange(len(ids))
        piece = (ids[(start + offset) % len(ids)] for offset in range(max(0, length - 2)))
        return (*rng.choices(ids, k=min(2, length)), *piece)


def draw_leaving(rng: random.Random, max_tokens: int) -> Leaving:
    """A random moment of an answer: one in five before its first text, the others evenly in it."""
    pieces = max(0, rng.randrange(-(max_tokens // 4), max_tokens))
    return Leaving(pieces, rng.uniform(0.0, _LONGEST_WAIT))


def corpus(seed: int) -> list[str]:
    """Lines that prompts are cut from: words in no order, so that nothing can be looked up in them."""
    rng = random.Random(f"corpus {seed}")
    return [" ".join(rng.choices(_TEXT.split(), k=_LINE_WORDS)) for _ in range(_NUM_LINES)]


def poisson(rng: random.Random, rate: float) -> Iterator[float]:
    """Seconds at which requests come, on average so many a second, each without a thought of the others."""
    now = 0.0
    while True:
        now += rng.expovariate(rate)
        yield now
