"""The answer to one prompt, read delta by delta."""

import sys
from collections.abc import Callable, Iterator

from holdfast.core.logprobs import TokenTexts
from holdfast.core.request import Prepared
from holdfast.core.results import Delta, Result, decode_delta
from holdfast.engine.shared_engine import Inbox, SharedEngine
from holdfast.errors import make_error


class TokenStream(Iterator[Delta]):
    """Iterate over it for deltas; afterwards `result` is the whole answer.

    The engine runs only while a caller waits for it: in `next` on this stream, or in another call
    of the same `LLM`. Closing the stream ends the request; so does dropping it. Any thread may read
    it, one at a time. An answer that ends in an error raises it after the last delta.
    """

    def __init__(
        self,
        engine: SharedEngine,
        request: Prepared,
        texts: TokenTexts,
        finish: Callable[[Result], Result],
    ) -> None:
        self.result: Result | None = None
        self._engine = engine
        self._texts = texts
        self._finish = finish
        self._is_closed = False
        self._inbox = Inbox([request], wants_deltas=True)
        engine.start(self._inbox)

    def __next__(self) -> Delta:
        """The next delta. Raises `StopIteration` at the end of the answer, and once it is closed."""
        while self.result is None and not self._is_closed:
            try:
                output = self._engine.read(self._inbox)
            except BaseException:
                self.close()
                raise
            if output.result is not None:
                self.result = self._finish(output.result)
                self._engine.settle()
            if not output.delta.is_empty:
                return decode_delta(output.delta, self._texts)
        if self.result is not None and self.result.error is not None and not self._is_closed:
            self._is_closed = True
            raise make_error(self.result.error_code or "", self.result.error)
        raise StopIteration

    def close(self) -> None:
        """End the request, if it has not ended. The stream gives no further delta."""
        if not self._is_closed:
            self._engine.abandon(self._inbox)
            self._is_closed = True

    def __enter__(self) -> "TokenStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_inbox") and self.result is None and not sys.is_finalizing():
            self.close()
