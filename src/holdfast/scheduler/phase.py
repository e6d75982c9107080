"""The phases of a request.

QUEUED -> PREFILL -> DECODE <-> VERIFY -> FINISHED        from any live phase: ABORTED, FAILED
  ^_________|__________|__________|   preemption
"""

from enum import Enum


class Phase(Enum):
    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    VERIFY = "verify"
    FINISHED = "finished"
    ABORTED = "aborted"
    FAILED = "failed"


_ENDS = frozenset({Phase.ABORTED, Phase.FAILED})

TRANSITIONS: dict[Phase, frozenset[Phase]] = {
    Phase.QUEUED: frozenset({Phase.PREFILL}) | _ENDS,
    Phase.PREFILL: frozenset({Phase.DECODE, Phase.FINISHED, Phase.QUEUED}) | _ENDS,
    Phase.DECODE: frozenset({Phase.VERIFY, Phase.FINISHED, Phase.QUEUED}) | _ENDS,
    Phase.VERIFY: frozenset({Phase.DECODE, Phase.FINISHED, Phase.QUEUED}) | _ENDS,
    Phase.FINISHED: frozenset(),
    Phase.ABORTED: frozenset(),
    Phase.FAILED: frozenset(),
}

LIVE = frozenset(phase for phase, targets in TRANSITIONS.items() if targets)
