"""One life of the engine process, from the front's side: started, asked, and gone when its socket closes."""

import asyncio
import contextlib
import itertools
import logging
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast import errors
from holdfast.core.params_json import settings_of
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.config import EngineConfig
from holdfast.engine.tracer import StepTrace
from holdfast.errors import EngineStopped, HoldfastError, RequestError
from holdfast.server.ipc import frames
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.engine_status import EngineStatus
from holdfast.server.ipc.response_stream import ResponseStream

_log = logging.getLogger("holdfast.server")
_LEAVING_SECONDS = 5.0
COMMAND = (sys.executable, "-m", "holdfast.server.ipc.engine_process")


@dataclass(frozen=True)
class Listener:
    """Who is told what, besides the tickets."""

    progress: Callable[[str, int, int], None]
    traced: Callable[[StepTrace], None]
    status: Callable[[EngineStatus], None]


class EngineLink:
    """A running engine process. `ready` is there once it can answer; `gone` is set when it never will again."""

    def __init__(self, listener: Listener) -> None:
        self.ready: m.Ready | None = None
        self.unfit: str | None = None
        self.fingerprint: m.FingerprintReady | None = None
        self.revocation: str | None = None
        self.gone = asyncio.Event()
        self.settled = asyncio.Event()  # ready, unfit or gone
        self._named = asyncio.Event()
        self._listener = listener
        self._tickets: dict[int, ResponseStream] = {}
        self._numbers = itertools.count(1)
        self._asked: deque[tuple[float, asyncio.Future[EngineStatus]]] = deque()

    @classmethod
    async def start(
        cls,
        config: EngineConfig,
        listener: Listener,
        log: tuple[str, str],
        command: Sequence[str] = COMMAND,
    ) -> "EngineLink":
        """Start the process and tell it what to load. Does not wait until it has."""
        link = cls(listener)
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                theirs.set_inheritable(True)
                link._process = await asyncio.create_subprocess_exec(
                    *command, str(theirs.fileno()), pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL,
                    start_new_session=True,
                )  # fmt: skip
            reader, link._writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()  # and the process, if there is one, ends with it
            raise
        link._send(m.Start(config, *log))
        link._reading = asyncio.create_task(link._read(reader))
        return link

    _writer: asyncio.StreamWriter
    _process: asyncio.subprocess.Process
    _reading: asyncio.Task[None]

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def num_requests(self) -> int:
        return len(self._tickets)

    def submit(
        self,
        bell: asyncio.Event,
        prompt_ids: Sequence[int],
        params: SamplingParams,
        echo_text: str | None = None,
        *,
        with_receipt: bool = False,
    ) -> ResponseStream:
        """Ask. The ticket says whether it was accepted, and rings the bell when there is news."""
        settings = settings_of(params)
        return self._ask(
            bell, lambda number: m.Submit(number, tuple(prompt_ids), settings, echo_text, with_receipt)
        )

    def submit_score(
        self,
        bell: asyncio.Event,
        prompt_ids: Sequence[int],
        completion_ids: Sequence[int],
        params: SamplingParams,
        *,
        with_receipt: bool = False,
    ) -> ResponseStream:
        """Ask for the logprobs of a completion."""
        prompt, completion, settings = tuple(prompt_ids), tuple(completion_ids), settings_of(params)
        return self._ask(
            bell, lambda number: m.SubmitScore(number, prompt, completion, settings, with_receipt)
        )

    def watch(self, on: bool) -> None:
        """Have every step told, or not."""
        self._send(m.SetTracing(on))

    async def status(self) -> EngineStatus:
        """The engine's counts, as of its next step. Raises `EngineStopped` if there will be none."""
        if self.gone.is_set():
            raise EngineStopped("the engine stopped")
        answer: asyncio.Future[EngineStatus] = asyncio.get_running_loop().create_future()
        self._asked.append((time.monotonic(), answer))
        self._send(m.AskStatus())
        return await answer

    @property
    def unanswered_seconds(self) -> float:
        """For how long the oldest question about its status has waited."""
        return time.monotonic() - self._asked[0][0] if self._asked else 0.0

    async def named(self) -> m.FingerprintReady:
        """The fingerprint, once the weights are hashed."""
        await self._named.wait()
        if self.fingerprint is None:
            raise EngineStopped("the engine stopped")
        return self.fingerprint

    async def stop(self) -> None:
        """End the process: politely, then not. One that still loads has nothing to lose."""
        if self.ready is None:
            self.kill()
        self._send(m.Stop())
        await self._see_off()
        await self.ended()

    def kill(self) -> None:
        """End the process now."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def ended(self) -> None:
        """Once the process is no more."""
        await asyncio.wait((self._reading,))

    @property
    def end(self) -> str:
        """How the process ended, for the log."""
        code = self._process.returncode
        if code is None or code >= 0:
            return f"exit code {code}"
        return f"signal {-code}"

    def _ask(self, bell: asyncio.Event, message: Callable[[int], m.ToEngine]) -> ResponseStream:
        if self.gone.is_set() or self.ready is None:
            raise EngineStopped("the engine does not run")
        ticket = ResponseStream(next(self._numbers), bell, self._cancel)
        self._send(message(ticket.number))  # raises for what cannot be said; then there is no ticket
        self._tickets[ticket.number] = ticket
        return ticket

    def _cancel(self, ticket: ResponseStream) -> None:
        if self._tickets.pop(ticket.number, None) is not None:
            self._send(m.Abort(ticket.number))

    def _send(self, message: m.ToEngine) -> None:
        if not self._writer.is_closing():
            self._writer.write(frames.encode([message]))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        decoder = frames.from_engine()
        try:
            while True:
                self._take(await decoder.read_from(reader))
        except frames.ConnectionLost:
            pass
        except Exception:
            _log.exception("the engine said something nobody understands")
            self.kill()
        finally:
            self._writer.close()
            self._give_up()
            await self._see_off()

    async def _see_off(self) -> None:
        """Wait for the process to end; not for long, because nobody can talk to it any more."""
        try:
            async with asyncio.timeout(_LEAVING_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self.kill()
            await self._process.wait()

    def _give_up(self) -> None:
        """Nothing will come any more. Whoever waits is told so now, even if the process takes its time to end."""
        self.gone.set()
        self.settled.set()
        self._named.set()
        tickets, self._tickets = self._tickets, {}
        for ticket in tickets.values():
            ticket.fail(EngineStopped("the engine stopped"))
        for _, answer in self._asked:
            if not answer.done():
                answer.set_exception(EngineStopped("the engine stopped"))

    def _take(self, message: m.FromEngine) -> None:
        if isinstance(message, m.StepOutput):
            self._spread(message)
        elif isinstance(message, m.Accepted):
            if message.number in self._tickets:
                self._tickets[message.number].accept(message.seed)
        elif isinstance(message, m.Refused):
            refused = self._tickets.pop(message.number, None)
            if refused is not None:
                refused.fail(_refusal(message))
        elif isinstance(message, m.Traced):
            self._listener.traced(message.step)
        elif isinstance(message, m.Status):
            self._answer(message.status)
        elif isinstance(message, m.Progress):
            self._listener.progress(message.what, message.done, message.total)
        elif isinstance(message, m.Ready):
            self.ready = message
            self.settled.set()
        elif isinstance(message, m.StartupFailed):
            self.unfit = message.reason
            self.settled.set()
        elif isinstance(message, m.FingerprintReady):
            self.fingerprint = message
            self._named.set()
        else:
            self.revocation = message.reason

    def _spread(self, news: m.StepOutput) -> None:
        for begun in news.begun:
            ticket = self._tickets.get(begun.number)
            if ticket is not None:
                ticket.begin(begun.queue_seconds)
        for piece in news.pieces:
            ticket = self._tickets.get(piece.number)
            if ticket is not None:
                ticket.add(piece)
        for outcome in news.outcomes:
            ticket = self._tickets.pop(outcome.number, None)
            if ticket is not None:
                ticket.close(outcome)

    def _answer(self, status: EngineStatus) -> None:
        self._listener.status(status)
        _, answer = self._asked.popleft()
        if not answer.done():
            answer.set_result(status)


def _refusal(message: m.Refused) -> HoldfastError:
    """The error the engine's process raised, by name; what is not the request's own fault is told to nobody."""
    kind = getattr(errors, message.kind, None)
    if isinstance(kind, type) and issubclass(kind, RequestError):
        return kind(message.reason)
    return HoldfastError(message.reason)
