"""Makes the certificate of an engine that already serves: in slices between its steps.

Until the certificate is complete, deterministic requests are verified: the bits are those of the
reference, before and after. While requests run, slices are short and take a share of the time; an
idle engine works in longer ones. The check of whole passes borrows free pages of the KV cache, and
gives them back as soon as a request lacks pages; then it starts again later.
"""

import logging
import time
from collections.abc import Callable, Sequence

from holdfast.certification.certificate import Certificate
from holdfast.certification.certification import Certification, Progress
from holdfast.scheduler.scheduler import Scheduler

_log = logging.getLogger(__name__)

_SHARE = 0.25  # of the time while requests run
_BUSY_SECONDS = 0.02  # of a slice between two steps
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
        self._pages.scheduler = scheduler

    def interrupt(self) -> None:
        """Give back all pages. The check at work starts again later."""
        self._certification.interrupt()
        self._pages.is_waiting = False

    def work(self, *, is_idle: bool) -> None:
        """One slice, unless running requests have the time now. An error ends the certification:
        everything stays verified."""
        started = time.monotonic()
        if not self.is_at_work or (not is_idle and started < self._next_slice):
            return
        try:
            self._certification.advance(_IDLE_SECONDS if is_idle else _BUSY_SECONDS)
        except Exception as error:
            self.failure = f"{type(error).__name__}: {error}"
            _log.exception("the certification failed; every deterministic answer is verified")
        now = time.monotonic()
        pause = _PAGES_SECONDS if self._pages.is_waiting else (now - started) * (1 / _SHARE - 1)
        self._next_slice = now + pause

    def finish(self, progress: Progress | None = None) -> Certificate:
        """Make the certificate now. Raises what a check raises."""
        return self._certification.finish(progress)
