"""The fields that a model adds to requests and responses: those of thinking models. Only this module reads
and writes them.

A body has `think` and `forced_thoughts`. The `holdfast` object of a response has `thoughts`; responses of
other models have no such field. Every thought has the index of its choice, so one list serves all
choices of all prompts. A stream sends each thought once, in the chunk before the tokens that follow it.
"""

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.results import Delta, ThoughtIds
from holdfast.server.api.schema.objects import ThoughtInfo
from holdfast.server.api.schema.requests import ThinkingFields
from holdfast.server.call import Call
from holdfast.server.errors import ApiError, invalid_value
from holdfast.thinking.log import ShownChunk


def check_fields(call: Call, body: ThinkingFields) -> None:
    """Refuse fields that only a thinking model supports. `think: false` is accepted by every model."""
    if call.has_model_fields:
        return
    for param, value in (("think", body.think), ("forced_thoughts", body.forced_thoughts)):
        if value:
            raise ApiError(
                400,
                f"{param} is only supported by thinking models, and this model is none; omit it",
                param=param,
                code="unsupported_value",
            )


def read_fields(body: ThinkingFields) -> dict[str, Any]:
    """Return the sampling parameters of a body's fields."""
    given: dict[str, Any] = {} if body.think is None else {"think": body.think}
    if body.forced_thoughts is not None:
        given["forced_thoughts"] = {
            _chunk_index(key): token_ids for key, token_ids in body.forced_thoughts.items()
        }
    return given


def _chunk_index(key: str) -> int:
    if not key.isascii() or not key.isdigit() or len(key) > 8 or key != str(int(key)):
        raise invalid_value(
            "forced_thoughts", 'its keys must be chunk indices, as strings, such as "0" or "17"'
        )
    return int(key)


def shown_fields(extra: Sequence[Sequence[Any]], texts: Callable[[ThoughtIds], list[str]]) -> dict[str, Any]:
    """Return the fields of a request on the inspector page: the chunks of `ThoughtLog.shown`, with texts."""
    if not extra:
        return {}
    shown = [ShownChunk(*each) for each in extra]
    return {
        "chunks": [
            {
                **each._asdict(),
                "thought": None if each.thought is None else texts(tuple(each.thought)),
                "wrong": None if each.wrong is None else texts(tuple(each.wrong)),
            }
            for each in shown
        ]
    }


class ModelFields:
    """The fields of one response: of all its choices, and what a stream has not sent yet."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._entries: list[ThoughtInfo] = []
        self._num_sent = 0

    def add(self, delta: Delta, index: int | None = None) -> None:
        """Take a delta's. index: of its choice, if it is not the delta's own."""
        index = delta.index if index is None else index
        self._entries += [
            ThoughtInfo(index, one.chunk, one.position, one.text, one.token_ids) for one in delta.thoughts
        ]

    @property
    def has_unsent(self) -> bool:
        return self._num_sent < len(self._entries)

    def all(self) -> dict[str, Any]:
        """Return the fields of a whole response, by choice; none if the model does not think."""
        if not self._call.has_model_fields:
            return {}
        return {"thoughts": sorted(self._entries, key=lambda entry: entry.index)}

    def rest(self) -> dict[str, Any]:
        """Return the fields that were not sent yet; none if nothing is new."""
        unsent, self._num_sent = self._entries[self._num_sent :], len(self._entries)
        return {"thoughts": unsent} if unsent else {}

    def of_chunk(self) -> dict[str, Any]:
        """Return the same, as the `holdfast` object of a chunk."""
        return {"holdfast": self.rest()} if self.has_unsent else {}
