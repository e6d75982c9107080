"""Turns a pydantic `ValidationError` into one error in OpenAI's words: which field, what was
expected, what was sent. `refuse` is for values that an API allows and this server does not have.

Of all errors, the first field's is reported. In a union it is the deepest one, and of lists the one that
comes last, because that is the variant the client meant. At most a line of the client's own text is quoted.
"""

import json
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NoReturn, get_args

from pydantic import BeforeValidator, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError
from pydantic_core.core_schema import tagged_union_schema

from holdfast.engine.other_engines import answers
from holdfast.server.errors import ApiError

_UNSUPPORTED = "unsupported"  # the type of an error of our own
_MISSING = object()
_MAX_QUOTED = 64  # characters of a name or value

_EXPECTED = {
    "string_type": "a string",
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "a boolean",
    "list_type": "an array",
    "tuple_type": "an array",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "none_required": "null",
}
_BOUNDS = {
    "greater_than_equal": ("below minimum", ">=", "ge"),
    "greater_than": ("below minimum", ">", "gt"),
    "less_than_equal": ("above maximum", "<=", "le"),
    "less_than": ("above maximum", "<", "lt"),
}
_LENGTHS = {
    "too_short": ("too short", "minimum", "min_length"),
    "too_long": ("too long", "maximum", "max_length"),
    "string_too_short": ("too short", "minimum", "min_length"),
    "string_too_long": ("too long", "maximum", "max_length"),
}


class _FieldError:
    """One pydantic error and the value it is about."""

    def __init__(self, details: ErrorDetails, content: Any) -> None:
        self.kind = details["type"]
        self.context = details.get("ctx", {})
        self.message = details["msg"]
        self.value = content
        names: list[str] = []
        for part in details["loc"]:
            if _holds(self.value, part):
                self.value = self.value[part]
            elif self.kind == "missing" and part == details["loc"][-1]:
                self.value = _MISSING
            else:
                continue  # the name of a union's variant, which clients do not know
            names.append(f"[{part}]" if isinstance(part, int) else f".{_truncate(part)}")
        self.depth = len(names)
        self.items = [part for part in details["loc"] if isinstance(part, int)]
        self.top = names[0] if names else ""
        self.path = "".join(names).removeprefix(".")


def explain(raised: ValidationError, content: dict[str, Any]) -> ApiError:
    """Return the error that is reported to the client."""
    errors = [_FieldError(one, content) for one in raised.errors(include_url=False, include_input=False)]
    first = [error for error in errors if error.top == errors[0].top]
    deepest = max(error.depth for error in first)
    chosen = max((error for error in first if error.depth == deepest), key=lambda error: error.items)
    here = [error for error in first if error.path == chosen.path]
    # If one variant of a union has the right type, type errors of the others are irrelevant.
    reported = next((error for error in here if error.kind not in _EXPECTED), None)
    if reported is None:
        return wrong_type(
            chosen.path, list(dict.fromkeys(_EXPECTED[error.kind] for error in here)), chosen.value
        )
    bound = next((error for error in here if error.kind in _BOUNDS), None)
    return _explain_one(reported, also=bound)


def wrong_type(path: str | None, expected: Sequence[str], value: Any) -> ApiError:
    """Return an invalid type; `path` is None for the body itself."""
    where = "the body" if path is None else f"'{path}'"
    if len(expected) == 1:
        what = expected[0]
    else:
        what = f"one of {', '.join(expected[:-1])} or {expected[-1]}"
    message = f"Invalid type for {where}: expected {what}, but got {_kind_of(value)} instead."
    return ApiError(400, message, param=path, code="invalid_type")


