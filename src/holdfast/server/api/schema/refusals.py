"""Refuses values that an API allows and this server does not have, with the reason."""

from collections.abc import Callable
from typing import Any, NoReturn

from pydantic import BeforeValidator, Discriminator
from pydantic_core import PydanticCustomError

from holdfast.server.http.validation_errors import UNSUPPORTED


def refuse(reason: str) -> NoReturn:
    """Raise the error, in a validator. reason completes a sentence that names the field."""
    raise PydanticCustomError(UNSUPPORTED, "{reason}", {"reason": reason})


def refuse_unless(is_supported: Callable[[Any], bool], reason: str) -> BeforeValidator:
    """A validator of one field. null is always supported: an omitted field."""

    def check(value: Any) -> Any:
        if value is not None and not is_supported(value):
            refuse(reason)
        return value

    return BeforeValidator(check)


def null_only(reason: str) -> BeforeValidator:
    """The validator of a field that may only be null."""
    return refuse_unless(lambda value: False, reason)


def by_type(kinds: dict[str, str], reason: str, *, default: str | None = None) -> Discriminator:
    """Chooses the variant of a union by the `type` of an object.

    kinds maps types to tags; default is the type of an object without one. Other types are refused
    for this reason. (pydantic's own discriminator requires a type, and cannot give a reason.)
    """

    def tag(value: Any) -> str | None:
        kind = value.get("type", default) if isinstance(value, dict) else getattr(value, "type", default)
        return kinds.get(kind) if isinstance(kind, str) else kinds.get(default or "")

    return Discriminator(tag, custom_error_type=UNSUPPORTED, custom_error_message=reason)
