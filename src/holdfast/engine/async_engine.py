"""An engine behind a thread of its own, for whoever cannot wait: submit, iterate over what comes, cancel.

The thread owns the engine; everybody else talks to it through one inbox. A handle receives its request's updates
through an unbounded queue, so a slow reader never stalls the loop.
"""

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from holdfast.core.request import Request
from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.engine import Engine, Update
from holdfast.engine.engine_thread import EngineThread
from holdfast.engine.output import Delta
from holdfast.errors import EngineStopped, HoldfastError
from holdfast.numerics.settings import pin_threads

_log = logging.getLogger(__name__)

News = Update | HoldfastError


class RequestHandle:
    """One running request. Iterate it, plainly or asynchronously, for deltas; then read `result`."""

    def __init__(self, request: Request, cancel: Callable[[int], None]) -> None:
        self.request_id = request.request_id
        self.seed = request.seed
        self.result: Result | None = None
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._cancel = cancel
        self._wake: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """End the request at the next step; its pages are free from then on."""
        self._cancel(self.request_id)

    def __iter__(self) -> Iterator[Delta]:
        while self.result is None:
            delta = self._read(self._news.get())
            if delta is not None:
                yield delta

    async def __aiter__(self) -> AsyncIterator[Delta]:
        wake = asyncio.Event()
        with self._lock:
            self._wake = (asyncio.get_running_loop(), wake)
        while self.result is None:
            try:
                news = self._news.get_nowait()
            except queue.Empty:
                await wake.wait()
                wake.clear()
                continue
            delta = self._read(news)
            if delta is not None:
                yield delta

    def wait(self) -> Result:
        """The result, when it is there."""
        for _ in self:
            pass
        assert self.result is not None
        return self.result

    def put(self, news: News) -> None:
        """Called by the engine's thread."""
        self._news.put(news)
        with self._lock:
            if self._wake is not None:
                loop, wake = self._wake
                with contextlib.suppress(RuntimeError):  # the reader's loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(wake.set)

    def _read(self, news: News) -> Delta | None:
        if isinstance(news, HoldfastError):
            self._news.put(news)  # whoever asks again hears it again
            raise news
        self.result = news.result
        delta = news.delta
        return delta if delta.token_ids or delta.text or delta.thoughts or delta.finish_reason else None


class AsyncEngine:
    """Runs an engine's loop in a thread until closed."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._worker = EngineThread(engine, self._deliver)
        self._handles: dict[int, RequestHandle] = {}
        self._submitting = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._loop, name="holdfast-engine", daemon=True)
        self._thread.start()

    def submit(self, prompt: str | Sequence[int], params: SamplingParams) -> RequestHandle:
        """Queue a request. A bad one raises here and never reaches the loop."""
        request = self.engine.prepare(prompt, params)  # may take a while: a form has to be compiled
        with self._submitting:
            if self._closed:
                raise EngineStopped("the engine is shut down")
            handle = self._handles[request.request_id] = RequestHandle(request, self._cancel)
            self._worker.post(lambda: self._start(request))
        return handle

    def close(self) -> None:
        """Stop the loop; requests still running end with `EngineStopped`."""
        with self._submitting:
            if self._closed:
                return
            self._closed = True
            self._worker.stop()
        self._thread.join()

    def __enter__(self) -> "AsyncEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cancel(self, request_id: int) -> None:
        self._worker.post(lambda: self._deliver(self.engine.abort(request_id)))

    def _start(self, request: Request) -> None:
        try:
            self.engine.submit(request)
        except HoldfastError as error:
            self._handles.pop(request.request_id).put(error)

    def _loop(self) -> None:
        pin_threads()
        try:
            self._worker.run()
        except BaseException:
            _log.exception("the engine's loop died")
            raise
        finally:
            with self._submitting:  # whoever was submitted by now hears of it, even from the inbox
                self._closed = True
                for handle in self._handles.values():
                    handle.put(EngineStopped("the engine is shut down"))
                self._handles.clear()

    def _deliver(self, updates: Sequence[Update]) -> None:
        for update in updates:
            handle = self._handles[update.request_id]
            if update.result is not None:
                del self._handles[update.request_id]
            handle.put(update)
