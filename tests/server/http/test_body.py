"""JSON bodies become models or one clear error; the cost of a body is bounded by its size."""

import json
import time
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator

from holdfast.server.api.schema import requests as schemas
from holdfast.server.errors import ApiError
from holdfast.server.http.body import (
    MAX_CONTAINERS,
    MAX_DEPTH,
    MAX_KEYS,
    MAX_VALUES,
    Many,
    is_small,
    parse_body,
)


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid")
    type: Literal["text", "image"]
    text: str | None = None


class Message(BaseModel):
    model_config = ConfigDict(extra="forbid")
    role: str = Field(min_length=1, max_length=8)
    content: str | Many[Part] | None = None


class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")
    usage: bool


class Chat(BaseModel):
    model_config = ConfigDict(extra="forbid")
    messages: Many[Message] = Field(min_length=1, max_length=4)
    temperature: float | None = Field(None, ge=0, le=2)
    seed: int | None = Field(None, ge=0, le=(1 << 64) - 1)
    stream: bool | None = None
    prompt: str | Many[int] | Many[str] | Many[Many[int]] | None = None
    bias: dict[str, float] | None = None
    options: Options | None = None
    last: Literal[-1] | Annotated[int, Field(ge=1, le=10)] | None = None
    anything: Any = None

    @field_validator("anything")
    @classmethod
    def _no_cats(cls, value: Any) -> Any:
        if value == "cat":
            raise ValueError("cats are not allowed")
        return value


OK: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


def parse(**fields: Any) -> Chat:
    return parse_body(json.dumps({**OK, **fields}).encode(), Chat)


def refusal(raw: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_body(raw, Chat)
    assert caught.value.status == 400
    assert json.dumps(caught.value.body(), ensure_ascii=False).encode()  # it can be encoded
    return caught.value


def test_valid_body_is_parsed() -> None:
    body = parse(
        temperature=1,
        seed=(1 << 64) - 1,
        stream=True,
        prompt=[[1, 2], [3]],
        anything={"a": [1, None, "\u0000"]},
    )
    assert body.messages[0].content == "hi"
    assert body.temperature == 1.0
    assert body.seed == (1 << 64) - 1
    assert body.prompt == [[1, 2], [3]]
    assert body.anything == {"a": [1, None, "\u0000"]}


CODES = {
    "Unknown": "unknown_parameter",
    "Missing": "missing_required_parameter",
    "Invalid type": "invalid_type",
    "Invalid": "invalid_value",
}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"foo": 1}, "Unknown parameter: 'foo'."),
        ({"messages": [{"role": "a", "x": 1}]}, "Unknown parameter: 'messages[0].x'."),
        ({"messages": [{}]}, "Missing required parameter: 'messages[0].role'."),
        (
            {"temperature": "hot"},
            "Invalid type for 'temperature': expected a number, but got a string instead.",
        ),
        ({"stream": 1}, "Invalid type for 'stream': expected a boolean, but got an integer instead."),
        ({"seed": "1"}, "Invalid type for 'seed': expected an integer, but got a string instead."),
        ({"seed": 1.0}, "Invalid type for 'seed': expected an integer, but got a decimal number instead."),
        (
            {"messages": [{"role": "a", "content": 5}]},
            "Invalid type for 'messages[0].content': expected one of a string or an array, but got an integer instead.",
        ),
        (
            {"messages": [{"role": "a", "content": [{"type": "sound"}]}]},
            "Invalid value for 'messages[0].content[0].type': 'sound'. Supported values are: 'text' or 'image'.",
        ),
        (
            {"temperature": 3},
            "Invalid 'temperature': integer above maximum value. Expected a value <= 2, but got 3 instead.",
        ),
        (
            {"temperature": 2.0000001},
            "Invalid 'temperature': decimal above maximum value. Expected a value <= 2, but got 2.0000001 instead.",
        ),
        (
            {"temperature": -0.5},
            "Invalid 'temperature': decimal below minimum value. Expected a value >= 0, but got -0.5 instead.",
        ),
        (
            {"seed": 1 << 64},
            "Invalid 'seed': integer above maximum value. "
            "Expected a value <= 18446744073709551615, but got 18446744073709551616 instead.",
        ),
        (
            {"messages": []},
            "Invalid 'messages': array too short. Expected an array with minimum length 1, "
            "but got an array with length 0 instead.",
        ),
        (
            {"messages": [{"role": "x" * 9}]},
            "Invalid 'messages[0].role': string too long. Expected a string with maximum length 8, "
            "but got a string with length 9 instead.",
        ),
        (
            {"last": 0},
            "Invalid value for 'last': 0. Supported values are: -1, and numbers >= 1.",
        ),
        (
            {"last": 11},
            "Invalid value for 'last': 11. Supported values are: -1, and numbers <= 10.",
        ),
        ({"anything": "cat"}, "Invalid 'anything': cats are not allowed"),
        (
            {"prompt": [1, "a"]},
            "Invalid type for 'prompt[1]': expected an integer, but got a string instead.",
        ),
    ],
)
def test_validation_error_uses_openais_words(fields: dict[str, Any], message: str) -> None:
    error = refusal(json.dumps({**OK, **fields}).encode())
    assert (error.message, error.param) == (message, message.split("'")[1])
    assert error.code == next(code for begin, code in CODES.items() if message.startswith(begin))


