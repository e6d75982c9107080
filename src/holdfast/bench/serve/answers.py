"""Whether deterministic answers were the same: one text per pool prompt, of which a disconnected
client saw a prefix.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.bench.serve.latency import is_complete
from holdfast.bench.serve.load import LoadResult


@dataclass(frozen=True)
class PoolAnswers:
    """All answers to one pool prompt.

    whole counts complete answers and distinct the different ones among them; astray counts partial
    answers that are no prefix of a complete one.
    """

    number: int
    asked: int
    whole: int
    distinct: int
    astray: int

    @property
    def is_one(self) -> bool:
        return self.distinct <= 1 and self.astray == 0


def compare_answers(results: Iterable[LoadResult]) -> list[PoolAnswers]:
    """Compare the answers to each pool prompt. An answer is its text and its finish reason."""
    by_number: dict[int, list[LoadResult]] = defaultdict(list)
    for one in results:
        if one.request.pool_number is not None:
            by_number[one.request.pool_number].append(one)
    return [_compare(number, by_number[number]) for number in sorted(by_number)]


def _compare(number: int, results: list[LoadResult]) -> PoolAnswers:
    streams = [one.stream for one in results]
    complete = {(one.text, one.finish_reason) for one in streams if is_complete(one)}
    partial = [one.text for one in streams if one.disconnected]
    if complete:
        astray = sum(not any(text.startswith(part) for text, _ in complete) for part in partial)
    else:  # all clients disconnected: compare with the longest prefix
        longest = max(partial, key=len, default="")
        astray = sum(not longest.startswith(part) for part in partial)
    return PoolAnswers(number, len(streams), sum(map(is_complete, streams)), len(complete), astray)


def count_modes(results: Iterable[LoadResult]) -> dict[str, int]:
    """How deterministic answers were made (certified, verified, none), as the server reports it."""
    modes = Counter(
        str((one.stream.holdfast or {}).get("mode", "not told"))
        for one in results
        if one.request.deterministic and is_complete(one.stream)
    )
    return dict(modes.most_common())


def sum_stats(results: Iterable[LoadResult]) -> dict[str, int]:
    """The sums of all counters that the server reports with deterministic answers."""
    sums: Counter[str] = Counter()
    for one in results:
        if one.request.deterministic and one.stream.holdfast is not None:
            stats = one.stream.holdfast.get("stats") or {}
            sums.update({name: value for name, value in stats.items() if isinstance(value, int)})
    return dict(sums)
