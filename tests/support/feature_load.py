"""Requests that use every feature of the server, and their answers in a form that can be compared."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from support.serving import Server
from support.streams import Client

Asked = tuple[str, dict[str, Any]]  # path and body

VOLATILE = {"id", "created", "created_at", "item_id", "call_id", "system_fingerprint"}
_COUNTS = ("completion_tokens", "prompt_tokens", "output_tokens", "total_tokens")
_WHOLE_TEXTS = ("finish_reason", "stop_reason", "type", "role", "name")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_FUNCTION = {"name": "look", "parameters": SCHEMA}
_TOOL = {"type": "function", "function": _FUNCTION}
_CHAT = {"messages": [{"role": "user", "content": "the dog"}], "max_tokens": 60}

# All of these also come as a stream.
KINDS: dict[str, Asked] = {
    "greedy": ("/v1/completions", {"prompt": "the fox", "max_tokens": 90, "temperature": 0}),
    "sampled": ("/v1/completions", {"prompt": "a fox", "max_tokens": 90, "temperature": 1.0}),
    "nucleus": (
        "/v1/completions",
        {"prompt": "a nucleus", "max_tokens": 80, "temperature": 1.4, "top_p": 0.8, "top_k": 40, "min_p": 0.01},
    ),
    "logprobs": ("/v1/completions", {"prompt": "my fox", "max_tokens": 70, "logprobs": 3}),
    "n": ("/v1/completions", {"prompt": "two foxes", "max_tokens": 50, "n": 3, "logprobs": 1}),
    "ends": (
        "/v1/completions",
        {"prompt": "some end", "max_tokens": 60, "n": 4, "logit_bias": {"0": 4.0}, "min_tokens": 3,
         "ignore_eos": False},
    ),
    "prompts": ("/v1/completions", {"prompt": ["one", "two", "three"], "max_tokens": 40}),
    "stop": (
        "/v1/completions",
        {"prompt": "o fox", "max_tokens": 90, "stop": ["zq", "the"], "min_tokens": 60},
    ),
    "stops": (
        "/v1/completions",
        {"prompt": "straddle", "max_tokens": 90, "stop": ["the lazy", "fox ju", "abcdefghijkl"], "n": 2,
         "include_stop_str_in_output": True, "stop_token_ids": [44], "min_tokens": 20},
    ),
    "penalties": (
        "/v1/completions",
        {"prompt": "the the", "max_tokens": 70, "repetition_penalty": 1.2, "presence_penalty": 0.4,
         "frequency_penalty": 0.3},
    ),
    "masks": (
        "/v1/completions",
        {"prompt": "masks", "max_tokens": 60, "logit_bias": {"70": 3.0, "71": -100}, "bad_words": ["e", "the"],
         "allowed_token_ids": list(range(5, 200))},
    ),
    "echo": ("/v1/completions", {"prompt": "echo fox", "max_tokens": 60, "echo": True, "bad_words": ["dog"]}),
    "regex": ("/v1/completions", {"prompt": "pattern", "max_tokens": 80, "guided_regex": "[a-z ]{30,70}!"}),
    "choice": (
        "/v1/completions",
        {"prompt": "choose", "max_tokens": 40, "n": 2,
         "structured_outputs": {"choice": ["the quick brown fox", "a lazy dog sleeps", "123"]}},
    ),
    "chat": ("/v1/chat/completions", {**_CHAT, "logprobs": True, "top_logprobs": 2, "n": 2}),
    "schema": (
        "/v1/chat/completions",
        {**_CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}},
    ),
    "required_tools": ("/v1/chat/completions", {**_CHAT, "tools": [_TOOL], "tool_choice": "required"}),
    "auto_tools": ("/v1/chat/completions", {**_CHAT, "tools": [_TOOL], "tool_choice": "auto"}),
    "responses": ("/v1/responses", {"input": "hi", "max_output_tokens": 60}),
    "responses_tools": (
        "/v1/responses",
        {"input": "hi", "max_output_tokens": 60, "tools": [{"type": "function", **_FUNCTION}],
         "tool_choice": "required"},
    ),
    "messages": ("/v1/messages", {"messages": _CHAT["messages"], "max_tokens": 60}),
    "messages_tools": (
        "/v1/messages",
        {"messages": _CHAT["messages"], "max_tokens": 60, "tools": [{"name": "look", "input_schema": SCHEMA}],
         "tool_choice": {"type": "any"}},
    ),
}  # fmt: skip
WHOLE_ONLY: dict[str, Asked] = {
    "score": ("/v1/score", {"prompt": "the quick", "completion": " brown fox" * 20}),
    "embeddings": ("/v1/embeddings", {"input": ["the quick fox " * 10, "dog"]}),
    "prompt_logprobs": (
        "/v1/completions",
        {"prompt": "the quick fox", "max_tokens": 40, "n": 2, "prompt_logprobs": 1},
    ),
    "only_the_prompt": (
        "/v1/completions",
        {"prompt": "the quick fox " * 9, "max_tokens": 0, "echo": True, "logprobs": 2},
    ),
    "receipt": ("/v1/completions", {"prompt": "proof", "max_tokens": 50, "return_receipt": True}),
}
_STREAMED_USAGE = ("/v1/completions", "/v1/chat/completions")
_WITHOUT_SEED = ("/v1/score", "/v1/embeddings")
_STRUCTURED = ("response_format", "guided_regex", "structured_outputs", "tools")


def kinds() -> list[Asked]:
    """Every kind once, and once more as a stream where that is possible."""
    streamed = [
        (path, {**body, "stream": True}
         | ({"stream_options": {"include_usage": True}} if path in _STREAMED_USAGE else {}))
        for path, body in KINDS.values()
    ]  # fmt: skip
    return [*streamed, *KINDS.values(), *WHOLE_ONLY.values()]


def load(number: int, deterministic: Callable[[int], bool] = lambda at: at % 3 == 0) -> list[Asked]:
    """So many requests of all kinds, all with a seed, which is their place."""
    asked, all_kinds = [], kinds()
    for at in range(number):
        path, body = all_kinds[at % len(all_kinds)]
        settings: dict[str, Any] = {"deterministic": deterministic(at)}
        if path not in _WITHOUT_SEED:
            settings["seed"] = at
            if not any(name in body for name in _STRUCTURED):
                settings["ignore_eos"] = True
        asked.append((path, {**settings, **body}))
    return asked


def plain(value: Any) -> Any:
    """Without what differs between two answers to the same request."""
    if not isinstance(value, dict):
        return [plain(one) for one in value] if isinstance(value, list) else value
    kept = {name: plain(one) for name, one in value.items() if name not in (*VOLATILE, "usage", "holdfast")}
    if value.get("usage"):
        kept["usage"] = {name: value["usage"].get(name) for name in _COUNTS}
    if value.get("holdfast"):
        kept["holdfast"] = _plain_extension(value["holdfast"])
    return kept


def _plain_extension(holdfast: Mapping[str, Any]) -> dict[str, Any]:
    stats = holdfast.get("stats")
    if stats is not None:
        assert stats["candidates"] == stats["accepted"] + stats["rolled_back"], stats
    kept = {name: holdfast[name] for name in ("thoughts",) if name in holdfast}
    if "mode" in holdfast:
        kept["is_guaranteed"] = holdfast["mode"] != "none"
    if stats is not None:
        kept["num_tokens"] = stats["accepted"] + stats["canonical_tokens"]
    if "receipt" in holdfast:
        names = ("choices", "settings", "seed", "fingerprint", "prompt_logprobs")
        kept["receipt"] = {name: holdfast["receipt"].get(name) for name in names}
    return kept


def merge(client: Client) -> Any:
    """What a client got, wherever its chunks were cut."""
    if not client.events:
        return plain(client.body)
    merged: dict[Any, Any] = {}
    for event in client.events:
        for choice in event.get("choices", ()):
            _add_choice(merged, choice)
        kind = event.get("type")
        if kind in ("response.output_text.delta", "response.function_call_arguments.delta"):
            _add(merged, (kind,), event["delta"])
        elif kind == "content_block_delta":
            for name in ("text", "partial_json"):
                _add(merged, (event["index"], name), event["delta"].get(name))
        elif kind == "message_delta":
            _add(merged, ("message",), plain(event["delta"]))
        elif kind == "response.completed":
            _add(merged, ("output",), plain(event["response"]))
        for name, value in plain({name: event.get(name) for name in ("usage", "holdfast")}).items():
            if name == "holdfast":
                _add(merged, ("thoughts",), value.pop("thoughts", None))
            merged[name] = value
    # Those of one choice are in order; which choice comes first depends on what else runs.
    merged.get(("thoughts",), []).sort(key=lambda thought: thought["index"])
    return merged


def _add_choice(merged: dict[Any, Any], choice: dict[str, Any]) -> None:
    at, delta = choice["index"], choice.get("delta", {})
    for name in ("text", "finish_reason", "stop_reason"):
        _add(merged, (at, name), choice.get(name))
    _add(merged, (at, "content"), delta.get("content"))
    for call in delta.get("tool_calls", ()):
        for name in ("arguments", "name"):
            _add(merged, (at, call["index"], name), call["function"].get(name))
    for name, value in (choice.get("logprobs") or {}).items():
        _add(merged, (at, "logprobs", name), value)


def _add(merged: dict[Any, Any], place: Any, value: Any) -> None:
    if isinstance(value, str) and place[-1] not in _WHOLE_TEXTS:
        merged[place] = merged.get(place, "") + value
    elif isinstance(value, list):
        merged.setdefault(place, []).extend(value)
    elif value is not None:
        assert place not in merged, f"{place} was sent twice"
        merged[place] = value


def ask(server: Server, asked: Sequence[Asked]) -> list[Client]:
    return [Client(server, path, **body) for path, body in asked]


def wait_all(clients: Sequence[Client], seconds: float) -> list[Any]:
    until = time.monotonic() + seconds
    for one in clients:
        while not one.is_over:
            assert time.monotonic() < until, "a request hangs"
            time.sleep(0.02)
    return [merge(one) for one in clients]


def alone(server: Server, asked: Sequence[Asked]) -> list[Any]:
    """The answer of each, asked on an idle server, one after the other."""
    answers = []
    for path, body in asked:
        client = Client(server, path, **body).wait()
        check_success(path, body, client)
        answers.append(merge(client))
    return answers


def check_success(path: str, body: Mapping[str, Any], client: Client) -> None:
    assert client.status == 200 and not client.error, (
        path,
        body,
        client.status,
        client.body,
        client.events[-1:],
    )
    assert client.is_done or not client.events or path in ("/v1/responses", "/v1/messages"), (path, body)


def check_answers(
    asked: Sequence[Asked], clients: Sequence[Client], expected: Sequence[Any], seconds: float
) -> None:
    """Every answer of a CPU backend is the same whatever runs beside it, also an ordinary one."""
    for (path, body), client, got, wanted in zip(
        asked, clients, wait_all(clients, seconds), expected, strict=True
    ):
        check_success(path, body, client)
        assert got == wanted, (path, body, got, wanted)
