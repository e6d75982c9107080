"""When garbage is collected: rarely while a batch of requests runs, not while a model is loaded or a
CUDA graph is captured.

A full collection visits every object of the process, which takes a tenth of a second and more once
torch is imported, and a batch makes enough objects for several of them. Objects that existed before
the batch cannot become garbage because of it, so they are frozen: the collector visits only newer
ones. These are results for the most part, which stay, so it also visits them less often. Afterwards
objects are collected as usual. A process that froze its objects itself, as our server does, is left
alone; an interpreter that starts with a few frozen objects has not done that.
"""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_MANY_OBJECTS = 20_000  # fewer than an import of torch makes
_THRESHOLD = 20_000  # new objects between two collections; the interpreter's own is about 700
_process_froze = False  # its objects itself: counted once, as many take 20 ms
_usual_threshold = gc.get_threshold()
_batches: set[object] = set()  # that run now; the first one freezes, the last one unfreezes
_lock = threading.RLock()  # a finaliser may run a batch


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Freeze the objects that exist now, until the last of all threads leaves. An interrupt may come
    at any line."""
    global _process_froze
    _process_froze = _process_froze or (not _batches and gc.get_freeze_count() >= _MANY_OBJECTS)
    if not gc.isenabled() or _process_froze:
        yield
        return
    batch = object()
    try:
        with _lock:
            _enter(batch)
        yield
    finally:
        with _lock:
            _leave(batch)


def _enter(batch: object) -> None:
    global _usual_threshold
    if not _batches:
        _usual_threshold = gc.get_threshold()
    _batches.add(batch)
    gc.freeze()
    gc.set_threshold(max(_usual_threshold[0], _THRESHOLD), *_usual_threshold[1:])


def _leave(batch: object) -> None:
    _batches.discard(batch)
    if not _batches:
        gc.set_threshold(*_usual_threshold)
        gc.collect()  # of the newer objects; otherwise one of all objects would be due at once
        gc.unfreeze()


@contextmanager
def paused_collection() -> Iterator[None]:
    """No garbage collection. While a model is loaded, modules and weights are made, and all stay:
    importing torch alone makes enough objects for hundreds of collections. Reference counts free the
    rest."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
