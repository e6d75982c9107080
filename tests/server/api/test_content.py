"""A choice's deltas become blocks: texts and calls that open, grow and close in order."""

from collections.abc import Sequence

from holdfast.core.step_plan import TokenLogprob
from holdfast.server.api.content import (
    BlockEvent,
    CallBlock,
    Closed,
    ContentBlocks,
    Grown,
    Opened,
    TextBlock,
)
from holdfast.server.tools.deltas import ChoiceDelta, ContentDelta, ToolCallDelta


def logprob(token_id: int) -> TokenLogprob:
    return TokenLogprob(token_id, -1.0, ())


def names(events: Sequence[BlockEvent]) -> list[tuple[str, int]]:
    return [(type(event).__name__, event.block.index) for event in events]


def call(index: int, arguments: str, id_: str | None = None) -> ToolCallDelta:
    return ToolCallDelta(index, arguments, id_, None if id_ is None else "f")


def test_text_is_one_block() -> None:
    blocks = ContentBlocks()
    first = blocks.add([ContentDelta("a")], [logprob(1)])
    second = blocks.add([ContentDelta("b")], [logprob(2)])
    end = blocks.finish(is_truncated=False)
    assert names([*first, *second, *end]) == [("Opened", 0), ("Grown", 0), ("Grown", 0), ("Closed", 0)]
    (block,) = blocks.blocks
    assert isinstance(block, TextBlock) and block.text == "ab" and block.is_complete
    assert [one.token_id for one in block.logprobs] == [1, 2]


def test_text_between_calls_keeps_its_place() -> None:
    blocks = ContentBlocks()
    deltas: list[ChoiceDelta] = [
        ContentDelta("a"),
        call(0, "", "x"),
        call(0, "{}"),
        ContentDelta("b"),
        call(1, "{}", "y"),
    ]
    events = [event for delta in deltas for event in blocks.add([delta], ())]
    events += blocks.finish(is_truncated=False)
    assert names(events) == [
        *(("Opened", 0), ("Grown", 0), ("Closed", 0)),
        *(("Opened", 1), ("Grown", 1), ("Closed", 1)),
        *(("Opened", 2), ("Grown", 2), ("Closed", 2)),
        *(("Opened", 3), ("Grown", 3), ("Closed", 3)),
    ]
    shown = [one.text if not isinstance(one, CallBlock) else (one.id, one.text) for one in blocks.blocks]
    assert shown == ["a", ("x", "{}"), "b", ("y", "{}")]


def test_empty_choice_has_an_empty_text() -> None:
    blocks = ContentBlocks()
    assert blocks.add([], [logprob(0)]) == []
    assert names(blocks.finish(is_truncated=False)) == [("Opened", 0), ("Closed", 0)]
    (block,) = blocks.blocks
    assert isinstance(block, TextBlock) and block.text == "" and len(block.logprobs) == 1


def test_only_the_last_block_is_truncated() -> None:
    blocks = ContentBlocks()
    blocks.add([ContentDelta("a"), call(0, '{"b', "x")], ())
    events = blocks.finish(is_truncated=True)
    text, last = blocks.blocks
    assert isinstance(events[-1], Closed) and events[-1].block is last
    assert text.is_complete and isinstance(last, CallBlock) and not last.is_complete


def test_logprobs_of_calls_are_not_those_of_text() -> None:
    """Tokens arrive before the parser has decided what their text is."""
    blocks = ContentBlocks()
    blocks.add([ContentDelta("a")], [logprob(1)])
    blocks.add([], [logprob(2)])
    blocks.add([call(0, "{}", "x")], [logprob(3)])
    (grown,) = [one for one in blocks.add([ContentDelta("b")], [logprob(4)]) if isinstance(one, Grown)]
    blocks.add([], [logprob(5)])
    blocks.finish(is_truncated=False)
    assert [one.token_id for one in grown.logprobs] == [4]
    kept = [
        [one.token_id for one in block.logprobs] for block in blocks.blocks if isinstance(block, TextBlock)
    ]
    assert kept == [[1], [4, 5]]


def test_opening_names_the_call() -> None:
    (opened,) = ContentBlocks().add([call(0, "", "x")], ())
    assert isinstance(opened, Opened) and isinstance(opened.block, CallBlock)
    assert (opened.block.id, opened.block.name) == ("x", "f")
