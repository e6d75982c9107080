"""A field that is one prompt or a batch of prompts, each a text or token ids."""

from collections.abc import Sequence

from holdfast.server.errors import ApiError


def prompt_list(
    value: str | Sequence[int] | Sequence[str] | Sequence[list[int]], max_prompts: int, param: str
) -> list[str | list[int]]:
    """The list of prompts. A list of numbers is one prompt. param is the field's name."""
    if isinstance(value, str):
        return [value]
    if not value:
        message = f"{param} is empty; it must have at least one token"
        raise ApiError(400, message, param=param, code="invalid_value")
    if isinstance(value[0], int):
        return [[one for one in value if isinstance(one, int)]]
    if len(value) > max_prompts:
        message = f"{param} has {len(value)} prompts; at most {max_prompts} are allowed"
        raise ApiError(400, message, param=param, code="invalid_value")
    return [one for one in value if not isinstance(one, int)]
