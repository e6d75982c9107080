"""A certification: the checks of a certificate, run at once or in slices between other work.

    checks     [ qkv | o | gate_up | ... | attention | ... | pass ]     in one order, each pauses often
    slice      ──────►           one slice ends at the next pause after its time is over
    progress   [ qkv | o ]       finished checks are kept on disk: the next process continues here

A slice has the device to itself: nothing else is in flight when it starts, and it waits for its own
work before it ends. Until the certificate is complete nothing depends on it.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from holdfast.certification.certificate import (
    Certificate,
    CheckSteps,
    OperationCheck,
    certificate_key,
    run_check,
    save_certificate,
)
from holdfast.certification.checks.probes import clear_neighbours
from holdfast.errors import ConfigError
from holdfast.numerics.arrays import Device, arrays_on
from holdfast.numerics.cache_dir import cache_dir, read_json, remove, write_checked
from holdfast.numerics.settings_guard import our_settings
from holdfast.worker.transfer import DeviceStream

_log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]  # (checks done, in all)
Check = Callable[[], CheckSteps]
ListKernels = Callable[[], tuple[str, ...]]

_MAX_REPEATS = 100  # of slices in which another thread changed a setting


class AllPages:
    """Lends every page of a KV store, before any request runs."""

    def __init__(self, num_pages: int) -> None:
        self._num_pages = num_pages

    def lend(self, num_wanted: int) -> Sequence[int]:
        """Lend about `num_wanted` pages, or () if too few are free now."""
        return range(self._num_pages)

    def take_back(self) -> None:
        """Take back pages that are not used any more."""


class Certification:
    """Makes one certificate. `advance` runs the next slice, until `is_done`."""

    def __init__(
        self,
        subject: Mapping[str, object],
        make_checks: Callable[[], Sequence[Check]],
        sizes: tuple[int, ...],
        *,
        make_reference_checks: Callable[[], Sequence[Check]],
        block_rows: int | None,
        kernels: ListKernels | None = None,
        device: Device,
    ) -> None:
        """The checks are made when they are needed: their inputs take time and memory. block_rows: of the
        backend's capabilities. kernels lists the kernels of a pass, on a GPU."""
        self.key = certificate_key(subject)
        self.certificate: Certificate | None = None
        self._subject = subject
        self._make_checks = make_checks
        self._make_reference_checks = make_reference_checks
        self._known_checks: tuple[Check, ...] | None = None
        self._sizes, self._block_rows = sizes, block_rows
        self._list_kernels = kernels
        self._device = device
        self._kept = _load_progress(self.key)
        self._steps: CheckSteps | None = None  # of the check at work
        self._num_repeats = 0

    @property
    def is_done(self) -> bool:
        return self.certificate is not None

    @property
    def progress(self) -> tuple[int, int]:
        """(checks done, in all); in all is 0 until the first slice."""
        return len(self._done), len(self._known_checks or ())

    @property
    def _done(self) -> list[OperationCheck]:
        return self._kept.done

    @property
    def _checks(self) -> tuple[Check, ...]:
        if self._known_checks is None:
            self._known_checks = tuple(self._make_checks())
            if len(self._done) > len(self._known_checks):
                self._done.clear()  # not ours
        return self._known_checks

    def test_reference(self, progress: Progress | None = None) -> Certificate | None:
        """Run the reference's own test, before the first answer; once for all processes of this machine.
        If it fails, the certificate that says so; it is not kept."""
        if self._kept.is_reference_tested:
            return None
        started = time.monotonic()
        with our_settings(self._device), arrays_on(self._device).inference():
            done: list[OperationCheck] = []
            checks = self._make_reference_checks()
            for check in checks:
                done.append(run_check(check()))
                if progress is not None:
                    progress(len(done), len(checks))
        clear_neighbours()
        self._kept.is_reference_tested = True
        if all(0 not in check.sizes_differing for check in done):
            _save_progress(self._kept)
            return None
        return certify(self._subject, done, self._sizes, self._block_rows, seconds=time.monotonic() - started)

    def finish(self, progress: Progress | None = None) -> Certificate:
        """Run all that is left."""
        while self.certificate is None:
            self.advance(None, progress)
        return self.certificate

    def advance(self, seconds: float | None, progress: Progress | None = None) -> None:
        """Run checks for about this time; None: to the end. The wait for what is in flight does not count.

        An exception discards what this slice did, and leaves the certification usable.
        """
        if self.certificate is not None:
            return
        self.synchronize()
        started = time.monotonic()
        with arrays_on(self._device).inference():
            num_checks, num_before = len(self._checks), len(self._done)
        until = None if seconds is None else started + seconds
        try:
            with our_settings(self._device), arrays_on(self._device).inference():
                self._run(until, progress)
                self.synchronize()
        except BaseException as error:
            self.interrupt()
            del self._done[num_before:]
            if not isinstance(error, ConfigError) or self._num_repeats >= _MAX_REPEATS:
                raise
            self._num_repeats += 1  # the guard: another thread changed a setting during the slice
            return
        self._kept.seconds += time.monotonic() - started
        if len(self._done) == num_checks:
            self._complete()
        elif len(self._done) > num_before:
            _save_progress(self._kept)

    def interrupt(self) -> None:
        """End the check at work; it will start again. It gives back what it borrowed."""
        steps, self._steps = self._steps, None
        if steps is not None:
            with arrays_on(self._device).inference():
                steps.close()

    def _run(self, until: float | None, progress: Progress | None) -> None:
        """Run checks until this time, or until all are done."""
        while len(self._done) < len(self._checks):
            if self._steps is None:
                self._steps = self._checks[len(self._done)]()
            try:
                next(self._steps)
            except StopIteration as end:
                self._steps = None
                self._done.append(end.value)
                if progress is not None:
                    progress(*self.progress)
            if until is not None:
                self.synchronize()  # on a GPU the work is only enqueued
                if time.monotonic() >= until:
                    return

    def _complete(self) -> None:
        clear_neighbours()
        kernels = () if self._list_kernels is None else self._list_kernels()
        made = certify(
            *(self._subject, self._done, self._sizes, self._block_rows),
            kernels=kernels,
            seconds=self._kept.seconds,
        )
        save_certificate(made)
        _delete_progress(self.key)
        self._known_checks = ()  # they hold inputs and weights
        self.certificate = made

    def synchronize(self) -> None:
        """Wait until nothing is in flight on the device."""
        if self._device.type == "cuda":
            DeviceStream(self._device).wait()


