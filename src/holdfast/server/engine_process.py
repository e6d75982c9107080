"""The engine's own process: `python -m holdfast.server.engine_process FD`, with one end of a socket pair as FD.

    reader thread   messages in; requests are checked and prepared here (those with a form in a few threads, because compiling
                    takes time), so that the loop only ever sees valid ones
    main thread     the engine's loop
    writer thread   messages out; encoding and waiting for the socket cost the loop nothing

When the socket closes, the process ends: an engine nobody can ask is of no use.
"""

import contextlib
import logging
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.arithmetic.settings import pin_threads
from holdfast.core.request import Request
from holdfast.core.settings import params_of
from holdfast.engine.build import ShowProgress, build
from holdfast.engine.config import EngineConfig
from holdfast.engine.loop import Engine, Update
from holdfast.engine.tracer import Tracer
from holdfast.engine.worker import Worker
from holdfast.errors import ConfigError, EngineStopped, HoldfastError, ModelError
from holdfast.server import frames
from holdfast.server import messages as m
from holdfast.server.engine_status import status_of
from holdfast.server.logs import set_up_logs

_log = logging.getLogger("holdfast.engine")
_FORM_THREADS = 2
_LEAVING_SECONDS = 5.0

Build = Callable[[EngineConfig, ShowProgress], Engine]


class Outbox:
    """Messages on their way to the front, written by a thread of their own."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="holdfast-outbox", daemon=True)
        self._thread.start()

    def put(self, message: Any) -> None:
        self._waiting.put(message)

    def close(self) -> None:
        """Write what is left, if anybody reads it."""
        self._waiting.put(None)
        self._thread.join(_LEAVING_SECONDS)

    def _write(self) -> None:
        while True:
            batch = [self._waiting.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    batch.append(self._waiting.get_nowait())
            last = None in batch
            try:
                self._link.sendall(frames.encode([one for one in batch if one is not None]))
            except OSError:
                return  # the front is gone; the reader sees it, too
            if last:
                return


class Desk:
    """Requests of the front, as the engine's loop knows them. All but `take` runs in the loop's thread."""

    def __init__(self, engine: Engine, outbox: Outbox) -> None:
        self.worker = Worker(engine, self._deliver)
        self._engine = engine
        self._outbox = outbox
        self._forms = ThreadPoolExecutor(_FORM_THREADS, "holdfast-forms")
        self._numbers: dict[int, int] = {}  # the front's number of each request of the engine's
        self._running: dict[int, int] = {}  # and the other way round
        self._left: set[int] = set()  # aborted before they were prepared
        self._preparing: set[int] = set()
        self._arrived: dict[int, float] = {}  # when, of those that still wait
        self._with_receipt: set[int] = set()
        self._stepped = 0.0  # when the last step ended, and so the next one began
        self._revoked = False

    def take(self, message: m.ToEngine) -> None:
        """One message, in the reader's thread."""
        if isinstance(message, m.Submit | m.SubmitScore):
            self.worker.post(lambda: self._preparing.add(message.number))
            if isinstance(message, m.Submit) and message.settings.get("structured") is not None:
                self._forms.submit(self._prepare, message)
            else:
                self._prepare(message)
        elif isinstance(message, m.Abort):
            self.worker.post(lambda: self._abort(message.number))
        elif isinstance(message, m.Watch):
            self.worker.post(lambda: self._watch(message.on))
        elif isinstance(message, m.AskStatus):
            self.worker.post(lambda: self._outbox.put(m.Status(status_of(self._engine))))
        else:
            self.worker.stop()

    def _prepare(self, message: m.Submit | m.SubmitScore) -> None:
        """Make the request, or say why not. Whatever is wrong with it harms nobody else."""
        arrived = time.monotonic()
        try:
            request = self._request(message)
        except HoldfastError as error:
            refused = m.Refused(message.number, type(error).__name__, str(error))
            self.worker.post(lambda: self._refuse(refused))
        except Exception:
            _log.exception("a request could not be prepared")
            refused = m.Refused(message.number, EngineStopped.__name__, "the request could not be prepared")
            self.worker.post(lambda: self._refuse(refused))
        else:
            self.worker.post(lambda: self._begin(message, request, arrived))

    def _request(self, message: m.Submit | m.SubmitScore) -> Request:
        if isinstance(message, m.SubmitScore):
            return self._engine.prepare_score(
                message.prompt_ids, message.completion_ids, deterministic=message.deterministic
            )
        return self._engine.prepare(message.prompt_ids, params_of(message.settings), message.echo_text)

    def _refuse(self, refused: m.Refused) -> None:
        self._preparing.discard(refused.number)
        if refused.number in self._left:
            self._left.discard(refused.number)
        else:
            self._outbox.put(refused)

    def _begin(self, message: m.Submit | m.SubmitScore, request: Request, arrived: float) -> None:
        number = message.number
        self._preparing.discard(number)
        if number in self._left:
            self._left.discard(number)
            return
        try:
            self._engine.submit(request)
        except HoldfastError as error:
            self._outbox.put(m.Refused(number, type(error).__name__, str(error)))
            return
        self._numbers[request.request_id] = number
        self._running[number] = request.request_id
        self._arrived[request.request_id] = arrived
        if message.with_receipt:
            self._with_receipt.add(number)
        self._outbox.put(m.Accepted(number, request.seed))

    def _abort(self, number: int) -> None:
        request_id = self._running.get(number)
        if request_id is not None:
            self._deliver(self._engine.abort(request_id))
        elif number in self._preparing:
            self._left.add(number)

    def _watch(self, on: bool) -> None:
        self._engine.tracer = Tracer(self._engine) if on else None

    def _deliver(self, updates: Sequence[Update]) -> None:
        """What a step gave, as one message."""
        begun = self._note_begun() if self._arrived else ()
        pieces, outcomes = [], []
        for update in updates:
            number, delta = self._numbers[update.request_id], update.delta
            if delta.token_ids or delta.text or delta.finish_reason is not None:
                pieces.append(
                    m.Piece(
                        number, delta.index, delta.text, delta.token_ids, delta.logprobs, delta.finish_reason
                    )
                )
            if update.result is not None:
                outcomes.append(self._close(update))
        if begun or pieces or outcomes:
            self._outbox.put(m.News(begun, tuple(pieces), tuple(outcomes)))
        if self._engine.tracer is not None:
            for step in self._engine.tracer.take():
                self._outbox.put(m.Traced(step))
        if self._engine.revocation is not None and not self._revoked:
            self._revoked = True
            self._outbox.put(m.Revoked(self._engine.revocation))
        self._stepped = time.monotonic()

    def _note_begun(self) -> tuple[m.Begun, ...]:
        """Those that left the queue in this step; who came after it had begun did not wait."""
        waiting = self._engine.scheduler.waiting_ids
        begun = [request_id for request_id in self._arrived if request_id not in waiting]
        return tuple(
            m.Begun(self._numbers[request_id], max(0.0, self._stepped - self._arrived.pop(request_id)))
            for request_id in begun
        )

    def _close(self, update: Update) -> m.Outcome:
        result = update.result
        assert result is not None
        number = self._numbers.pop(update.request_id)
        del self._running[number]
        self._arrived.pop(update.request_id, None)
        with_receipt = number in self._with_receipt
        self._with_receipt.discard(number)
        return m.Outcome(
            number,
            result.seed,
            result.determinism,
            result.stats,
            result.error,
            result.receipt if with_receipt else None,
            result.prompt_logprobs,
        )


