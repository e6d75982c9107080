"""The engine process's desk: requests of the front, by the front's numbers, as the engine's loop knows them.

They are checked and prepared in the thread that reads them, those with a form or with bad words in a few threads of their
own, because that takes time. The loop only ever sees valid ones. A request that is left while it is prepared is never begun.
"""

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from holdfast.core.params_json import params_of
from holdfast.core.request import Request
from holdfast.engine.engine import Engine, Update
from holdfast.engine.engine_thread import EngineThread
from holdfast.engine.output import Delta
from holdfast.engine.tracer import Tracer
from holdfast.errors import HoldfastError
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.engine_status import status_of

_log = logging.getLogger("holdfast.engine")
_FORM_THREADS = 8  # one form is compiled at a time; those that are known already must not wait for that


class EngineServer:
    """All but `take` and `close` runs in the loop's thread. What comes of requests is told in messages."""

    def __init__(self, engine: Engine, tell: Callable[[m.FromEngine], None]) -> None:
        self.worker = EngineThread(engine, self._deliver)
        self._engine = engine
        self._tell = tell
        self._forms = ThreadPoolExecutor(_FORM_THREADS, "holdfast-forms")
        self._numbers: dict[int, int] = {}  # the front's number of each request of the engine's
        self._running: dict[int, int] = {}  # and the other way round
        self._left: set[int] = set()  # aborted before they were prepared
        self._preparing: set[int] = set()
        self._arrived: dict[int, float] = {}  # when, of those that still wait
        self._with_receipt: set[int] = set()
        engine.wants_receipt = self._wants_receipt
        self._stepped = 0.0  # when the last step ended, and so the next one began
        self._revoked = False

    def take(self, message: m.ToEngine) -> None:
        """One message, in the reader's thread."""
        if isinstance(message, m.Submit | m.SubmitScore):
            self.worker.post(lambda: self._preparing.add(message.number))
            if isinstance(message, m.Submit) and _takes_time(message):
                self._forms.submit(self._prepare, message)
            else:
                self._prepare(message)
        elif isinstance(message, m.Abort):
            self.worker.post(lambda: self._abort(message.number))
        elif isinstance(message, m.SetTracing):
            self.worker.post(lambda: self._watch(message.on))
        elif isinstance(message, m.AskStatus):
            self.worker.post(lambda: self._tell(m.Status(status_of(self._engine))))
        else:
            self.worker.stop()

    def close(self) -> None:
        """Compile nothing more."""
        self._forms.shutdown(wait=False, cancel_futures=True)

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
            refused = m.Refused(message.number, HoldfastError.__name__, "the request could not be prepared")
            self.worker.post(lambda: self._refuse(refused))
        else:
            self.worker.post(lambda: self._begin(message, request, arrived))

    def _request(self, message: m.Submit | m.SubmitScore) -> Request:
        params = params_of(message.settings)
        if isinstance(message, m.SubmitScore):
            return self._engine.prepare_score(message.prompt_ids, message.completion_ids, params)
        return self._engine.prepare(message.prompt_ids, params, message.echo_text)

    def _refuse(self, refused: m.Refused) -> None:
        self._preparing.discard(refused.number)
        if refused.number in self._left:
            self._left.discard(refused.number)
        else:
            self._tell(refused)

    def _begin(self, message: m.Submit | m.SubmitScore, request: Request, arrived: float) -> None:
        number = message.number
        self._preparing.discard(number)
        if number in self._left:
            self._left.discard(number)
            return
        try:
            self._engine.submit(request)
        except HoldfastError as error:
            self._tell(m.Refused(number, type(error).__name__, str(error)))
            return
        self._numbers[request.request_id] = number
        self._running[number] = request.request_id
        self._arrived[request.request_id] = arrived
        if message.with_receipt:
            self._with_receipt.add(number)
        self._tell(m.Accepted(number, request.seed))

    def _abort(self, number: int) -> None:
        request_id = self._running.get(number)
        if request_id is not None:
            self._deliver(self._engine.abort(request_id))
        elif number in self._preparing:
            self._left.add(number)

    def _watch(self, on: bool) -> None:
        self._engine.tracer = Tracer(self._engine) if on else None
        self._deliver(())  # a page sees at once what there is, also of an engine that rests

    def _deliver(self, updates: Sequence[Update]) -> None:
        """What a step gave, as one message."""
        begun = self._note_begun() if self._arrived else ()
        pieces, outcomes = [], []
        for update in updates:
            number, delta = self._numbers[update.request_id], update.delta
            if delta.token_ids or delta.text or delta.thoughts or delta.finish_reason is not None:
                pieces.append(_piece(number, delta))
            if update.result is not None:
                outcomes.append(self._close(update))
        if begun or pieces or outcomes:
            self._tell(m.StepOutput(begun, tuple(pieces), tuple(outcomes)))
        if self._engine.tracer is not None:
            for step in self._engine.tracer.take():
                self._tell(m.Traced(step))
        if self._engine.revocation is not None and not self._revoked:
            self._revoked = True
            self._tell(m.Revoked(self._engine.revocation))
        self._stepped = time.monotonic()

    def _note_begun(self) -> tuple[m.Begun, ...]:
        """Those that left the queue in this step; who came after it had begun did not wait."""
        waiting = self._engine.scheduler.waiting_ids
        begun = [request_id for request_id in self._arrived if request_id not in waiting]
        return tuple(
            m.Begun(self._numbers[request_id], max(0.0, self._stepped - self._arrived.pop(request_id)))
            for request_id in begun
        )

    def _wants_receipt(self, request_id: int) -> bool:
        return self._numbers.get(request_id) in self._with_receipt

    def _close(self, update: Update) -> m.RequestResult:
        result = update.result
        assert result is not None
        number = self._numbers.pop(update.request_id)
        del self._running[number]
        self._arrived.pop(update.request_id, None)
        self._with_receipt.discard(number)
        return m.RequestResult(
            number,
            result.seed,
            result.determinism,
            result.stats,
            result.error,
            result.receipt,
            result.prompt_logprobs,
        )


def _piece(number: int, delta: Delta) -> m.Piece:
    return m.Piece(
        number,
        delta.index,
        delta.text,
        delta.token_ids,
        delta.logprobs,
        delta.finish_reason,
        delta.thoughts,
    )


def _takes_time(message: m.Submit) -> bool:
    """Whether preparing it would keep those behind it waiting."""
    return message.settings.get("structured") is not None or bool(message.settings.get("bad_words"))
