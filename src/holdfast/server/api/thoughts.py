"""Thinking models: their fields in request bodies, and the `thoughts` in the `holdfast` object.

Responses of other models have no such field. Every thought has the index of its choice, so one list
serves all choices of all prompts. A stream sends each thought once, in the chunk before the tokens
that follow it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.core.results import Thought
from holdfast.server.api.schema.requests import ThinkingFields
from holdfast.server.call import Call
from holdfast.server.errors import ApiError


def require_thinking_model(call: Call, body: ThinkingFields) -> None:
    """Refuse fields that only a thinking model supports. `think: false` is accepted by every model."""
    if call.thinks:
        return
    for param, value in (("think", body.think), ("forced_thoughts", body.forced_thoughts)):
        if value:
            raise ApiError(
                400,
                f"{param} is only supported by thinking models, and this model is none; omit it",
                param=param,
                code="unsupported_value",
            )


def forced_thoughts(given: Mapping[str, Sequence[int]]) -> dict[int, Sequence[int]]:
    """Forced thoughts by chunk index. JSON keys are strings, so the indices are parsed."""
    for key in given:
        if not key.isascii() or not key.isdigit() or len(key) > 8 or key != str(int(key)):
            raise ApiError(
                400,
                'the keys of forced_thoughts must be chunk indices, as strings, such as "0" or "17"',
                param="forced_thoughts",
                code="invalid_value",
            )
    return {int(key): token_ids for key, token_ids in given.items()}


def all_thoughts(call: Call, by_choice: Iterable[Sequence[Thought]]) -> dict[str, Any]:
    """The field `thoughts` of a whole response; no field if the model does not think."""
    if not call.thinks:
        return {}
    return {"thoughts": [one for index, each in enumerate(by_choice) for one in _entries(index, each)]}


class ThoughtStream:
    """The thoughts that a stream has not sent yet."""

    def __init__(self) -> None:
        self._pending: list[dict[str, Any]] = []

    def add(self, index: int, thoughts: Sequence[Thought]) -> None:
        self._pending += _entries(index, thoughts)

    def pop(self) -> dict[str, Any]:
        """The field `thoughts` with the pending thoughts; no field if there are none."""
        thoughts, self._pending = self._pending, []
        return {"thoughts": thoughts} if thoughts else {}

    def pop_object(self) -> dict[str, Any]:
        """The same, as the `holdfast` object of a chunk."""
        field = self.pop()
        return {"holdfast": field} if field else {}


def _entries(index: int, thoughts: Sequence[Thought]) -> list[dict[str, Any]]:
    return [
        {
            "index": index,
            "chunk": one.chunk,
            "position": one.position,
            "text": one.text,
            "token_ids": one.token_ids,
        }
        for one in thoughts
    ]
