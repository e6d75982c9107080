"""Makes the certificate of an engine: before its first request, or in slices between its steps.

In slices, deterministic requests are verified until the certificate is complete: the bits are those
of the reference, before and after. While requests run, slices are short and take a share of the time;
an idle engine works in longer ones. The check of whole passes borrows free pages of the KV cache, and
gives them back as soon as a request lacks pages; then it starts again later.
"""

import logging
import time
from collections.abc import Callable, Sequence

from holdfast.certification.certificate import Certificate
from holdfast.certification.certification import Certification, Progress
from holdfast.certification.checks.passes import PageLender
from holdfast.scheduler.scheduler import Scheduler

_log = logging.getLogger(__name__)

SHARE = 0.07  # of the time while requests run
_BUSY_SECONDS = 0.05  # of a slice between two steps
_PAGES_SECONDS = 1.0  # until pages are asked for again
_IDLE_SECONDS = 0.1  # so long may a new request wait


class SpareKVPages:
    """Lends pages of the KV cache that no request uses (`PageLender`)."""

    def __init__(self) -> None:
        self.scheduler: Scheduler | None = None  # of the engine that runs
        self.is_waiting = False  # too few pages were free

    def lend(self, num_wanted: int) -> Sequence[int]:
        assert self.scheduler is not None
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
        pages: PageLender,
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
        """The certificate, once it is complete."""
        return self._certification.certificate

    @property
    def progress(self) -> tuple[int, int]:
        """(checks done, in all)."""
        return self._certification.progress

    @property
    def is_at_work(self) -> bool:
        return self.failure is None and self.certificate is None

    def attach(self, scheduler: Scheduler) -> None:
        """Borrow pages from this scheduler from now on. Nothing may be borrowed from another."""
        self.interrupt()
        if isinstance(self._pages, SpareKVPages):
            self._pages.scheduler = scheduler

    def interrupt(self) -> None:
        """Give back all pages. The check at work starts again later."""
        self._certification.interrupt()
        if isinstance(self._pages, SpareKVPages):
            self._pages.is_waiting = False

    def work(self, *, is_idle: bool) -> None:
        """Run one slice, unless running requests have the time now."""
        if not self.is_at_work or (not is_idle and time.monotonic() < self._next_slice):
            return
        seconds = self._run(lambda: self._certification.advance(_IDLE_SECONDS if is_idle else _BUSY_SECONDS))
        is_waiting = isinstance(self._pages, SpareKVPages) and self._pages.is_waiting
        self._next_slice = time.monotonic() + (_PAGES_SECONDS if is_waiting else seconds * (1 / SHARE - 1))

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
