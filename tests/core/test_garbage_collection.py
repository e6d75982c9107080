"""The heap is frozen while batches run, and collected as usual afterwards."""

import gc
from collections.abc import Iterator

import pytest

from holdfast.core import garbage_collection
from holdfast.core.garbage_collection import frozen_heap


@pytest.fixture(autouse=True)
def process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The tests' conftest freezes."""
    monkeypatch.setattr(garbage_collection, "_process_froze", False)
    gc.unfreeze()
    yield
    gc.freeze()


def test_heap_is_frozen_until_the_last_batch_ends() -> None:
    threshold = gc.get_threshold()
    first, last = frozen_heap(), frozen_heap()
    first.__enter__()
    last.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_freeze_count() > 1000 and gc.get_threshold()[0] > threshold[0]
    last.__exit__(None, None, None)
    assert gc.get_freeze_count() == 0 and gc.get_threshold() == threshold


def test_few_frozen_objects_are_the_interpreters(monkeypatch: pytest.MonkeyPatch) -> None:
    count = gc.get_freeze_count
    monkeypatch.setattr(gc, "get_freeze_count", lambda: count() + 400)  # as some interpreters start
    with frozen_heap():
        assert count() > 1000


def test_what_the_process_froze_itself_stays_frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.freeze()
    before = gc.get_freeze_count()
    with frozen_heap():
        pass
    assert before - 100 < gc.get_freeze_count() <= before
    monkeypatch.delattr(gc, "get_freeze_count")  # counting all of them takes long
    with frozen_heap():
        pass
