"""What is wrong with a body, in OpenAI's words: one fault, where it is, what was expected and what came instead.

Of everything the model found, the fault of the first field is told; in a union, the one that lies deepest, since that is the
form the client meant. Nothing longer than a line of the client's own text comes back.
"""

import json
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from holdfast.server.errors import ApiError

_MISSING = object()
_LONGEST = 64  # characters of a name or a value that are repeated

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


class _Fault:
    """One of the model's errors, and the place in the content it speaks of."""

    def __init__(self, details: ErrorDetails, content: Any) -> None:
        self.kind = details["type"]
        self.context = details.get("ctx", {})
        self.said = details["msg"]
        self.value = content
        names: list[str] = []
        for part in details["loc"]:
            if _holds(self.value, part):
                self.value = self.value[part]
            elif self.kind == "missing" and part == details["loc"][-1]:
                self.value = _MISSING
            else:
                continue  # a member of a union, which the client knows nothing of
            names.append(f"[{part}]" if isinstance(part, int) else f".{_cut(part)}")
        self.depth = len(names)
        self.top = names[0] if names else ""
        self.path = "".join(names).removeprefix(".")


def explain(error: ValidationError, content: dict[str, Any]) -> ApiError:
    """The one fault a client is told of."""
    faults = [_Fault(one, content) for one in error.errors(include_url=False, include_input=False)]
    first = [fault for fault in faults if fault.top == faults[0].top]
    deepest = max(fault.depth for fault in first)
    chosen = next(fault for fault in first if fault.depth == deepest)
    here = [fault for fault in first if fault.path == chosen.path]
    # Where one form of a union has the right type, the others' types say nothing.
    told = next((fault for fault in here if fault.kind not in _EXPECTED), None)
    if told is None:
        return wrong_type(
            chosen.path, list(dict.fromkeys(_EXPECTED[fault.kind] for fault in here)), chosen.value
        )
    return _explain_one(told)


def wrong_type(path: str | None, expected: Sequence[str], value: Any) -> ApiError:
    """None as path: the body itself."""
    where = "the body" if path is None else f"'{path}'"
    if len(expected) == 1:
        what = expected[0]
    else:
        what = f"one of {', '.join(expected[:-1])} or {expected[-1]}"
    message = f"Invalid type for {where}: expected {what}, but got {_kind_of(value)} instead."
    return ApiError(400, message, param=path, code="invalid_type")


def _explain_one(fault: _Fault) -> ApiError:
    path, kind, context = fault.path, fault.kind, fault.context
    if kind == "json_invalid":
        why = str(context["error"])
        if "hex escape" in why:  # the one thing only the model minds
            why = f"half of a surrogate pair at {why.rpartition(' at ')[2]}"
        return ApiError(400, f"The body is not valid JSON: {why}.", code="invalid_json")
    if kind == "extra_forbidden":
        return ApiError(400, f"Unknown parameter: '{path}'.", param=path, code="unknown_parameter")
    if kind == "missing":
        message = f"Missing required parameter: '{path}'."
        return ApiError(400, message, param=path, code="missing_required_parameter")
    if kind in _BOUNDS:
        what, sign, name = _BOUNDS[kind]
        number = "integer" if isinstance(fault.value, int) else "decimal"
        message = (
            f"Invalid '{path}': {number} {what} value. "
            f"Expected a value {sign} {_shown(context[name])}, but got {_shown(fault.value)} instead."
        )
    elif kind in _LENGTHS:
        what, least_or_most, name = _LENGTHS[kind]
        one = _kind_of(fault.value)
        message = (
            f"Invalid '{path}': {one.split()[-1]} {what}. Expected {one} with {least_or_most} length {context[name]}, "
            f"but got {one} with length {len(fault.value)} instead."
        )
    elif kind in ("literal_error", "enum"):
        message = (
            f"Invalid value for '{path}': {_shown(fault.value)}. Supported values are: {context['expected']}."
        )
    elif kind == "value_error":
        message = f"Invalid '{path}': {context['error']}" if path else str(context["error"])
    else:
        message = f"Invalid '{path}': {fault.said[:1].lower()}{fault.said[1:]}."
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


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "..."


def _shown(value: Any) -> str:
    """A number or a string, as a client would write it."""
    if isinstance(value, str):
        return f"'{_cut(value)}'"
    if isinstance(value, int) and value.bit_length() > 4 * _LONGEST:  # writing it out could take long
        return "a very large integer"
    return _cut(f"{value:g}" if isinstance(value, float) else json.dumps(value))