@pytest.mark.parametrize(
    ("raw", "expected_message"),
    [
        (b"", "no body"),
        (b"[]", "Invalid type for the body: expected an object, but got an array instead."),
        (b"null", "got null"),
        (b"{", "not valid JSON"),
        (b'{"anything": 1}{"anything": 2}', "not valid JSON"),
        (b'{"anything": [' + b"," * 1_000_000 + b"]}", "values"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        ('{"anything": 1}'.encode("utf-16"), "not valid UTF-8"),
        (b'{"anything": "\xff"}', "not valid UTF-8, at byte 14"),
        (b'{"anything": "\xed\xa0\x80"}', "not valid UTF-8"),
        (b"\x80\x04\x95\x0e\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94.", "not valid UTF-8"),  # a pickle
        (b'{"anything": "\\ud800"}', "a lone surrogate at line 1 column 21"),
        (b'{"\\ud800": 1}', "a lone surrogate"),
        (b'{"prompt": ["a", "\\ud800"]}', "a lone surrogate"),
        (b'{"anything": {"a": [{"b": "\\udfff"}]}}', "a lone surrogate"),
        (b'{"\\ud800": 1, "\\ud800": 2}', "Duplicate parameter"),
        (b'{"anything": NaN}', "NaN is not a JSON number"),
        (b'{"temperature": Infinity}', "Infinity is not a JSON number"),
        (b'{"anything": 1e999}', "too large"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "too many digits"),
        (b'{"seed": 1, "seed": 2}', "Duplicate parameter: 'seed'."),
        (b'{"anything": {"a": 1, "\\u0061": 2}}', "Duplicate parameter: 'a'."),
    ],
)
def test_invalid_json_is_refused(raw: bytes, expected_message: str) -> None:
    if raw.startswith(b'{"') and raw.endswith(b"}"):
        raw = raw[:-1] + b', "messages": [{"role": "user"}]}'
    assert expected_message in refusal(raw).message


def test_surrogate_pair_is_one_character() -> None:
    raw = b'{"messages": [{"role": "user"}], "anything": "\\ud83d\\ude00"}'
    assert parse_body(raw, Chat).anything == "\U0001f600"


def test_large_integer_is_refused_only_if_out_of_range() -> None:
    assert parse(anything=10**400).anything == 10**400
    assert refusal(json.dumps({**OK, "seed": 10**400}).encode()).message.endswith(
        "but got a very large integer instead."
    )


def nested(depth: int, text: str = "") -> bytes:
    return f'{{"messages": [{{"role": "user"}}], "anything": {"[" * depth}{text}{"]" * depth}}}'.encode()


def test_nesting_depth_limit_is_exact() -> None:
    parse_body(nested(MAX_DEPTH - 1), Chat)
    assert "nested too deeply" in refusal(nested(MAX_DEPTH)).message
    assert "nested too deeply" in refusal(nested(1_000_000)).message
    assert "nested too deeply" in refusal(b'{"a":' * 1_000_000).message
    assert "nested too deeply" in refusal(b'{"a":' * 100_000 + b"1" + b"}" * 100_000).message
    assert "nested too deeply" in refusal(b"[" * 1_000_000).message


def test_number_of_containers_values_and_keys_is_limited() -> None:
    assert "arrays and objects" in refusal(nested(1, ",".join(["[]"] * MAX_CONTAINERS))).message
    assert "arrays and objects" in refusal(nested(1, ",".join(["{}"] * MAX_CONTAINERS))).message
    assert "values" in refusal(nested(1, ",".join(["1"] * (MAX_VALUES + 1)))).message
    keys = ",".join(f'"{key}": 1' for key in range(MAX_KEYS + 1))
    assert "keys" in refusal(nested(1, "{" + keys + "}")).message
    assert len(parse(anything="[]," * MAX_VALUES).anything) == 3 * MAX_VALUES
    assert len(parse(prompt=[7] * (MAX_VALUES - 100)).prompt or "") == MAX_VALUES - 100


@pytest.mark.parametrize(
    "model", [one for one in vars(schemas).values() if isinstance(one, type) and issubclass(one, BaseModel)]
)
def test_every_array_field_of_the_api_fails_fast(model: type[BaseModel]) -> None:
    def arrays(schema: Any) -> Iterator[Any]:
        if isinstance(schema, dict):
            if schema.get("type") == "list" and "items_schema" in schema:
                yield schema
            schema = list(schema.values())
        if isinstance(schema, list | tuple):
            for one in schema:
                yield from arrays(one)

    assert all(array.get("fail_fast") for array in arrays(model.__pydantic_core_schema__))


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a": "' + b"x" * 100_000,
        b'"' * 100_001,
        b'{"a": "' + b"\\" * 100_001,
        b"[" + b'"[' * 100_000,
        b'{"' + b'\\"[,' * 99_999,
    ],
)
def test_truncated_body_takes_linear_time(raw: bytes) -> None:
    many = (raw + b"," * MAX_VALUES) * 2
    began = time.process_time()
    refusal(many)
    assert time.process_time() - began < 5  # quadratic time would take an hour


