"""Logprobs as a Python caller reads them: with the text of each token, and in vLLM's form."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.core.step_plan import TokenLogprob, fast_dataclass


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token's logprob, in the form of vLLM's `Logprob`.

    rank is 1 for the most likely token; None if the token is not among those that were asked for.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class TokenTexts(dict[int, str]):
    """The texts of tokens by id, made on first use. Reading thousands of them costs little."""

    def __init__(self, make: Callable[[int], str]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, token_id: int) -> str:
        text = self[token_id] = self._make(token_id)
        return text


NO_TEXTS = TokenTexts(lambda token_id: "")


@fast_dataclass
class DecodedLogprob(TokenLogprob, Mapping[int, Logprob]):
    """A `TokenLogprob` with the text of its token, and of those in top in the same order. Texts are
    looked up when they are read: an answer has thousands of them.

    It can be read as vLLM's dict as well, from token id to `Logprob`: `one[token_id].logprob`,
    `one.items()`. The token itself comes first. It equals a `TokenLogprob` without text.
    """

    texts: Mapping[int, str] = field(
        default_factory=lambda: NO_TEXTS, compare=False, repr=False
    )  # by token id

    @property
    def text(self) -> str:
        return self.texts[self.token_id]

    @property
    def top_texts(self) -> tuple[str, ...]:
        return tuple([self.texts[token_id] for token_id, _ in self.top])

    def __reduce__(self) -> tuple[type["DecodedLogprob"], tuple[Any, ...]]:
        """Pickle only the texts of its own tokens."""
        token_ids = {self.token_id, *(token_id for token_id, _ in self.top)}
        texts = {token_id: self.texts[token_id] for token_id in token_ids}
        return DecodedLogprob, (self.token_id, self.logprob, self.top, texts)

    def to_dict(self) -> dict[int, Logprob]:
        """From token id to `Logprob`, as vLLM has it."""
        found = {self.token_id: Logprob(self.logprob, None, self.text)}
        for rank, (token_id, logprob) in enumerate(self.top, start=1):
            found[token_id] = Logprob(logprob, rank, self.texts[token_id])
        return found

    def __getitem__(self, token_id: int) -> Logprob:
        return self.to_dict()[token_id]

    def __iter__(self) -> Iterator[int]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenLogprob):
            return NotImplemented
        mine, its = (self.token_id, self.logprob, self.top), (other.token_id, other.logprob, other.top)
        return mine == its


def with_texts(one: TokenLogprob, texts: TokenTexts) -> DecodedLogprob:
    if isinstance(one, DecodedLogprob):
        return one
    return DecodedLogprob(one.token_id, one.logprob, one.top, texts)
