"""What an engine prepares beside its requests: captured graphs and its certificate.

    certification -> certificate -> revocation

A certificate is made before the first request, or in slices between steps. Until it is complete,
deterministic requests are verified: the bits are those of the reference, before and after. While
requests run, slices are short and take a share of the time; an idle engine works in longer ones. The
check of whole passes borrows free pages of the KV cache, and gives them back as soon as a request
lacks pages; then it starts again later. A complete certificate is adopted between two plans. A spot
check that finds other bits revokes it.
"""

import logging
import time
from collections.abc import Callable, Sequence

from holdfast.certification.certificate import Certificate, delete_certificate
from holdfast.certification.certification import AllPages, Certification, Progress
from holdfast.engine.status import CertificateState, CertificateStateName
from holdfast.scheduler.scheduler import Scheduler

_log = logging.getLogger(__name__)

SHARE = 0.07  # of the time while requests run
_BUSY_SECONDS = 0.05  # of a slice between two steps
_PAGES_SECONDS = 1.0  # until pages are asked for again
_IDLE_SECONDS = 0.1  # so long may a new request wait


class SpareKVPages(AllPages):
    """Lends pages of the KV cache that no request uses. Before there is a scheduler, those are all."""

    scheduler: Scheduler | None = None  # of the engine that runs
    is_waiting = False  # too few pages were free

    def lend(self, num_wanted: int) -> Sequence[int]:
        if self.scheduler is None:
            return super().lend(num_wanted)
        pages = self.scheduler.lend_pages(num_wanted)
        self.is_waiting = not pages
        return pages

    def take_back(self) -> None:
        if self.scheduler is not None:
            self.scheduler.take_back_pages()


class BackgroundWork:
    """The certificate of one engine, from its first check to its revocation, and its warm-up."""

    def __init__(
        self,
        certificate: Certificate | None = None,
        certification: Certification | None = None,
        pages: SpareKVPages | None = None,
        padded_sizes: Callable[[Sequence[int]], tuple[int, ...]] = tuple,
    ) -> None:
        """certification makes the certificate while the engine serves, if there is none yet. It borrows
        pages. padded_sizes: which certified sizes passes are padded to."""
        self.certificate = certificate
        self.failure: str | None = None  # why there will be no certificate
        self.revocation: str | None = None  # why the certificate was revoked, if it was
        self.warm_up: Callable[[], bool] | None = None  # prepares one more thing; False: nothing is left
        self.warms_up_busy = False  # also between the steps of requests, in a share of the time
        self._certification = certification  # until its certificate is adopted
        self._pages = pages or SpareKVPages(0)
        self._padded_sizes = padded_sizes
        self._next_slice = 0.0
        self._next_warm_up = 0.0

    @property
    def is_left(self) -> bool:
        """Return whether there are graphs to capture, or a certificate to make or to adopt."""
        return self._is_certifying or self.is_complete or self.warm_up is not None

    @property
    def is_complete(self) -> bool:
        """Return whether there is a certificate to adopt."""
        return self._certification is not None and self._certification.certificate is not None

    @property
    def _is_certifying(self) -> bool:
        return self._certification is not None and self.failure is None and not self.is_complete

    @property
    def state(self) -> CertificateState:
        """Where the certificate stands, as clients see it."""
        if self.revocation is not None:
            return CertificateState("revoked")
        if self._certification is not None:
            name: CertificateStateName = "certifying" if self.failure is None else "failed"
            num_done, num_checks = self._certification.progress
            return CertificateState(name, min(num_done, num_checks), num_checks)
        if self.certificate is None:
            return CertificateState("none")
        return CertificateState("certified" if self.certificate.refusal is None else "refused")

    def attach(self, scheduler: Scheduler) -> None:
        """Borrow pages from this scheduler from now on, and give back those of another."""
        self._interrupt()
        self._pages.scheduler = scheduler

    def work_between_steps(self, scheduler: Scheduler) -> None:
        """Do a part of it, in a share of the time, while requests run: graphs after the certificate."""
        if self._is_certifying:
            self.certify(scheduler, is_idle=False)
        elif self.warms_up_busy and self.warm_up is not None and time.monotonic() >= self._next_warm_up:
            started = time.monotonic()
            self.warm_up_next()
            now = time.monotonic()
            self._next_warm_up = now + _pause_after(now - started)

    def certify(self, scheduler: Scheduler, *, is_idle: bool) -> None:
        """Run one slice of the certification, unless running requests have the time now."""
        certification = self._certification
        if certification is None or not self._is_certifying:
            return
        if scheduler.lacks_lent_pages:
            self._interrupt()
        if not is_idle and time.monotonic() < self._next_slice:
            return
        seconds = self._run(lambda: certification.advance(_IDLE_SECONDS if is_idle else _BUSY_SECONDS))
        pause = _PAGES_SECONDS if self._pages.is_waiting else _pause_after(seconds)
        self._next_slice = time.monotonic() + pause

    def finish(self, progress: Progress | None = None) -> None:
        """Make the certificate now, if there is none yet."""
        certification = self._certification
        if certification is not None:
            self._run(lambda: certification.finish(progress))

    def _interrupt(self) -> None:
        """Give back all pages. The check at work starts again later."""
        if self._certification is not None:
            self._certification.interrupt()
            self._pages.is_waiting = False

    def _run(self, work: Callable[[], object]) -> float:
        """Run a part of the certification. Returns its seconds, without the wait for what is in flight.
        If it raises, there will be no certificate, and everything stays verified."""
        assert self._certification is not None
        self._certification.synchronize()
        started = time.monotonic()
        try:
            work()
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            _log.exception("the certification failed; every deterministic answer is verified")
        return time.monotonic() - started

    def adopt(self, scheduler: Scheduler) -> Certificate | None:
        """Use a complete certificate from now on, and return it. Nothing may be in flight. The bits stay
        the same."""
        if self._certification is None or self._certification.certificate is None:
            return None
        certificate = self.certificate = self._certification.certificate
        self._certification = None
        if certificate.refusal is not None:
            _log.error("deterministic requests are refused from now on: %s", certificate.refusal)
            return certificate
        scheduler.adopt(self._padded_sizes(certificate.sizes))
        _log.info(
            "certified in %.1f s: %d batch sizes give the reference's bits; %s",
            certificate.seconds,
            len(certificate.sizes),
            "their passes commit at once from now on"
            if scheduler.config.commits_at_once
            else "every deterministic answer is verified",
        )
        return certificate

    def revoke(self, mismatch: str) -> None:
        """Distrust the certificate, here and in later starts."""
        self.revocation = mismatch
        _log.error(
            "the certificate is revoked: a certified pass gave other bits than the reference (%s); from now on every "
            "deterministic answer is verified, and the running ones are verified from their prompts",
            mismatch,
        )
        certificate, self.certificate = self.certificate, None
        if certificate is not None:
            delete_certificate(certificate.key)

    def warm_up_next(self) -> None:
        """Prepare one more thing. An error must not end an idle engine: what is missing is prepared when it
        is needed."""
        assert self.warm_up is not None
        try:
            if not self.warm_up():
                self.warm_up = None
        except Exception:
            _log.exception("the engine could not be warmed up; its first passes take longer")
            self.warm_up = None


def _pause_after(seconds: float) -> float:
    """Return how long requests have all of the time after this work."""
    return seconds * (1 / SHARE - 1)
