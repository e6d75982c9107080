"""Parses the JSON body of a request into a pydantic model, or raises an `ApiError` in OpenAI's words.

Bodies are untrusted, so depth, number of arrays and objects, and number of values are bounded
before anything is built from them. FastAPI's own body parsing has no such bounds and reports every
error of a body. Duplicate keys, numbers that are not finite, lone surrogates and invalid UTF-8 are
refused. Types are strict: "1" is no number and 1 is no boolean; an integer is accepted where a
number is expected.
"""

import json
import math
import re
from typing import Annotated, Any, NoReturn, TypeVar, cast

from pydantic import BaseModel, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema
from starlette.requests import Request

from holdfast.server.errors import ApiError
from holdfast.server.http.disconnect import run_until_disconnect
from holdfast.server.http.validation_errors import explain, wrong_type
from holdfast.server.middleware.request_log import use_request_id
from holdfast.server.tenants.tenant import tenant_of
from holdfast.server.tenants.work_queue import SHORT_SECONDS, WorkQueue

MAX_DEPTH = 64
MAX_CONTAINERS = 1 << 14  # arrays and objects
MAX_VALUES = 1 << 19
MAX_KEYS = 1 << 14  # of one object
_MAX_INLINE_BYTES = 256 << 10  # larger bodies are parsed in a thread
_MAX_INLINE_VALUES = 2048  # arrays, objects, values
_SECONDS_PER_BYTE = 4e-8

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")


class _FailFast:
    """Stop at an array's first invalid item; collecting half a million errors would cost a second
    and a gigabyte.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        schema = handler(source)
        assert schema["type"] == "list"
        return cast(CoreSchema, {**schema, "fail_fast": True})


# A list field of a model.
Many = Annotated[list[T], _FailFast()]

# Match from one structural character to the next, skipping strings; the group is None at the end of
# the text or in an unterminated string. Possessive quantifiers, and a match at every position, so
# that each byte is read once.
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_BRACKET = re.compile(rb'(?:[^"\[\]{}]++|' + _STRING + rb')*+(?:([\[\]{}])|"|\Z)', re.DOTALL)
_COMMA = re.compile(rb'(?:[^",]++|' + _STRING + rb')*+(?:(,)|"|\Z)', re.DOTALL)


class BodyReader:
    """Reads the bodies of a server. Large ones are parsed one at a time, in turns of clients.

    Parsing holds the GIL for up to a tenth of a second; two thirds of the time remain for the event loop.
    """

    def __init__(self) -> None:
        self._large = WorkQueue("holdfast-json", workers=1, rest=2.0)

    async def read(self, request: Request, model: type[M]) -> M:
        """Return the body of a request as a model. It may give the request's id."""
        raw = await request.body()
        if is_small(raw):
            body = parse_body(raw, model)
        else:
            cost = SHORT_SECONDS + len(raw) * _SECONDS_PER_BYTE  # all are long work
            parsing = self._large.run(tenant_of(request).id, lambda token: parse_body(raw, model), cost=cost)
            body = await run_until_disconnect(request, parsing)
        use_request_id(request, getattr(body, "request_id", None))
        return body

    def close(self) -> None:
        self._large.close()


def is_small(raw: bytes) -> bool:
    """Return whether a body takes less than a millisecond to parse."""
    num_values = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
    return len(raw) <= _MAX_INLINE_BYTES and num_values <= _MAX_INLINE_VALUES


def parse_body(raw: bytes, model: type[M]) -> M:
    """Return the body as a model, or an `ApiError` 400."""
    if not raw.strip(b" \t\r\n"):
        raise _invalid_json("The request has no body; send a JSON object.")
    _check_nesting(raw)
    _check_num_values(raw)
    content = _decode(raw)
    if not isinstance(content, dict):
        raise wrong_type(None, ["an object"], content)
    try:
        return model.model_validate_json(raw, strict=True)
    except ValidationError as error:
        raise explain(error, content) from None


def _check_nesting(raw: bytes) -> None:
    if raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return
    depth = num_containers = 0
    for match in _BRACKET.finditer(raw):
        bracket = match[1]
        if bracket is None:
            return
        if bracket in b"]}":
            depth -= 1
            continue
        depth += 1
        num_containers += 1
        if depth > MAX_DEPTH:
            raise _invalid_json(f"The JSON is nested too deeply: at most {MAX_DEPTH} levels are allowed.")
        if num_containers > MAX_CONTAINERS:
            raise _invalid_json(
                f"The JSON is too large: at most {MAX_CONTAINERS} arrays and objects are allowed."
            )


def _check_num_values(raw: bytes) -> None:
    if raw.count(b",") < MAX_VALUES:
        return
    for num_commas, match in enumerate(_COMMA.finditer(raw), 1):
        if match[1] is None:
            return
        if num_commas >= MAX_VALUES:
            raise _invalid_json(f"The JSON is too large: at most {MAX_VALUES} values are allowed.")


def _decode(raw: bytes) -> Any:
    """Return the decoded JSON, checked for what pydantic does not report: duplicate keys, numbers that are
    not finite.
    """
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _invalid_json(f"The body is not valid UTF-8, at byte {error.start}.") from None
    try:
        return json.loads(
            text, object_pairs_hook=_without_duplicates, parse_float=_finite, parse_constant=_refuse_constant
        )
    except json.JSONDecodeError as error:
        raise _invalid_json(f"The body is not valid JSON: {error}.") from None
    except ValueError:
        raise _invalid_json("The body is not valid JSON: a number has too many digits.") from None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        seen: set[str] = set()
        name = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ApiError(
            400, f"Duplicate parameter: {name[:64]!r}.", param=name[:64], code="duplicate_parameter"
        )
    if len(content) > MAX_KEYS:
        raise _invalid_json(f"The JSON is too large: at most {MAX_KEYS} keys in an object are allowed.")
    return content


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _invalid_json("The body is not valid JSON: a number is too large.")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise _invalid_json(f"The body is not valid JSON: {name} is not a JSON number.")


def _invalid_json(message: str) -> ApiError:
    return ApiError(400, message, code="invalid_json")
