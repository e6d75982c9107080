"""Hooks for schemathesis (SCHEMATHESIS_HOOKS=support.fuzz_hooks).

Valid random bodies are adapted to the tiny model, so that they are not all refused for the same
reason. Responses are checked for properties that the OpenAPI document cannot express.
"""

import json
from typing import Any, NoReturn

import schemathesis

from support.tiny import HIDDEN_SIZE, VOCAB_SIZE

_LONG, _LARGE = 1000, 1 << 24
INTERNALS = (
    "Traceback",
    "Error:",
    "pydantic",
    "msgspec",
    "starlette",
    "holdfast.",
    "site-packages",
    " at 0x",
)


@schemathesis.hook
def before_call(context: Any, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    if case.meta is not None and case.meta.generation.mode.is_positive and isinstance(case.body, dict):
        case.body = tame(case.body)


@schemathesis.check
def valid_response(context: Any, response: schemathesis.Response, case: schemathesis.Case) -> None:
    """Valid numbers, errors of one shape, streams that end, no internals in messages."""
    kind = response.headers.get("content-type", ["none"])[0]
    text = response.content.decode()
    if kind.startswith("text/event-stream"):
        events = [line.removeprefix("data: ") for line in text.split("\n\n") if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        contents = [_parse(one) for one in events[:-1]]
        assert not any("error" in one for one in contents[:-1])
        if "error" in contents[-1]:  # contradictory settings may be found only when a token is sampled
            assert contents[-1]["error"]["code"] == "answer_impossible", contents[-1]
    elif kind.startswith("application/json") and text:
        content = _parse(text)
        if response.status_code >= 400:
            error = content["error"]
            assert set(error) == {"message", "type", "param", "code"} and error["message"]
            assert not any(one in error["message"] for one in INTERNALS), error


def tame(body: dict[str, Any]) -> dict[str, Any]:
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
    if "messages" in tamed and tamed.get("max_completion_tokens") is None and tamed.get("max_tokens") is None:
        tamed["max_tokens"] = 12  # the default would be the rest of the context
    for name, most in (("max_tokens", 12), ("max_completion_tokens", 12), ("min_tokens", 1), ("n", 4)):
        if tamed.get(name) is not None and tamed[name] < _LARGE:
            tamed[name] = min(tamed[name], most)
    if tamed.get("think") or tamed.get("forced_thoughts"):
        tamed |= {"think": None, "forced_thoughts": {}}  # the model does not think
    if tamed.get("logit_bias"):
        tamed["logit_bias"] = {str(int(id_) % VOCAB_SIZE): bias for id_, bias in tamed["logit_bias"].items()}
    return tamed


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
