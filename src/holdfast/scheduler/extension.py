"""What a model may add to the life of a request besides tokens and their KV.

What it adds is opaque to the scheduler and to the prefix cache. They hand it from one of its methods to
the next, and to the `PassExtension` of the worker:

    plan      guess      -> Span.extra            what the pass takes for granted of this span
    pass      PassExtension.finish -> PassResult.extra    what the pass found instead, by span
    verify    num_valid                           the tokens up to the first wrong guess
    apply     update, then commit -> ExtraCommitted       what the client gets
    pages     of_pages -> the prefix cache -> adopt
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, runtime_checkable

from holdfast.core.request import Request
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.sent import Sent
from holdfast.core.step_plan import Span

TokensOf = Callable[[int, int], Sequence[int]]  # the tokens at positions start .. stop - 1


class RequestExtension(Protocol):
    """What one request has of it. The scheduler calls it; None in a plain model."""

    @property
    def has_unconfirmed(self) -> bool:
        """Return whether something that was sent is not confirmed yet."""

    def limit(self, start: int, stop: int, *, is_window: bool) -> int:
        """Return where a span from `start` ends, at `stop` at the latest. is_window: fast passes have
        computed its tokens before."""

    def guess(self, start: int, stop: int) -> object:
        """Return `Span.extra` of a span of these positions."""

    def num_valid(self, span: Span, found: Any) -> int:
        """Return how many tokens of the span are valid, by what its pass found. Change nothing."""

    def update(self, span: Span, found: Any) -> tuple[int, int]:
        """Take what a pass found. Return how much was guessed, and how much of it was right."""

    def commit(self, length: int) -> tuple[tuple[object, ...], bool]:
        """Commit positions 0 .. length - 1. Return what is new for the client, and whether the rest is
        what was sent."""

    def shareable_len(self, length: int, tokens: TokensOf) -> int:
        """Return how many of the first positions are the same for every request with these tokens."""

    def of_pages(self, start: int, stop: int) -> object:
        """Return what the prefix cache keeps with the pages of these positions."""

    def adopt(self, pages: Sequence[Any]) -> None:
        """Start, or restart, after cached pages with these results of `of_pages`."""

    def shown(self, length: int) -> Sequence[tuple[Any, ...]]:
        """Return what a page shows of the first `length` positions, plain data. Change nothing."""

    def restore(self, sent: Sent) -> None:
        """Continue what another engine sent."""

    def restart(self) -> None:
        """Forget what is committed: all tokens are computed again."""

    def unconfirm(self) -> None:
        """Everything that was sent must be confirmed."""


@runtime_checkable
class ModelExtension(Protocol):
    """What a model has of it, for all its requests. None in a plain model."""

    def __call__(self, request: Request) -> RequestExtension:
        """Make what one request has of it."""

    def decode(self, item: Any, request: Request, tokenizer: Any) -> Any:
        """Return an item of `RequestExtension.commit` as the client gets it."""

    def of_receipt(
        self, kept: Iterable[Any], params: SamplingParams, prompt_len: int, num_tokens: int
    ) -> list[Any]:
        """Return what was sent of an answer with `num_tokens` tokens, of which a receipt keeps `kept`."""

    def guessing(self, most: int | None) -> "ModelExtension":
        """Return the same with passes that guess at most so many things, None: as many as now."""
