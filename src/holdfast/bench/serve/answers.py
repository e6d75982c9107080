"""Whether deterministic answers were all one: a prompt of the pool has one text, and who left early heard its beginning."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.bench.serve.latency import is_whole
from holdfast.bench.serve.load import Spoken


@dataclass(frozen=True)
class PoolAnswers:
    """All answers to one prompt. distinct is 1 if they are one; astray counts beginnings that are none of a whole answer."""

    number: int
    asked: int
    whole: int
    distinct: int
    astray: int

    @property
    def is_one(self) -> bool:
        return self.distinct <= 1 and self.astray == 0


def compare_answers(spoken: Iterable[Spoken]) -> list[PoolAnswers]:
    """By prompt of the pool. An answer is its text and how it ended."""
    by_number: dict[int, list[Spoken]] = defaultdict(list)
    for one in spoken:
        if one.job.pool_number is not None:
            by_number[one.job.pool_number].append(one)
    return [_compare(number, by_number[number]) for number in sorted(by_number)]


def _compare(number: int, spoken: list[Spoken]) -> PoolAnswers:
    heard = [one.heard for one in spoken]
    whole = {(one.text, one.finish_reason) for one in heard if is_whole(one)}
    begun = [one.text for one in heard if one.left]
    if whole:
        astray = sum(not any(text.startswith(part) for text, _ in whole) for part in begun)
    else:  # nobody stayed: the longest beginning stands for the answer
        longest = max(begun, key=len, default="")
        astray = sum(not longest.startswith(part) for part in begun)
    return PoolAnswers(number, len(heard), sum(map(is_whole, heard)), len(whole), astray)


def count_modes(spoken: Iterable[Spoken]) -> dict[str, int]:
    """How answers to deterministic requests were made, as the server says."""
    modes = Counter(
        str((one.heard.holdfast or {}).get("mode", "not told"))
        for one in spoken
        if one.job.deterministic and is_whole(one.heard)
    )
    return dict(modes.most_common())


def add_stats(spoken: Iterable[Spoken]) -> dict[str, int]:
    """The sums of what deterministic answers cost; only what the server counts."""
    sums: Counter[str] = Counter()
    for one in spoken:
        if one.job.deterministic and one.heard.holdfast is not None:
            stats = one.heard.holdfast.get("stats") or {}
            sums.update({name: value for name, value in stats.items() if isinstance(value, int)})
    return dict(sums)