def certify(
    subject: Mapping[str, object],
    done: Sequence[OperationCheck],
    sizes: tuple[int, ...],
    block_rows: int | None,
    *,
    kernels: tuple[str, ...] = (),
    seconds: float,
) -> Certificate:
    """Return the certificate of these checks. A size is certified if no check differs at it; size 0 means the
    reference itself differs. Sizes above `block_rows` stand for each other."""
    differing = {size for check in done for size in check.sizes_differing}
    if block_rows is not None and max(differing, default=0) > block_rows:
        differing |= {size for size in sizes if size > block_rows}
    broken = [check.name for check in done if 0 in check.sizes_differing]
    refusal = (
        "on this machine the reference pass does not repeat its own bits for "
        f"{', '.join(broken[:3])}, so no answer can be guaranteed"
        if broken
        else None
    )
    return Certificate(
        key=certificate_key(subject),
        subject=subject,
        sizes=() if broken else tuple(size for size in sizes if size not in differing),
        checks=tuple(done),
        refusal=refusal,
        seconds=round(seconds, 3),
        kernels=kernels,
    )


# Progress on disk. Each check stands for itself, so that another process can continue.


@dataclass
class _KeptProgress:
    """What earlier processes have done of the certificate with this key."""

    key: str
    is_reference_tested: bool = False
    done: list[OperationCheck] = field(default_factory=list)
    seconds: float = 0.0


def _load_progress(key: str) -> _KeptProgress:
    kept = read_json(_path(key), _KeptProgress)
    return kept if kept is not None and kept.key == key else _KeptProgress(key)


def _save_progress(progress: _KeptProgress) -> None:
    try:
        write_checked(_path(progress.key), msgspec.json.encode(progress))
    except OSError as error:
        _log.debug("the progress of the certification could not be kept: %s", error)


def _delete_progress(key: str) -> None:
    with suppress(OSError):
        remove(_path(key))


def _path(key: str) -> Path:
    return cache_dir() / "certificates" / "unfinished" / f"{key}.json"
