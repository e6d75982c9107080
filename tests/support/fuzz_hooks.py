"""Hooks for schemathesis (SCHEMATHESIS_HOOKS=support.fuzz_hooks).

Valid random bodies are adapted to the tiny model, so that they are not all refused for the same
reason. Responses are checked for properties that the OpenAPI document cannot express.
"""

import json
from typing import Any, NoReturn

import schemathesis

from support.bodies import INTERNALS
from support.tiny import HIDDEN_SIZE, VOCAB_SIZE

_LONG, _LARGE = 1000, 1 << 24
_LIMITS = {  # the fields that limit an answer
    "/v1/completions": ("max_tokens",),
    "/v1/chat/completions": ("max_tokens", "max_completion_tokens"),
    "/v1/responses": ("max_output_tokens",),
    "/v1/messages": ("max_tokens",),
}


@schemathesis.hook
def before_call(context: Any, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    if case.meta is not None and case.meta.generation.mode.is_positive and isinstance(case.body, dict):
        case.body = tame(case.body, case.operation.path)


@schemathesis.check
def valid_response(context: Any, response: schemathesis.Response, case: schemathesis.Case) -> None:
    """Valid numbers, errors of one shape, streams that end, no internals in messages."""
    kind = response.headers.get("content-type", ["none"])[0]
    text = response.content.decode()
    if kind.startswith("text/event-stream"):
        _check_stream(case.operation.path, text)
    elif kind.startswith("application/json") and text:
        content = _parse(text)
        if response.status_code >= 400:
            error = content["error"]
            if case.operation.path.startswith("/v1/messages"):
                assert content["type"] == "error" and {"type", "message"} <= set(error) <= {
                    "type",
                    "message",
                    "details",
                }
            else:
                assert set(error) == {"message", "type", "param", "code"}
            assert error["message"] and not any(one in error["message"] for one in INTERNALS), error


def _check_stream(path: str, text: str) -> None:
    """A stream ends as its API says. Contradictory settings may be found only when a token is
    sampled: then it ends with that error."""
    data = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
    if path not in ("/v1/responses", "/v1/messages"):
        assert data.pop() == "[DONE]"
    contents = [_parse(one) for one in data]
    if path == "/v1/responses":
        assert [one["sequence_number"] for one in contents] == list(range(len(contents)))
        kinds = [one["type"] for one in contents]
        assert kinds[-1] in ("response.completed", "response.incomplete", "response.failed")
        assert ("error" in kinds) == (kinds[-1] == "response.failed")
        errors = [one for one in contents if one["type"] == "error"]
    elif path == "/v1/messages":
        errors = [one["error"]["details"] for one in contents if one["type"] == "error"]
        assert contents[-1]["type"] in ("message_stop", "error")
    else:
        errors = [one["error"] for one in contents if "error" in one]
        assert not errors or "error" in contents[-1]
    assert all(one.get("code", one.get("error_code")) == "answer_impossible" for one in errors), errors


def tame(body: dict[str, Any], path: str) -> dict[str, Any]:
    """A valid body for the tiny model: its name, a prompt, ids of its vocabulary, lengths within
    its context.

    Without this most cases would be refused for one of these reasons, and the code after the checks
    would not run.
    """
    tamed = {name: _with_known_ids(value) for name, value in body.items()}
    if "model" in body and len(tamed["model"] or "") < _LONG:
        tamed["model"] = "tiny"
    if tamed.get("prompt") in ("", []):
        tamed["prompt"] = "a"
    if "encoding_format" in tamed or "pooling" in tamed or tamed.get("input") in ("", []):
        tamed["input"] = tamed.get("input") or "a"
    if tamed.get("dimensions") is not None and tamed["dimensions"] < _LARGE:
        tamed["dimensions"] = min(tamed["dimensions"], HIDDEN_SIZE)
    if tamed.get("completion") in ("", []):
        tamed["completion"] = [7]
    if "prompt" in tamed and "messages" in tamed:
        del tamed["messages" if tamed["prompt"] is not None else "prompt"]
    for message in tamed.get("messages") or ():
        if message.get("content") in (None, []) and not message.get("tool_calls"):
            message["content"] = "a"
    if path.startswith("/v1/responses") and isinstance(tamed.get("input"), list):
        tamed["input"] = [one for item in tamed["input"] for one in _with_call(item)]
    if path.startswith("/v1/messages"):
        tamed["messages"] = [one for turn in tamed["messages"] for one in _with_tool_use(turn)]
    limits = _LIMITS.get(path, ())
    if limits and all(tamed.get(name) is None for name in limits):
        tamed[limits[0]] = 12  # the default would be the rest of the context
    for name, most in (*((name, 12) for name in limits), ("min_tokens", 1), ("n", 4)):
        if tamed.get(name) is not None and tamed[name] < _LARGE:
            tamed[name] = min(tamed[name], most)
    if tamed.get("think") or tamed.get("forced_thoughts"):
        tamed |= {"think": None, "forced_thoughts": {}}  # the model does not think
    if tamed.get("logit_bias"):
        tamed["logit_bias"] = {str(int(id_) % VOCAB_SIZE): bias for id_, bias in tamed["logit_bias"].items()}
    return tamed


def _with_call(item: Any) -> list[Any]:
    """An item of `input`, after the call that it answers."""
    if not isinstance(item, dict) or item.get("type") != "function_call_output":
        return [item]
    call = {"type": "function_call", "call_id": item["call_id"], "name": "f", "arguments": "{}"}
    return [call, item]


def _with_tool_use(turn: Any) -> list[Any]:
    """A turn of Anthropic's API with the blocks that its role may have, after the calls it answers."""
    content = turn.get("content")
    if not isinstance(content, list):
        return [turn]
    theirs = {"assistant": "tool_use", "user": "tool_result"}.get(turn["role"], "text")
    blocks = [
        one for one in content if one["type"] not in ("tool_use", "tool_result") or one["type"] == theirs
    ]
    results = [one["tool_use_id"] for one in blocks if one["type"] == "tool_result"]
    calls = [{"type": "tool_use", "id": id_, "name": "f", "input": {}} for id_ in results]
    mine = {**turn, "content": blocks or "a"}
    if any(one["type"] == "tool_use" for one in blocks):
        return [mine, {"role": "user", "content": "a"}]
    return [{"role": "assistant", "content": calls}, mine] if calls else [mine]


def _with_known_ids(value: Any, *, is_id: bool = False) -> Any:
    """Map numbers in lists, which are token ids, into the vocabulary; very large ones stay invalid."""
    if isinstance(value, list):
        return [_with_known_ids(one, is_id=True) for one in value]
    if (
        isinstance(value, float) and value.is_integer()
    ):  # 1.0 is an integer in JSON Schema, but not in this API
        value = int(value)
    return value % VOCAB_SIZE if is_id and isinstance(value, int) and value < _LARGE else value


def _parse(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse)


def _refuse(name: str) -> NoReturn:
    raise AssertionError(f"{name} is not JSON")
