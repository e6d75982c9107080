"""What an engine prepares beside its requests: captured graphs and its certificate.

    certifier -> certificate -> revocation

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
from holdfast.certification.certification import Certification, Progress
from holdfast.certification.checks.passes import AllPages
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


class Certifier:
    """Runs a certification between the steps of one engine."""

    def __init__(
        self,
        certification: Certification,
        pages: SpareKVPages,
        padded_sizes: Callable[[Sequence[int]], tuple[int, ...]],
    ) -> None:
        """padded_sizes: which certified sizes passes are padded to."""
        self.padded_sizes = padded_sizes
        self.failure: str | None = None  # why there will be no certificate
        self._certification = certification
        self._pages = pages
        self._next_slice = 0.0

    @property
    def certificate(self) -> Certificate | None:
        return self._certification.certificate

    @property
    def progress(self) -> tuple[int, int]:
        return self._certification.progress

    @property
    def is_at_work(self) -> bool:
        return self.failure is None and self.certificate is None

    def attach(self, scheduler: Scheduler) -> None:
        """Borrow pages from this scheduler from now on. Nothing may be borrowed from another."""
        self.interrupt()
        self._pages.scheduler = scheduler

    def interrupt(self) -> None:
        """Give back all pages. The check at work starts again later."""
        self._certification.interrupt()
        self._pages.is_waiting = False

    def work(self, *, is_idle: bool) -> None:
        """Run one slice, unless running requests have the time now."""
        if not self.is_at_work or (not is_idle and time.monotonic() < self._next_slice):
            return
        seconds = self._run(lambda: self._certification.advance(_IDLE_SECONDS if is_idle else _BUSY_SECONDS))
        pause = _PAGES_SECONDS if self._pages.is_waiting else _pause_after(seconds)
        self._next_slice = time.monotonic() + pause

    def finish(self, progress: Progress | None = None) -> None:
        """Make the certificate now."""
        self._run(lambda: self._certification.finish(progress))

    def _run(self, work: Callable[[], object]) -> float:
        """Run a part of the certification. Returns its seconds, without the wait for what is in flight.
        If it raises, there will be no certificate, and everything stays verified."""
        self._certification.synchronize()
        started = time.monotonic()
        try:
            work()
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            _log.exception("the certification failed; every deterministic answer is verified")
        return time.monotonic() - started


def _pause_after(seconds: float) -> float:
    """Return how long requests have all of the time after this work."""
    return seconds * (1 / SHARE - 1)


class BackgroundWork:
    """The certificate of one engine, from its first check to its revocation, and its warm-up."""

    def __init__(self, certificate: Certificate | None, certifier: Certifier | None) -> None:
        """certifier makes the certificate while the engine serves, if there is none yet."""
        self.certificate = certificate
        self.certifier = certifier
        self.revocation: str | None = None  # why the certificate was revoked, if it was
        self.warm_up: Callable[[], bool] | None = None  # prepares one more thing; False: nothing is left
        self.warms_up_busy = False  # also between the steps of requests, in a share of the time
        self._next_warm_up = 0.0

    @property
    def is_left(self) -> bool:
        """Return whether there are graphs to capture, or a certificate to make or to adopt."""
        is_certifying = self.certifier is not None and self.certifier.failure is None
        return is_certifying or self.warm_up is not None

    @property
    def is_complete(self) -> bool:
        return self.certifier is not None and self.certifier.certificate is not None

    @property
    def state(self) -> CertificateState:
        """Where the certificate stands, as clients see it."""
        if self.revocation is not None:
            return CertificateState("revoked")
        if self.certifier is not None:
            name: CertificateStateName = "certifying" if self.certifier.failure is None else "failed"
            num_done, num_checks = self.certifier.progress
            return CertificateState(name, min(num_done, num_checks), num_checks)
        if self.certificate is None:
            return CertificateState("none")
        return CertificateState("certified" if self.certificate.refusal is None else "refused")

    def attach(self, scheduler: Scheduler) -> None:
        """Borrow pages from this scheduler from now on, and give back those of another."""
        if self.certifier is not None:
            self.certifier.attach(scheduler)

    def work_between_steps(self, scheduler: Scheduler) -> None:
        """Do a part of it, in a share of the time, while requests run: graphs after the certificate."""
        if self.certifier is not None and self.certifier.is_at_work:
            self.certify(scheduler, is_idle=False)
        elif self.warms_up_busy and self.warm_up is not None and time.monotonic() >= self._next_warm_up:
            started = time.monotonic()
            self.warm_up_next()
            now = time.monotonic()
            self._next_warm_up = now + _pause_after(now - started)

    def certify(self, scheduler: Scheduler, *, is_idle: bool) -> None:
        if self.certifier is not None:
            if scheduler.lacks_lent_pages:
                self.certifier.interrupt()
            self.certifier.work(is_idle=is_idle)

    def adopt(self, scheduler: Scheduler) -> Certificate | None:
        """Use a complete certificate from now on, and return it. Nothing may be in flight. The bits stay
        the same."""
        certifier = self.certifier
        if certifier is None or certifier.certificate is None:
            return None
        certificate = self.certificate = certifier.certificate
        self.certifier = None
        if certificate.refusal is not None:
            _log.error("deterministic requests are refused from now on: %s", certificate.refusal)
            return certificate
        scheduler.adopt(certifier.padded_sizes(certificate.sizes))
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
