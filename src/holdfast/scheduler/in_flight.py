"""Spans of one request that are planned and whose results are not read yet.

With async scheduling the next plan is made before the results of the last one are read. The lengths
in `RequestState` cover only results that are read; the next span starts where the last span in
flight stops:

    position    ... canonical_len / computed_len ......... spans[-1].stop
    KV          read                    | in flight       | next span starts here
"""

from holdfast.core.step_plan import Span


class InFlightSpans:
    """The spans in flight of one request, oldest first.

    A result is used only if it belongs to the oldest span. A request that ends, restarts or is
    rolled back clears the list, and the results of those spans are discarded.
    """

    __slots__ = ("num_new_tokens", "spans")

    def __init__(self) -> None:
        self.spans: list[Span] = []
        # Tokens that the spans will add to the request: one for each span that samples. The other
        # tokens of a window replace its candidates, which are counted already.
        self.num_new_tokens = 0

    def add(self, span: Span) -> None:
        self.spans.append(span)
        if span.sample_from < len(span.token_ids):
            self.num_new_tokens += 1

    def pop(self, span: Span) -> bool:
        """Remove the span if it is the oldest. False: its result must be discarded."""
        spans = self.spans
        if not spans or spans[0] is not span:
            return False
        del spans[0]
        if span.sample_from < len(span.token_ids):
            self.num_new_tokens -= 1
        return True

    def clear(self) -> None:
        self.spans.clear()
        self.num_new_tokens = 0