def serve(link: socket.socket, make: Build = build) -> int:
    """Build the engine the first message asks for, then answer until the socket closes or the front says stop."""
    decoder = frames.to_engine()
    try:
        start = decoder.read(link)
    except frames.ConnectionLost:
        return 0
    assert isinstance(start, m.Start)
    set_up_logs(start.log_format, start.log_level)
    outbox = Outbox(link)
    try:
        engine = make(start.config, lambda what, done, total: outbox.put(m.Progress(what, done, total)))
    except (ConfigError, ModelError) as error:
        outbox.put(m.Unfit(str(error)))
        outbox.close()
        return 2
    desk = Desk(engine, outbox)
    threading.Thread(target=_read, args=(link, decoder, desk), name="holdfast-inbox", daemon=True).start()
    threading.Thread(target=_name, args=(engine, outbox), name="holdfast-fingerprint", daemon=True).start()
    outbox.put(_ready(start.config, engine))
    pin_threads()
    desk.worker.run()
    outbox.close()
    return 0


def _read(link: socket.socket, decoder: frames.Decoder[m.ToEngine], desk: Desk) -> None:
    try:
        while True:
            desk.take(decoder.read(link))
    except frames.ConnectionLost:
        desk.worker.stop()
    except BaseException:  # nobody could ask any more
        _log.exception("the inbox died")
        os._exit(1)


def _name(engine: Engine, outbox: Outbox) -> None:
    fingerprint = engine.fingerprint
    outbox.put(m.Named(fingerprint.digest, fingerprint.plain_parts()))


def _ready(config: EngineConfig, engine: Engine) -> m.Ready:
    pool = engine.scheduler.pool
    return m.Ready(
        vocab_size=engine.limits.vocab_size,
        max_model_len=engine.limits.max_model_len,
        max_num_seqs=engine.scheduler.config.max_num_seqs,
        num_kv_positions=pool.num_pages * pool.page_size,
        determinism=config.determinism,
        refusal=engine.limits.refusal,
        certificate=None if engine.certificate is None else engine.certificate.as_dict(),
    )


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the front's to hear
    link = socket.socket(fileno=int(sys.argv[1]))
    sys.exit(serve(link))


if __name__ == "__main__":
    main()
