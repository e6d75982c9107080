"""What a page shows of the engine: every live request, and the end of its tokens, as text.

A view follows the traces of one tracer. A step becomes what a page must change; a page that has nothing yet, or lost
steps, gets the whole view instead. Of a long request only the last tokens are kept and sent: a page shows no more.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.engine.tracer import SequenceTrace, StepTrace

SHOWN_TOKENS = 240

TokenText = Callable[[int], str]


@dataclass(slots=True)
class Shown:
    """One live request: the trace that told of it last, and its last tokens, which begin at start."""

    trace: SequenceTrace
    start: int = 0
    tokens: list[str] = field(default_factory=list)

    def replace_from(self, position: int, tokens: list[str]) -> list[str]:
        """The tokens from a position on are these. Returns what they take the place of."""
        keep = position - self.start
        if not 0 <= keep <= len(self.tokens):  # what lies between was never told
            self.start, keep = position, 0
            self.tokens.clear()
        cut = self.tokens[keep:]
        self.tokens[keep:] = tokens
        surplus = len(self.tokens) - SHOWN_TOKENS
        if surplus > 0:
            del self.tokens[:surplus]
            self.start += surplus
        return cut


class View:
    """The live requests, in order of arrival."""

    def __init__(self, token_text: TokenText) -> None:
        self._token_text = token_text
        self._shown: dict[int, Shown] = {}
        self._last: StepTrace | None = None

    def take(self, trace: StepTrace) -> dict[str, Any]:
        """A step, as it is sent to pages."""
        self._last = trace
        requests = [self._take_sequence(one) for one in trace.sequences]
        for request_id, _ in trace.ended:
            self._shown.pop(request_id, None)
        passes = [
            {
                "kind": one.kind,
                "certified": one.certified,
                "rows": one.num_tokens,
                "padded": one.num_tokens_padded,
                "spans": one.spans,
            }
            for one in trace.passes
        ]
        return {
            **self._totals(),
            "ms": round(trace.milliseconds, 2),
            "passes": passes,
            "requests": requests,
            "ended": trace.ended,
        }

    def snapshot(self) -> dict[str, Any]:
        """Everything, for a page that knows nothing."""
        requests = [
            _request(one.trace, one.start, one.tokens, self._texts(one.trace.candidate_ids))
            for one in self._shown.values()
        ]
        return {**self._totals(), "requests": requests}

    def _take_sequence(self, trace: SequenceTrace) -> dict[str, Any]:
        shown = self._shown.setdefault(trace.request_id, Shown(trace))
        shown.trace = trace
        told = trace.committed_ids[-SHOWN_TOKENS:]
        start = trace.committed_len - len(told)
        cut = shown.replace_from(start, self._texts(told))
        request = _request(trace, start, self._texts(told), self._texts(trace.candidate_ids))
        rolled_back = cut + self._texts(trace.rolled_back_ids)
        if rolled_back:
            request["rolled"] = rolled_back[:SHOWN_TOKENS]
            request["rolled_from"] = start if cut else trace.rolled_back_from
        return request

    def _totals(self) -> dict[str, Any]:
        last = self._last
        if last is None:
            return {"step": 0, "running": 0, "waiting": 0, "pages": 0, "all_pages": 0, "page_size": 0}
        return {
            "step": last.step,
            "running": last.num_running,
            "waiting": last.num_waiting,
            "pages": last.pages_used,
            "all_pages": last.num_pages,
            "page_size": last.page_size,
        }

    def _texts(self, token_ids: tuple[int, ...]) -> list[str]:
        return [self._token_text(token_id) for token_id in token_ids]


def _request(trace: SequenceTrace, start: int, tokens: list[str], candidates: list[str]) -> dict[str, Any]:
    return {
        "id": trace.request_id,
        "answers": trace.answers,
        "deterministic": trace.deterministic,
        "phase": trace.phase,
        "prompt": trace.prompt_len,
        "cached": trace.cached_len,
        "committed": trace.committed_len,
        "canonical": trace.canonical_len,
        "computed": trace.computed_len,
        "pages": trace.num_pages,
        "from": start,
        "tokens": tokens,
        "candidates": candidates,
        "accepted": trace.accepted,
    }
