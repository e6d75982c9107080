"""Keeps full garbage collections short while a batch of requests runs.

A full collection visits every object of the process, which takes a tenth of a second and more once
torch is imported, and a batch makes enough objects for several of them. Objects that existed before
the batch cannot become garbage because of it, so they are frozen: the collector visits only newer
ones. Afterwards they are collected as usual. A process that froze its objects itself, as our server
does, is left alone; an interpreter that starts with a few frozen objects has not done that.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_MANY_OBJECTS = 20_000  # fewer than an import of torch makes
_frozen_here = False  # also after an interrupt that skipped the end: the next caller repairs it


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Freeze the objects that exist now. Several threads may enter; the first that leaves unfreezes."""
    global _frozen_here
    if not gc.isenabled() or not (_frozen_here or gc.get_freeze_count() < _MANY_OBJECTS):
        yield
        return
    _frozen_here = True
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        _frozen_here = False
