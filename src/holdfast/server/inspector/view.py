"""The engine's live requests and the text of their last tokens, as JSON for inspector pages.

A view follows the traces of one tracer. `update` turns a step into the changes a page must make.
`snapshot` is the whole view, for a page that is new or has lost steps. Only the last tokens of a
long request are kept and sent.

A holder's page gets the same events without what belongs to other holders.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.engine.tracer import RequestTrace, StepTrace
from holdfast.server.api.model_fields import shown_fields

SHOWN_TOKENS = 240
# What pages get of the engine: name, and field of `StepTrace`.
_STATE = {
    "step": "step",
    "running": "num_running",
    "waiting": "num_waiting",
    "pages_used": "num_pages_used",
    "num_pages": "num_pages",
    "page_size": "page_size",
}

TokenText = Callable[[int], str]


@dataclass(slots=True)
class RequestView:
    """One live request: its latest trace, and its last tokens, the first of them at position `start`."""

    trace: RequestTrace
    start: int = 0
    tokens: list[str] = field(default_factory=list)

    def replace_from(self, position: int, tokens: list[str]) -> list[str]:
        """Replace the tokens from a position on. Returns the replaced ones."""
        keep = position - self.start
        if not 0 <= keep <= len(self.tokens):  # there is a gap before position
            self.start, keep = position, 0
            self.tokens.clear()
        replaced = self.tokens[keep:]
        self.tokens[keep:] = tokens
        surplus = len(self.tokens) - SHOWN_TOKENS
        if surplus > 0:
            del self.tokens[:surplus]
            self.start += surplus
        return replaced


class EngineView:
    """The live requests, in order of arrival."""

    def __init__(self, token_text: TokenText) -> None:
        self._token_text = token_text
        self._requests: dict[int, RequestView] = {}
        self._ended: dict[int, str] = {}  # requests that ended in the last step, and their holders
        self._last: StepTrace | None = None

    def update(self, trace: StepTrace) -> dict[str, Any]:
        """Return the `step` event for a trace."""
        self._last = trace
        requests = [self._update_request(one) for one in trace.requests]
        self._ended = {}
        for request_id, _ in trace.ended:
            ended = self._requests.pop(request_id, None)
            if ended is not None:
                self._ended[request_id] = ended.trace.holder
        return {
            **self._engine_state(),
            "ms": round(trace.milliseconds, 2),
            "passes": [asdict(one) for one in trace.passes],
            "requests": requests,
            "ended": trace.ended,
        }

    def snapshot(self, holder: str | None = None) -> dict[str, Any]:
        """Return the `snapshot` event; for a holder, of its own requests."""
        requests = [
            self._request_event(one.trace, one.start, one.tokens)
            for one in self._requests.values()
            if holder is None or one.trace.holder == holder
        ]
        state = self._engine_state() if holder is None else self._holder_state(holder)
        return {**state, "requests": requests}

    def own_part(self, event: dict[str, Any], holder: str) -> dict[str, Any] | None:
        """Return the part of the last `step` event that belongs to a holder; None if there is none."""
        passes = []
        for one in event["passes"]:
            spans = [span for span in one["spans"] if self._is_of(span[0], holder)]
            num_tokens = sum(num for _, _, num in spans)
            if spans:
                counts = {"num_tokens": num_tokens, "num_tokens_padded": num_tokens}
                passes.append({**one, **counts, "spans": spans})
        requests = [one for one in event["requests"] if self._is_of(one["id"], holder)]
        ended = [one for one in event["ended"] if self._is_of(one[0], holder)]
        if not (passes or requests or ended):
            return None
        own = {"passes": passes, "requests": requests, "ended": ended}
        return {**event, **self._holder_state(holder), **own}

    def _is_of(self, request_id: int, holder: str) -> bool:
        live = self._requests.get(request_id)
        return holder == (self._ended.get(request_id) if live is None else live.trace.holder)

    def _holder_state(self, holder: str) -> dict[str, Any]:
        """Return the engine's state as if it had no other holders."""
        traces = [one.trace for one in self._requests.values() if one.trace.holder == holder]
        num_waiting = sum(one.phase == "queued" for one in traces)
        return {
            **self._engine_state(),
            "running": len(traces) - num_waiting,
            "waiting": num_waiting,
            "pages_used": sum(one.num_pages for one in traces),
        }

    def _update_request(self, trace: RequestTrace) -> dict[str, Any]:
        request = self._requests.setdefault(trace.request_id, RequestView(trace))
        request.trace = trace
        committed_ids = trace.committed_ids[-SHOWN_TOKENS:]
        start = trace.committed_len - len(committed_ids)
        tokens = self._texts(committed_ids)
        replaced = request.replace_from(start, tokens)
        event = self._request_event(trace, start, tokens)
        rolled_back = replaced + self._texts(trace.rolled_back_ids)
        if rolled_back:
            event["rolled_back"] = rolled_back[:SHOWN_TOKENS]
            event["rolled_back_from"] = start if replaced else trace.rolled_back_start
        return event

    def _engine_state(self) -> dict[str, Any]:
        return {name: getattr(self._last, field, 0) for name, field in _STATE.items()}

    def _texts(self, token_ids: tuple[int, ...]) -> list[str]:
        return [self._token_text(token_id) for token_id in token_ids]

    def _request_event(self, trace: RequestTrace, start: int, tokens: list[str]) -> dict[str, Any]:
        return {
            "id": trace.request_id,
            "first_id": trace.first_id,
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
            "candidates": self._texts(trace.candidate_ids),
            "accepted": trace.num_accepted,
            **shown_fields(trace.extra, self._texts),
        }