@given(st.binary(max_size=200))
def test_random_bytes_give_a_model_or_an_api_error(raw: bytes) -> None:
    with pytest.raises(ApiError):
        parse_body(raw, Chat)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from([*Chat.model_fields, "x", ""]), _json, max_size=6))
def test_random_json_gives_a_model_or_a_short_error(content: dict[str, Any]) -> None:
    raw = json.dumps(content).encode()
    try:
        parse_body(raw, Chat)
    except ApiError:
        error = refusal(raw)
        assert len(error.message) < 1000
        assert "pydantic" not in error.message
        json.dumps(error.body(), allow_nan=False).encode()


def test_long_names_and_values_are_truncated_in_errors() -> None:
    assert len(refusal(json.dumps({**OK, "x" * 100_000: 1}).encode()).message) < 200
    error = refusal(json.dumps({"messages": [{"role": "a", "content": [{"type": "x" * 100_000}]}]}).encode())
    assert len(error.message) < 300


def test_large_bodies_are_not_small() -> None:
    assert is_small(nested(0, '"' + "x" * 10 + '"')) and is_small(nested(1, ",".join(["7"] * 10)))
    assert not is_small(nested(0, '"' + "x" * 300_000 + '"')) and not is_small(
        nested(1, ",".join(["7"] * 3000))
    )
