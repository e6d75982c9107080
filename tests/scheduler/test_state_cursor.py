"""Where the state of a request is written."""

from holdfast.core.step_plan import SpanState
from holdfast.kv_cache.state_pool import StatePool
from holdfast.scheduler.state_cursor import StateCursor


def decode(cursor: StateCursor, start: int, stop: int) -> list[int]:
    """Return where the checkpoint is after each token."""
    found = []
    for position in range(start, stop):
        span: SpanState = cursor.span(position, position + 1, position + 1)
        cursor.advance(span)
        found.append(span.store)
    return found


def test_a_state_is_written_every_few_tokens_while_many_requests_run() -> None:
    pool = StatePool(40, max_running=20, stride=4)
    cursor = StateCursor(pool, 16, 0, ())
    cursor.start(None, 0)
    others = [pool.take() for _ in range(15)]
    cursor.advance(cursor.span(0, 10, 10))
    assert decode(cursor, 10, 22) == [10, 10, 10, 14, 14, 16, 16, 16, 16, 20, 20, 20]  # 16 is an edge
    pool.drop(others.pop())
    assert decode(cursor, 22, 24) == [23, 24]


def test_candidates_move_no_state() -> None:
    pool = StatePool(2, max_running=1)
    cursor = StateCursor(pool, 0, 0, ())
    cursor.start(None, 0)
    assert cursor.span(0, 9, 5).store == 5
    cursor.advance(cursor.span(0, 9, 5))
    assert (cursor.span(5, 12, 0).checkpoint, cursor.span(5, 12, 0).store) == (5, 5)
