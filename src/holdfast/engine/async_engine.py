"""An engine in a thread of its own: submit a request, iterate over its deltas, cancel it.

The thread owns the engine; other threads reach it through commands. A handle receives its request's
outputs through an unbounded queue, so a slow reader never stalls the engine.
"""

import asyncio
import atexit
import contextlib
import logging
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from holdfast.core.request import Prepared
from holdfast.core.results import Delta, RequestOutput, Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.engine import Engine
from holdfast.engine.engine_thread import EngineThread
from holdfast.engine.input_processor import Prompt
from holdfast.errors import EngineStopped, HoldfastError

_log = logging.getLogger(__name__)


class RequestHandle:
    """One running request.

    Iterate over it, plainly or asynchronously, for deltas; then read `result`.
    """

    def __init__(self, request: Prepared, cancel: Callable[[int], None]) -> None:
        self.request_id = request.request_id
        self.seed = request.request.seed
        self.result: Result | None = None
        self._outputs: queue.SimpleQueue[RequestOutput | HoldfastError] = queue.SimpleQueue()
        self._cancel = cancel
        self._async_reader: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._lock = threading.Lock()

    def cancel(self) -> None:
        """End the request at the next step and free its pages."""
        self._cancel(self.request_id)

    def __iter__(self) -> Iterator[Delta]:
        while self.result is None:
            delta = self._read(self._outputs.get())
            if not delta.is_empty:
                yield delta

    async def __aiter__(self) -> AsyncIterator[Delta]:
        while (delta := await self.next_delta()) is not None:
            yield delta

    async def next_delta(self) -> Delta | None:
        """The next delta that is not empty, or None at the end. One task reads at a time."""
        ready = asyncio.Event()
        with self._lock:
            self._async_reader = (asyncio.get_running_loop(), ready)
        while self.result is None:
            try:
                output = self._outputs.get_nowait()
            except queue.Empty:
                await ready.wait()
                ready.clear()
                continue
            delta = self._read(output)
            if not delta.is_empty:
                return delta
        return None

    def wait(self) -> Result:
        """Wait for the result."""
        for _ in self:
            pass
        assert self.result is not None
        return self.result

    def put(self, output: RequestOutput | HoldfastError) -> None:
        """Called by the engine's thread."""
        self._outputs.put(output)
        with self._lock:
            if self._async_reader is not None:
                loop, ready = self._async_reader
                with contextlib.suppress(RuntimeError):  # the reader's event loop is closed
                    loop.call_soon_threadsafe(ready.set)

    def _read(self, output: RequestOutput | HoldfastError) -> Delta:
        if isinstance(output, HoldfastError):
            self._outputs.put(output)  # a second reader gets it, too
            raise output
        self.result = output.result
        return output.delta


class AsyncEngine:
    """Runs an engine in a thread until closed."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._worker = EngineThread(engine, self._deliver)
        self._handles: dict[int, RequestHandle] = {}
        self._submit_lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="holdfast-engine", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # a thread that still computes would crash the end of the process

    def submit(self, prompt: Prompt, params: SamplingParams) -> RequestHandle:
        """Queue a request. An invalid one raises here and never reaches the engine."""
        return self.start(self.engine.prepare(prompt, params))  # may take long: a grammar is compiled

    def start(self, request: Prepared) -> RequestHandle:
        """Queue a prepared request."""
        with self._submit_lock:
            if self._closed:
                raise EngineStopped("the engine is shut down")
            handle = self._handles[request.request_id] = RequestHandle(request, self._cancel)
            self._worker.post(lambda: self._start(request))
        return handle

    def close(self) -> None:
        """Stop the thread. Requests that still run end with `EngineStopped`."""
        with self._submit_lock:
            if not self._closed:
                self._closed = True
                self._worker.stop()
        self._thread.join()
        atexit.unregister(self.close)

    def __enter__(self) -> "AsyncEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _cancel(self, request_id: int) -> None:
        self._worker.post(lambda: self._deliver(self.engine.abort(request_id)))

    def _start(self, request: Prepared) -> None:
        try:
            self.engine.submit(request)
        except HoldfastError as error:
            self._handles.pop(request.request_id).put(error)

    def _run(self) -> None:
        try:
            self._worker.run()
        except BaseException:
            _log.exception("the engine's thread died")
            raise
        finally:
            with self._submit_lock:  # tell every submitted request, also those not started yet
                self._closed = True
                for handle in self._handles.values():
                    handle.put(EngineStopped("the engine is shut down"))
                self._handles.clear()

    def _deliver(self, outputs: Sequence[RequestOutput]) -> None:
        for output in outputs:
            handle = self._handles[output.request_id]
            if output.result is not None:
                del self._handles[output.request_id]
            handle.put(output)
