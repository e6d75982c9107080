"""What an engine prepares beside its requests: captured graphs and its certificate.

    certifier -> certificate -> revocation

While there is a `certifier`, deterministic requests are verified and checks run between steps. A
complete certificate is adopted between two plans. A spot check that finds other bits revokes it.
"""

import logging
from collections.abc import Callable

from holdfast.certification.certificate import Certificate, delete_certificate
from holdfast.certification.certification import Progress
from holdfast.engine.certifier import Certifier
from holdfast.engine.status import CertificateState, CertificateStateName
from holdfast.scheduler.scheduler import Scheduler

_log = logging.getLogger(__name__)


class BackgroundWork:
    """The certificate of one engine, from its first check to its revocation, and its warm-up."""

    def __init__(self, certificate: Certificate | None, certifier: Certifier | None) -> None:
        """certifier makes the certificate while the engine serves, if there is none yet."""
        self.certificate = certificate
        self.certifier = certifier
        self.revocation: str | None = None  # why the certificate was revoked, if it was
        self.warm_up: Callable[[], bool] | None = None  # prepares one more thing; False: nothing is left

    @property
    def is_left(self) -> bool:
        """Whether there are graphs to capture, or a certificate to make or to adopt."""
        is_certifying = self.certifier is not None and self.certifier.failure is None
        return is_certifying or self.warm_up is not None

    @property
    def is_complete(self) -> bool:
        """Whether a certificate waits to be adopted."""
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

    def interrupt(self) -> None:
        """Give back all pages."""
        if self.certifier is not None:
            self.certifier.interrupt()

    def certify(self, scheduler: Scheduler, *, is_idle: bool) -> None:
        """A slice of the certification, between two steps."""
        if self.certifier is not None:
            if scheduler.lacks_lent_pages:
                self.certifier.interrupt()
            self.certifier.work(is_idle=is_idle)

    def finish_certificate(self, progress: Progress | None) -> None:
        """Make the certificate now, if there is none yet. It is not adopted."""
        if self.certifier is not None:
            self.certifier.finish(progress)

    def adopt(self, scheduler: Scheduler) -> Certificate | None:
        """A complete certificate, used from now on. Nothing may be in flight. The bits stay the same."""
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
        """An error must not end an idle engine: what is missing is prepared when it is needed."""
        assert self.warm_up is not None
        try:
            if not self.warm_up():
                self.warm_up = None
        except Exception:
            _log.exception("the engine could not be warmed up; its first passes take longer")
            self.warm_up = None