def _explain_one(error: _FieldError, also: _FieldError | None = None) -> ApiError:
    """also: the bound of numbers that another variant of a union allows."""
    path, kind, context = error.path, error.kind, error.context
    if kind == "json_invalid":
        why = str(context["error"])
        if "hex escape" in why:  # only pydantic rejects it
            why = f"a lone surrogate at {why.rpartition(' at ')[2]}"
        return ApiError(400, f"The body is not valid JSON: {why}.", code="invalid_json")
    if kind == "extra_forbidden":
        hint = answers("fields").get(path)
        message = f"Unknown parameter: '{path}'" + (f"; {hint}." if hint else ".")
        return ApiError(400, message, param=path, code="unknown_parameter")
    if kind == "missing":
        message = f"Missing required parameter: '{path}'."
        return ApiError(400, message, param=path, code="missing_required_parameter")
    if kind == _UNSUPPORTED:
        message = f"Unsupported '{path}': {error.message}."
        return ApiError(400, message, param=path, code="unsupported_value")
    if kind in _BOUNDS:
        what, sign, name = _BOUNDS[kind]
        number = "integer" if isinstance(error.value, int) else "decimal"
        message = (
            f"Invalid '{path}': {number} {what} value. "
            f"Expected a value {sign} {_quote(context[name])}, but got {_quote(error.value)} instead."
        )
    elif kind in _LENGTHS:
        what, least_or_most, name = _LENGTHS[kind]
        one = _kind_of(error.value)
        message = (
            f"Invalid '{path}': {one.split()[-1]} {what}. Expected {one} with {least_or_most} length {context[name]}, "
            f"but got {one} with length {len(error.value)} instead."
        )
    elif kind in ("literal_error", "enum"):
        supported = context["expected"]
        if also is not None:
            _, sign, name = _BOUNDS[also.kind]
            supported += f", and numbers {sign} {_quote(also.context[name])}"
        message = f"Invalid value for '{path}': {_quote(error.value)}. Supported values are: {supported}."
    elif kind == "value_error":
        message = f"Invalid '{path}': {context['error']}" if path else str(context["error"])
    else:
        message = f"Invalid '{path}': {error.message[:1].lower()}{error.message[1:]}."
    return ApiError(400, message, param=path or None, code="invalid_value")


def _holds(value: Any, part: str | int) -> bool:
    if isinstance(value, list):
        return isinstance(part, int) and part < len(value)
    return isinstance(value, dict) and part in value


def _kind_of(value: Any) -> str:
    if value is None:
        return "null"
    for kind, name in (
        (bool, "a boolean"),
        (int, "an integer"),
        (float, "a decimal number"),
        (str, "a string"),
        (list, "an array"),
    ):
        if isinstance(value, kind):
            return name
    return "an object"


def _truncate(text: str) -> str:
    return text if len(text) <= _MAX_QUOTED else text[:_MAX_QUOTED] + "..."


def _quote(value: Any) -> str:
    """Return a number or a string, as in JSON but truncated."""
    if isinstance(value, str):
        return f"'{_truncate(value)}'"
    # Converting a very large integer to decimal could take long.
    if isinstance(value, int) and value.bit_length() > 4 * _MAX_QUOTED:
        return "a very large integer"
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return _truncate(json.dumps(value))


def refuse(reason: str) -> NoReturn:
    """Raise the error, in a validator. reason completes a sentence that names the field."""
    raise PydanticCustomError(_UNSUPPORTED, "{reason}", {"reason": reason})


def refuse_unless(is_supported: Callable[[Any], bool], reason: str) -> BeforeValidator:
    """Return a validator of one field. null is always supported: an omitted field."""

    def check(value: Any) -> Any:
        if value is not None and not is_supported(value):
            refuse(reason)
        return value

    return BeforeValidator(check)


def null_only(reason: str) -> BeforeValidator:
    """Return the validator of a field that may only be null."""
    return refuse_unless(lambda value: False, reason)


class ByType:
    """Chooses the model of a union by the `type` of an object. Other types are refused for this reason.

    default: the type of an object without one. (pydantic's own discriminator requires a type, and cannot give
    a reason.)
    """

    def __init__(self, reason: str, *, default: str = "") -> None:
        self._reason = reason
        self._default = default

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        variants: dict[Hashable, CoreSchema] = {}
        for model in get_args(source) or (source,):
            hint = model.model_fields["type"].annotation  # a Literal, perhaps with None
            for kind in [text for one in get_args(hint) for text in get_args(one) or (one,)]:
                variants[_tag(kind)] = handler.generate_schema(model)

        def choose(value: Any) -> str:
            kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
            return _tag(kind if isinstance(kind, str) else self._default)

        return tagged_union_schema(
            variants, choose, custom_error_type=_UNSUPPORTED, custom_error_message=self._reason
        )


def _tag(kind: object) -> str:
    """Return the name of a variant, which is in the path of an error, and is no name of a field."""
    return f"type {kind}"
