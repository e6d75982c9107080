"""What an attack has seen, and its verdict.

The promise is judged as it is written: under one fingerprint, one question has one answer, to the
bit. Another fingerprint excuses other bits. So does a refusal, if it is an error that Holdfast
raises on purpose. A crash, a revoked certificate or a changed setting of the caller breaks it.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from holdfast.bench.stress import ResultBits
from holdfast.errors import HoldfastError

Verdict = Literal["held", "broken", "skipped"]


@dataclass(frozen=True)
class AttackResult:
    """One row of the report.

    distinct is the largest number of different answers to one question under one fingerprint.
    """

    attack: str
    target: str
    runs: int
    distinct: int
    fingerprints: int
    refused: int
    verdict: Verdict
    remark: str = ""


@dataclass
class Evidence:
    """The answers of one attack, by fingerprint and question."""

    attack: str
    target: str
    answers: dict[tuple[str, str], Counter[str]] = field(default_factory=dict)
    refusals: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    skipped: str = ""

    def add(self, fingerprint: str, question: str, bits: ResultBits | str) -> None:
        """Count an answer. Text stands for itself."""
        text = bits if isinstance(bits, str) else digest(bits)
        self.answers.setdefault((fingerprint, question), Counter())[text] += 1

    def fail(self, reason: str) -> None:
        self.failures.append(reason)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Count an error that Holdfast raises on purpose as a refusal. Any other one breaks the
        attack's verdict.
        """
        try:
            yield
        except HoldfastError as error:
            self.refusals[f"{type(error).__name__}: {error}"] += 1
        except Exception as error:
            self.fail(f"{type(error).__name__}: {error}")

    @property
    def num_distinct(self) -> int:
        return max((len(found) for found in self.answers.values()), default=0)

    @property
    def num_runs(self) -> int:
        return sum(found.total() for found in self.answers.values())

    @property
    def differing(self) -> list[str]:
        """The questions with several answers under one fingerprint."""
        return sorted({question for (_, question), found in self.answers.items() if len(found) > 1})

    def result(self) -> AttackResult:
        broken = bool(self.differing or self.failures)
        verdict: Verdict = "broken" if broken else "skipped" if self.skipped else "held"
        return AttackResult(
            self.attack,
            self.target,
            self.num_runs,
            self.num_distinct,
            len({fingerprint for fingerprint, _ in self.answers}),
            self.refusals.total(),
            verdict,
            self._remark(),
        )

    def _remark(self) -> str:
        if self.failures:
            more = f" (and {len(self.failures) - 1} more)" if len(self.failures) > 1 else ""
            return self.failures[0] + more
        if self.differing:
            return f"other bits under the same fingerprint: {', '.join(self.differing)}"
        if self.refusals:
            return f"refused: {self.refusals.most_common(1)[0][0]}"
        return self.skipped


def digest(bits: ResultBits) -> str:
    return hashlib.sha256(repr(bits).encode()).hexdigest()
