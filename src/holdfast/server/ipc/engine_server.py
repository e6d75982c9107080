"""The engine process's side of the connection: submits requests and sends their outputs.

Requests are checked and prepared in the thread that reads messages. Those with a grammar or with
bad words are prepared in threads of their own (`preparation`), because that takes time. The engine's
loop only gets valid requests. A request whose abort arrives before the loop has submitted it is never
submitted: clients that come and leave at once cost the loop nothing.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.core.cancel_token import Cancelled, CancelToken
from holdfast.core.request import Request
from holdfast.core.results import RequestOutput
from holdfast.core.sampling_params import params_from_json
from holdfast.engine.engine import Engine
from holdfast.engine.loop import EngineLoop
from holdfast.engine.tracer import Tracer
from holdfast.errors import HoldfastError
from holdfast.server.ipc import messages as m
from holdfast.server.ipc.pass_record import PassRecord
from holdfast.server.ipc.preparation import Preparation

_log = logging.getLogger("holdfast.engine")


class EngineServer:
    """Serves one engine. All methods but `handle` and `close` run in the engine's thread."""

    def __init__(
        self, engine: Engine, send: Callable[[m.FromEngine], None], record: PassRecord | None = None
    ) -> None:
        """record is memory that the frontend can read if this process dies."""
        self.worker = EngineLoop(engine, self._deliver)
        self._engine = engine
        self._send = send
        self._preparation = Preparation(engine, self._prepare)
        self._preparing: set[int] = set()
        self._aborted: set[int] = set()  # while they were prepared
        self._withdrawn: set[int] = set()  # aborts that were read and not handled yet; all threads
        self._arrived: dict[int, float] = {}  # when, of those in the queue
        self._step_ended = 0.0  # the last step, so the next one began then
        self._revocation_sent = False
        self._certificate_state = engine.certificate_state  # as the frontend knows it
        self._record = record
        self._pass_began: float | None = None
        self._longest_step = 0.0
        if record is not None:
            engine.before_pass = self._before_pass

    def handle(self, message: m.ToEngine) -> None:
        """Handle one message, in the reader's thread."""
        if isinstance(message, m.Submit):
            self.worker.post(lambda: self._preparing.add(message.request_id))
            self._preparation.start(message)
        elif isinstance(message, m.Abort):
            if self._preparation.cancel(message.request_id):
                self.worker.post(lambda: self._preparing.discard(message.request_id))
            else:
                self._withdrawn.add(message.request_id)
                self.worker.post(lambda: self._abort(message.request_id))
        elif isinstance(message, m.SetTracing):
            self.worker.post(lambda: self._set_tracing(message.on))
        elif isinstance(message, m.GetStatus):
            self.worker.post(lambda: self._send(m.StatusReport(self._engine.status)))
        else:
            self.worker.stop()

    def close(self) -> None:
        """Prepare nothing more."""
        self._preparation.close()

    def _prepare(self, message: m.Submit, token: CancelToken) -> None:
        """Make the request, or refuse it. An error in it affects no other request."""
        arrived = time.monotonic()
        try:
            request = self._engine.prepare(
                message.prompt_ids,
                params_from_json(message.settings),
                completion=message.completion_ids,
                pooling=message.pooling,
                echo_text=message.echo_text,
                want_receipt=message.want_receipt,
                request_id=message.request_id,
                cache_salt=message.cache_salt,
                tenant=message.tenant,
                max_running=message.max_running,
                token=token,
                sent=message.sent,
            )
        except Cancelled:
            self.worker.post(lambda: self._forget(message.request_id))
        except HoldfastError as error:
            refused = m.Refused(message.request_id, error.code, str(error))
            self.worker.post(lambda: self._refuse(refused))
        except Exception:
            _log.exception("request %d could not be prepared", message.request_id)
            refused = m.Refused(message.request_id, HoldfastError.code, "the request could not be prepared")
            self.worker.post(lambda: self._refuse(refused))
        else:
            self.worker.post(lambda: self._submit(request, arrived))

    def _forget(self, request_id: int) -> None:
        """The request was aborted, and so was its preparation."""
        self._preparing.discard(request_id)
        self._aborted.discard(request_id)

    def _refuse(self, refused: m.Refused) -> None:
        if not self._was_aborted(refused.request_id):
            self._send(refused)

    def _submit(self, request: Request, arrived: float) -> None:
        if self._was_aborted(request.request_id) or request.request_id in self._withdrawn:
            return
        try:
            self._engine.submit(request)
        except HoldfastError as error:
            self._send(m.Refused(request.request_id, error.code, str(error)))
            return
        self._arrived[request.request_id] = arrived
        self._send(m.Accepted(request.request_id, request.seed))

    def _was_aborted(self, request_id: int) -> bool:
        """A request is prepared; whether it was aborted meanwhile."""
        self._preparing.discard(request_id)
        if request_id not in self._aborted:
            return False
        self._aborted.discard(request_id)
        return True

    def _abort(self, request_id: int) -> None:
        self._withdrawn.discard(request_id)
        if request_id in self._preparing:
            self._aborted.add(request_id)
        elif outputs := self._engine.abort(request_id):
            self._deliver(outputs)

    def _set_tracing(self, on: bool) -> None:
        self._engine.tracer = Tracer(self._engine) if on else None
        self._deliver(())  # sends the first trace, also of an idle engine

    def _deliver(self, outputs: Sequence[RequestOutput]) -> None:
        """Send the outputs of a step as one message."""
        started = self._note_started() if self._arrived else ()
        if started or outputs:
            sent = tuple([one if one.result is None else self._finish(one) for one in outputs])
            self._send(m.StepOutput(started, sent))
        if self._engine.tracer is not None:
            for trace in self._engine.tracer.take():
                self._send(m.StepTraced(trace))
        if self._certificate_state.name == "certifying":
            self._send_certificate_state()
        if self._engine.revocation is not None and not self._revocation_sent:
            self._revocation_sent = True
            self._send(m.Revoked(self._engine.revocation))
        self._step_ended = time.monotonic()
        if self._pass_began is not None:
            self._note_step(self._step_ended - self._pass_began)
            self._pass_began = None

    def _before_pass(self) -> None:
        assert self._record is not None
        self._record.write_running(self._engine.scheduler.running_ids)
        if self._pass_began is None:
            self._pass_began = time.monotonic()

    def _note_step(self, seconds: float) -> None:
        if seconds > self._longest_step and self._record is not None:
            self._longest_step = seconds
            self._record.write_longest_step(seconds)

    def _send_certificate_state(self) -> None:
        """Of a certificate that is made while the engine serves, if it changed."""
        engine = self._engine
        state = engine.certificate_state
        if state != self._certificate_state:
            self._certificate_state = state
            certificate = None if engine.certificate is None else engine.certificate.as_dict()
            self._send(m.CertificateChanged(state, engine.limits.refusal, certificate))

    def _note_started(self) -> tuple[m.Started, ...]:
        """The requests that left the queue in this step.

        One that arrived during the step did not wait.
        """
        waiting = self._engine.scheduler.waiting_ids
        started = [request_id for request_id in self._arrived if request_id not in waiting]
        return tuple(
            m.Started(request_id, max(0.0, self._step_ended - self._arrived.pop(request_id)))
            for request_id in started
        )

    def _finish(self, output: RequestOutput) -> RequestOutput:
        """A request's last output. The frontend has the prompt and the choices already."""
        assert output.result is not None
        self._arrived.pop(output.request_id, None)
        return output._replace(result=replace(output.result, prompt_token_ids=(), choices=()))
