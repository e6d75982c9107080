"""The logprobs of one page's tokens, kept beside the page in the prefix cache.

A logprob depends on the tokens up to its own, as the page's KV does. So who reads the page may read
them, too. As arrays they take 4 bytes a token, and 8 for each alternative.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.core.step_plan import TokenLogprob


@dataclass(frozen=True, slots=True)
class PageLogprobs:
    """Of the last tokens of a page: of all but the first token of a prompt.

    num_top    how many alternatives were asked for
    values     fp32, one a token
    top_ids    the alternatives, as many for each token
    top_values their logprobs
    """

    num_top: int
    values: "array[float]"
    top_ids: "array[int]"
    top_values: "array[float]"

    @staticmethod
    def of(logprobs: Sequence[TokenLogprob], num_top: int) -> "PageLogprobs":
        top = [pair for one in logprobs for pair in one.top]
        return PageLogprobs(
            num_top,
            array("f", [one.logprob for one in logprobs]),
            array("i", [token_id for token_id, _ in top]),
            array("f", [value for _, value in top]),
        )

    def read(self, token_ids: Sequence[int], num_top: int) -> list[TokenLogprob]:
        """Return those of the page's last tokens, with `num_top` alternatives at most."""
        first = len(self.values) - len(token_ids)
        each = len(self.top_ids) // len(self.values)  # fewer than were asked for in a small vocabulary
        found = []
        for at, token_id in enumerate(token_ids, first):
            some = slice(at * each, at * each + min(num_top, each))
            top = tuple(zip(self.top_ids[some], self.top_values[some], strict=True))
            found.append(TokenLogprob(token_id, self.values[at], top))
        return found
