"""What an attack has seen, and its verdict.

The promise is judged as it is written: under one fingerprint, one question has one answer, to the
bit. Another fingerprint excuses other bits. So does a refusal, if it is an error that Holdfast
raises on purpose. A crash, a revoked certificate or a changed setting of the caller breaks it.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.bench.stress import ResultBits
from holdfast.errors import HoldfastError


class Evidence:
    """The answers of one attack, by fingerprint and question."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], set[str]] = {}
        self.num_answers = 0
        self.refusals: Counter[str] = Counter()
        self.failures: list[str] = []

    def add(self, fingerprint: str, question: str, bits: ResultBits | str) -> None:
        """Note an answer. Text stands for itself."""
        text = bits if isinstance(bits, str) else hashlib.sha256(repr(bits).encode()).hexdigest()
        self.answers.setdefault((fingerprint, question), set()).add(text)
        self.num_answers += 1

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
    def num_fingerprints(self) -> int:
        return len({fingerprint for fingerprint, _ in self.answers})

    def assert_held(self, *, may_refuse: bool = False) -> None:
        """The promise held, and the attack did ask something."""
        assert not self.failures
        differing = sorted(question for (_, question), found in self.answers.items() if len(found) > 1)
        assert not differing, "other bits under the same fingerprint"
        assert may_refuse or not self.refusals
        assert self.num_answers > 0
