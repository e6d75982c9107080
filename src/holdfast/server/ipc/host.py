"""The engine's side of the connection: checks requests, submits them and sends their outputs.

A request is prepared off the engine's loop, and fairly between clients:

    no grammar, no bad words   in the thread that reads messages
    known ones                 in a queue of its own, so that they never wait for unknown ones
    unknown ones               compiled, two at a time and one of each client

The loop gets only valid requests. A request that is aborted before the loop has submitted it is never
submitted: clients that come and leave at once cost the loop nothing. If its grammar is being compiled,
that is given up, unless another request waits for the same one.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.core.cancel_token import Cancelled, CancelToken
from holdfast.core.request import Prepared, Request
from holdfast.core.results import RequestOutput
from holdfast.engine.engine import Engine
from holdfast.engine.loop import EngineLoop
from holdfast.engine.tracer import Tracer
from holdfast.errors import HoldfastError
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.pass_record import PassRecord
from holdfast.server.tenants.work_queue import Job, WorkQueue
from holdfast.structured.compiler import NUM_WORKERS

_log = logging.getLogger("holdfast.engine")
_QUICK_SECONDS = 0.001
_COMPILE_SECONDS = 0.05
_NO_LIMIT = 1 << 30  # the frontend admits no more requests than it has places for


class EngineHost:
    """Hosts one engine. `handle` and `close` are called in the reader's thread, the rest in the
    engine's, but for `_prepare`.
    """

    def __init__(
        self, engine: Engine, send: Callable[[m.FromEngine], None], record: PassRecord | None = None
    ) -> None:
        """record is memory that the frontend can read if this process dies."""
        self.loop = EngineLoop(engine, self._deliver)
        self._engine = engine
        self._send = send
        self._preparing: dict[int, Request] = {}  # by id, read and not submitted yet; all threads
        self._jobs: dict[int, Job] = {}  # that prepare them
        self._lock = threading.Lock()  # for both
        self._work = WorkQueue(
            "holdfast-prepare", workers=NUM_WORKERS, max_per_client=NUM_WORKERS - 1, max_waiting=_NO_LIMIT
        )
        self._arrived: dict[int, float] = {}  # when, of those in the engine's queue
        self._step_ended = 0.0  # the last step, so the next one began then
        self._certificate_state = engine.certificate_state  # as the frontend knows it
        self._record = record
        self._pass_began: float | None = None
        self._longest_step = 0.0
        if record is not None:
            engine.before_pass = self._before_pass

    @property
    def ready(self) -> m.Ready:
        """Return what the engine can do now."""
        engine = self._engine
        pool = engine.scheduler.pool
        return m.Ready(
            vocab_size=engine.limits.vocab_size,
            max_model_len=engine.limits.max_model_len,
            max_num_seqs=engine.scheduler.config.max_num_seqs,
            num_kv_positions=pool.num_pages * pool.page_size,
            refusal=engine.limits.refusal,
            certificate=None if engine.certificate is None else engine.certificate.as_dict(),
            receipt_key=None if engine.receipts.key is None else engine.receipts.key.public_key.pem,
            extension=engine.scheduler.config.new_extension,
            certificate_state=engine.certificate_state,
            revocation=engine.revocation,
        )

    # In the reader's thread

    def handle(self, message: m.ToEngine) -> None:
        if isinstance(message, m.Submit):
            self._begin(message.request)
        elif isinstance(message, m.Abort):
            self._cancel(message.request_id)
            self.loop.post(lambda: self._abort(message.request_id))
        elif isinstance(message, m.SetTracing):
            self.loop.post(lambda: self._set_tracing(message.on))
        elif isinstance(message, m.GetStatus):
            self.loop.post(lambda: self._send(m.StatusReport(self._engine.status)))
        else:
            self.loop.stop()

    def close(self) -> None:
        """Prepare nothing more."""
        self._work.close()

    def _begin(self, request: Request) -> None:
        """Prepare a request, now or in a thread."""
        self._preparing[request.request_id] = request
        if request.params.structured is None and not request.params.bad_words:
            self._prepare(request, CancelToken())
        else:
            self._queue(request, self._prepare_if_quick, _QUICK_SECONDS)

    def _cancel(self, request_id: int) -> None:
        """Never submit a request, unless the loop has done so already."""
        with self._lock:
            self._preparing.pop(request_id, None)
            job = self._jobs.pop(request_id, None)
        if job is not None:
            self._work.cancel(job)

    # In the reader's thread, or in one that prepares

    def _queue(self, request: Request, work: Callable[[Request, CancelToken], None], cost: float) -> None:
        request_id = request.request_id
        with self._lock:
            if self._preparing.get(request_id) is request:
                job = self._work.submit(request.share.holder, lambda token: work(request, token), cost=cost)
                self._jobs[request_id] = job

    def _prepare_if_quick(self, request: Request, token: CancelToken) -> None:
        """Prepare a request at once, or queue what takes time."""
        if self._engine.prepares_quickly(request.params):
            self._prepare(request, token)
        else:
            self._queue(request, self._prepare, _COMPILE_SECONDS)

    def _prepare(self, request: Request, token: CancelToken) -> None:
        """Check the request, or refuse it. An error in it affects no other request."""
        arrived = time.monotonic()
        try:
            prepared = self._engine.check_request(request, token)
        except Cancelled:
            return
        except HoldfastError as error:
            refused = m.Refused(request.request_id, error.code, str(error))
        except Exception:
            _log.exception("request %d could not be prepared", request.request_id)
            refused = m.Refused(request.request_id, HoldfastError.code, "the request could not be prepared")
        else:
            self.loop.post(lambda: self._submit(request, prepared, arrived))
            return
        self.loop.post(lambda: self._refuse(request, refused))

    # In the engine's thread

    def _take(self, request: Request) -> bool:
        """Return whether the request is not aborted. A later abort finds it in the engine."""
        with self._lock:
            if self._preparing.get(request.request_id) is not request:
                return False
            del self._preparing[request.request_id]
            self._jobs.pop(request.request_id, None)
            return True

    def _refuse(self, request: Request, refused: m.Refused) -> None:
        if self._take(request):
            self._send(refused)

    def _submit(self, request: Request, prepared: Prepared, arrived: float) -> None:
        if not self._take(request):
            return
        request_id = request.request_id
        try:
            self._engine.submit(prepared)
        except HoldfastError as error:
            self._send(m.Refused(request_id, error.code, str(error)))
            return
        self._arrived[request_id] = arrived
        self._send(m.Accepted(request_id))

    def _abort(self, request_id: int) -> None:
        if outputs := self._engine.abort(request_id):
            self._deliver(outputs)

    def _set_tracing(self, on: bool) -> None:
        self._engine.tracer = Tracer(self._engine) if on else None
        self._deliver(())  # sends the first trace, also of an idle engine

    def _deliver(self, outputs: Sequence[RequestOutput]) -> None:
        started = self._note_started() if self._arrived else ()
        if started or outputs:
            sent = tuple([one if one.result is None else self._finish(one) for one in outputs])
            self._send(m.StepOutput(started, sent))
        if self._engine.tracer is not None:
            for trace in self._engine.tracer.take():
                self._send(m.StepTraced(trace))
        if self._certificate_state.state == "certifying" or (
            self._engine.revocation is not None and self._certificate_state.state != "revoked"
        ):
            self._send_certificate_state()
        self._step_ended = time.monotonic()
        if self._record is not None and self._pass_began is not None:
            seconds = self._step_ended - self._pass_began
            if seconds > self._longest_step:
                self._longest_step = seconds
                self._record.write_longest_step(seconds)
            self._pass_began = None

    def _before_pass(self) -> None:
        assert self._record is not None
        self._record.write_running(self._engine.scheduler.running_ids)
        if self._pass_began is None:
            self._pass_began = time.monotonic()

    def _send_certificate_state(self) -> None:
        """Tell where the certificate stands, if that has changed."""
        if self._engine.certificate_state != self._certificate_state:
            self._certificate_state = self._engine.certificate_state
            self._send(self.ready)

    def _note_started(self) -> tuple[m.Started, ...]:
        """Return the requests that left the queue in this step.

        One that arrived during the step did not wait.
        """
        waiting = self._engine.scheduler.waiting_ids
        started = [request_id for request_id in self._arrived if request_id not in waiting]
        return tuple(
            m.Started(request_id, max(0.0, self._step_ended - self._arrived.pop(request_id)))
            for request_id in started
        )

    def _finish(self, output: RequestOutput) -> RequestOutput:
        """Return a request's last output without what the frontend has: the prompt, its logprobs, the choices."""
        assert output.result is not None
        self._arrived.pop(output.request_id, None)
        return output._replace(
            result=replace(output.result, prompt_token_ids=(), choices=(), prompt_logprobs=None)
        )
