"""The answer to one prompt, read delta by delta: plainly or with asyncio."""

import sys
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import Any

from holdfast.core.logprobs import TokenTexts
from holdfast.core.results import Delta, Result, decode_delta
from holdfast.engine.llm.engine_thread import RequestHandle
from holdfast.errors import HoldfastError, make_error

Finish = Callable[[Result], Result]  # adds what a caller reads beside the answer


class _Stream:
    """What both streams share: the request, its end and its result."""

    def __init__(self, texts: TokenTexts) -> None:
        self.result: Result | None = None
        self._texts = texts
        self._handle: RequestHandle | None = None
        self._is_closed = False

    def _close(self) -> None:
        self._is_closed = True
        if self._handle is not None and self.result is None:
            self._handle.cancel()

    def _take_error(self) -> HoldfastError | None:
        """Return the error the answer ended in. It is raised once."""
        if self._is_closed or self.result is None or self.result.error is None:
            return None
        self._is_closed = True
        return make_error(self.result.error_code or "", self.result.error)

    def __del__(self) -> None:
        if hasattr(self, "_is_closed") and not sys.is_finalizing():
            self._close()


class TokenStream(_Stream, Iterator[Delta]):
    """Iterate over it for deltas; afterwards `result` is the whole answer.

    The engine runs only while a caller waits for it: in `next` on this stream, or in another call
    of the same `LLM`. Closing the stream ends the request; so does dropping it. Any thread may read
    it, one at a time. An answer that ends in an error raises it after the last delta.
    """

    def __init__(self, handle: RequestHandle, texts: TokenTexts, finish: Finish) -> None:
        super().__init__(texts)
        self._handle: RequestHandle = handle
        self._finish = finish
        handle.start()

    def __next__(self) -> Delta:
        """Return the next delta. Raises `StopIteration` at the end of the answer, and once it is closed."""
        try:
            while self.result is None and not self._is_closed:
                output = self._handle.read()
                if output.result is not None:
                    self.result = self._finish(output.result)
                if not output.delta.is_empty:
                    return decode_delta(output.delta, self._texts)
        except BaseException:  # an interrupt, or the engine has stopped
            self._close()
            raise
        raise self._take_error() or StopIteration

    def close(self) -> None:
        """End the request, if it has not ended. The stream gives no further delta."""
        self._close()

    def __enter__(self) -> "TokenStream":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()


class AsyncTokenStream(_Stream, AsyncIterator[Delta]):
    """Iterate over it for deltas, or await it for the result.

    The prompt is read and the request starts with the first `anext` or `await`; a wrong prompt
    raises there. Cancelling the task that reads it, leaving its loop or `aclose` ends the request.
    An answer that ends in an error raises it after the last delta; awaited, it is a result with
    `error`.
    """

    def __init__(self, prepare: Callable[[], tuple[RequestHandle, Finish]], texts: TokenTexts) -> None:
        """prepare may take long: it reads the prompt, renders templates and compiles grammars."""
        super().__init__(texts)
        self._prepare = prepare

    async def __anext__(self) -> Delta:
        """Return the next delta. Raises `StopAsyncIteration` at the end, and once it is closed."""
        delta = await self._next_delta()
        if delta is None:
            raise self._take_error() or StopAsyncIteration
        return decode_delta(delta, self._texts)

    def __await__(self) -> Generator[Any, None, Result]:
        return self._wait().__await__()

    async def aclose(self) -> None:
        """End the request, if it has not ended. The stream gives no further delta."""
        self._close()

    async def _wait(self) -> Result:
        while await self._next_delta() is not None:
            pass
        if self.result is None:
            from asyncio import InvalidStateError

            raise InvalidStateError("the stream was closed before its answer ended")
        return self.result

    async def _next_delta(self) -> Delta | None:
        if self._is_closed or self.result is not None:
            return None
        try:
            if self._handle is None:
                from asyncio import to_thread

                handle, self._finish = await to_thread(self._prepare)
                handle.start()
                self._handle = handle
            delta = await self._handle.next_delta()
            if delta is None and self._handle.result is not None:
                self.result = self._finish(self._handle.result)
            return delta
        except BaseException:  # the reader was cancelled, or the engine has stopped
            self._close()
            raise
