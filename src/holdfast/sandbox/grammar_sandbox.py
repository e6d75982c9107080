"""Compiles a grammar in another process first, where it can do no harm.

A grammar comes from a client. llguidance bounds much of what a grammar can make it do, but not all:
some JSON schemas compile for half a minute, some regular expressions never finish, and some Lark
grammars overflow the stack, which ends the process. So every grammar is compiled and followed for
some tokens in a worker process (`grammar_worker`), which the kernel bounds in time and memory. Only
a grammar that passes is compiled in the engine's process.

The process starts with the first grammar, which takes about half a second. After that a simple
schema takes 20 to 40 milliseconds, once.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.core.cancel_token import CancelToken
from holdfast.sandbox.supervisor import SetupRefused, WorkerLost, WorkerSupervisor

_MAX_WAIT_SECONDS = 60.0  # the worker itself gives up on a grammar long before
_MAX_ANSWER_BYTES = 1 << 16


@dataclass(frozen=True)
class GrammarLimits:
    """What compiling a grammar and following it for some tokens may use."""

    cpu_seconds: float = 2.0
    memory_bytes: int = 512 << 20


@dataclass(frozen=True)
class GrammarTrial:
    """What is wrong with a grammar, if anything, and about how much memory it needs."""

    fault: str | None
    num_bytes: int = 0


class GrammarSandbox(WorkerSupervisor):
    """Tries grammars, from any thread, `num_workers` at a time. `texts` are the bytes of each token
    id."""

    def __init__(
        self,
        texts: Sequence[bytes],
        eos_ids: Collection[int],
        limits: GrammarLimits | None = None,
        *,
        num_workers: int = 1,
    ) -> None:
        setup = partial(_setup, texts, sorted(eos_ids))
        super().__init__("grammar_worker.py", ["llguidance"], setup, num_workers)
        self._limits = limits or GrammarLimits()

    def try_grammar(
        self,
        grammar: str,
        *,
        is_lark: bool,
        special_tokens: bool = False,
        follow: bool = True,
        token: CancelToken | None = None,
    ) -> GrammarTrial:
        """Compile a grammar in a worker process, and follow it for some tokens. Raises `Cancelled`
        soon after the token is cancelled. special_tokens: it may name special tokens."""
        request = {
            "grammar": grammar,
            "is_lark": is_lark,
            "special_tokens": special_tokens,
            "follow": follow,
            "trial_seconds": self._limits.cpu_seconds,
            "memory_bytes": self._limits.memory_bytes,
        }
        try:
            answer = self.request(
                request, seconds=_MAX_WAIT_SECONDS, max_bytes=_MAX_ANSWER_BYTES, token=token
            )
        except (WorkerLost, SetupRefused, OSError, ImportError) as error:
            return GrammarTrial(f"the process it was tried in failed: {error}")
        return GrammarTrial(answer.get("error"), answer.get("num_bytes", 0))


def _setup(texts: Sequence[bytes], eos_ids: list[int]) -> dict[str, Any]:
    return {"texts": [text.decode("latin-1") for text in texts], "eos_ids": eos_ids}
