"""What a model that thinks adds to a completion: fields of the body, and thoughts in the `holdfast` object.

An answer of a plain model knows nothing of it. Every thought says of which choice it is, so that several choices, and those
of several prompts, can stand in one list. In a stream each is told once, in the chunk behind which its tokens come.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.core.results import Thought
from holdfast.server.api.schema.requests import ThinkingFields
from holdfast.server.call import Call
from holdfast.server.errors import ApiError


def require_thinker(call: Call, body: ThinkingFields) -> None:
    """Refuse what only a model that thinks could do. To think nothing is what a plain model does anyway."""
    if call.thinks:
        return
    for param, is_asked in (("think", body.think), ("forced_thoughts", body.forced_thoughts)):
        if is_asked:
            raise ApiError(
                400,
                f"{param} is for models that think, and this one does not; leave it out",
                param=param,
                code="unsupported_value",
            )


def forced_thoughts(given: Mapping[str, Sequence[int]]) -> dict[int, Sequence[int]]:
    """By the chunk's number, which JSON can only write as text."""
    for key in given:
        if not key.isascii() or not key.isdigit() or len(key) > 8 or key != str(int(key)):
            raise ApiError(
                400,
                "the keys of forced_thoughts must be numbers of chunks, as text, such as 0 or 17",
                param="forced_thoughts",
                code="invalid_value",
            )
    return {int(key): token_ids for key, token_ids in given.items()}


def all_thoughts(call: Call, by_choice: Iterable[Sequence[Thought]]) -> dict[str, Any]:
    """The field `thoughts` of a whole response; no field for a plain model."""
    if not call.thinks:
        return {}
    return {"thoughts": [one for index, each in enumerate(by_choice) for one in _written(index, each)]}


class ThoughtStream:
    """Thoughts on their way into a stream."""

    def __init__(self) -> None:
        self._untold: list[dict[str, Any]] = []

    def add(self, index: int, thoughts: Sequence[Thought]) -> None:
        self._untold += _written(index, thoughts)

    def take(self) -> dict[str, Any]:
        """The field `thoughts` with those nobody was told of; no field where there are none."""
        told, self._untold = self._untold, []
        return {"thoughts": told} if told else {}

    def about(self) -> dict[str, Any]:
        """The same, as the `holdfast` object of a chunk."""
        told = self.take()
        return {"holdfast": told} if told else {}


def _written(index: int, thoughts: Sequence[Thought]) -> list[dict[str, Any]]:
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
