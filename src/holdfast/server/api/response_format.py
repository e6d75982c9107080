"""The form of an answer as clients ask for it: OpenAI's `response_format`, or vLLM's `structured_outputs` and `guided_*`.

A request has one form at most. Schemas are always followed to the letter: `strict` may be said, and changes nothing.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from holdfast.core.sampling_params import show
from holdfast.core.structured_output import StructuredOutput
from holdfast.errors import InvalidRequest
from holdfast.server.tools.tool_config import MAX_SCHEMA_DEPTH, is_deep

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


class FormFields(Protocol):
    """The fields of a body that ask for a form. None is a field left out."""

    @property
    def response_format(self) -> Any: ...
    @property
    def structured_outputs(self) -> Any: ...
    @property
    def guided_json(self) -> Any: ...
    @property
    def guided_regex(self) -> Any: ...
    @property
    def guided_choice(self) -> Any: ...
    @property
    def guided_grammar(self) -> Any: ...


def form_of(body: FormFields) -> StructuredOutput | None:
    """The form a body asks for, if it asks for one; raises `InvalidRequest` for two, or for one that is none."""
    forms: dict[str, StructuredOutput] = {}
    for name, read in _READERS.items():
        value = getattr(body, name)
        form = None if value is None else read(name, value)
        if form is not None:
            forms[name] = form
    if len(forms) > 1:
        raise InvalidRequest(f"{' and '.join(forms)} ask for a form each; a request can have one")
    return next(iter(forms.values()), None)


def _read_response_format(place: str, value: object) -> StructuredOutput | None:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{place} must be an object with a type, not {show(value)}")
    kind = value.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise InvalidRequest(f'{place}.type must be "text", "json_object" or "json_schema", not {show(kind)}')
    if kind != "json_schema" and value.get("json_schema") is not None:
        raise InvalidRequest(f'{place}.json_schema needs the type "json_schema", not {show(kind)}')
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutput(json_object=True)
    return _read_named_schema(f"{place}.json_schema", value.get("json_schema"))


def _read_named_schema(place: str, value: object) -> StructuredOutput:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{place} must be an object with a name and a schema, not {show(value)}")
    name = value.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidRequest(
            f"{place}.name must be 1 to 64 letters, digits, underscores and dashes, not {show(name)}"
        )
    if not isinstance(value.get("strict"), bool | None):
        raise InvalidRequest(f"{place}.strict must be true or false, not {show(value['strict'])}")
    if not isinstance(value.get("description"), str | None):
        raise InvalidRequest(f"{place}.description must be a text, not {show(value['description'])}")
    if not isinstance(value.get("schema"), Mapping):
        raise InvalidRequest(f"{place}.schema must be a JSON schema that is an object")
    return _read_schema(f"{place}.schema", value["schema"])


def _read_schema(place: str, value: object) -> StructuredOutput:
    if not isinstance(value, str | Mapping | bool):
        raise InvalidRequest(f"{place} must be a JSON schema, as an object or as text, not {show(value)}")
    if is_deep(value, MAX_SCHEMA_DEPTH):
        raise InvalidRequest(f"{place} is nested deeper than {MAX_SCHEMA_DEPTH} levels")
    return StructuredOutput(json_schema=value)


def _read_structured_outputs(place: str, value: object) -> StructuredOutput | None:
    if not isinstance(value, Mapping):
        raise InvalidRequest(f"{place} must be an object, not {show(value)}")
    unknown = sorted(set(value) - set(_KINDS), key=str)
    if unknown:
        raise InvalidRequest(
            f"{place} does not know {show(unknown[0])}; it may hold one of {', '.join(_KINDS)}"
        )
    given = [kind for kind in _KINDS if value.get(kind) not in (None, False)]
    if len(given) != 1:
        raise InvalidRequest(f"{place} must hold exactly one of {', '.join(_KINDS)}; it has {len(given)}")
    return _KINDS[given[0]](f"{place}.{given[0]}", value[given[0]])


def _read_object(place: str, value: object) -> StructuredOutput:
    if value is not True:
        raise InvalidRequest(f"{place} must be true or false, not {show(value)}")
    return StructuredOutput(json_object=True)


def _read_regex(place: str, value: object) -> StructuredOutput:
    return StructuredOutput(regex=_check_text(place, value))


def _read_grammar(place: str, value: object) -> StructuredOutput:
    return StructuredOutput(lark=_check_text(place, value))


def _read_choice(place: str, value: object) -> StructuredOutput:
    if not isinstance(value, list | tuple):
        raise InvalidRequest(f"{place} must be a list of texts, not {show(value)}")
    return StructuredOutput(choice=value)


def _check_text(place: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"{place} must be a text that is not empty, not {show(value)}")
    return value


_Reader = Callable[[str, object], StructuredOutput | None]
_KINDS: dict[str, _Reader] = {
    "json": _read_schema,
    "regex": _read_regex,
    "choice": _read_choice,
    "grammar": _read_grammar,
    "json_object": _read_object,
}
_READERS: dict[str, _Reader] = {
    "response_format": _read_response_format,
    "structured_outputs": _read_structured_outputs,
    "guided_json": _read_schema,
    "guided_regex": _read_regex,
    "guided_choice": _read_choice,
    "guided_grammar": _read_grammar,
}
