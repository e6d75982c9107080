"""Requests that brought other servers down, and their relatives: a path, a body as it goes out, and the answer it must get.

200 means that it does no harm here and is answered like any request. The model is tiny: 320 token ids, 300 of them with a
text, a context of 512. The requests themselves are in `hostile_values` and `hostile_shapes`.
"""

import json
from dataclasses import dataclass
from typing import Any

COMPLETIONS, CHAT, SCORE = "/v1/completions", "/v1/chat/completions", "/v1/score"
HALF = "\ud800"  # half of a surrogate pair: JSON can say it, UTF-8 cannot


@dataclass(frozen=True)
class Hostile:
    name: str
    path: str
    body: bytes
    status: int
    says: str  # a part of the message


def raw(name: str, body: bytes, says: str = "", status: int = 400, path: str = COMPLETIONS) -> Hostile:
    return Hostile(name, path, body, status, says)


def plain(name: str, says: str = "", status: int = 400, **fields: Any) -> Hostile:
    body = {"prompt": "hi", "max_tokens": 2, **fields}
    return Hostile(name, COMPLETIONS, json.dumps(body).encode(), status, says)


def chat(name: str, says: str = "", status: int = 400, **fields: Any) -> Hostile:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, **fields}
    return Hostile(name, CHAT, json.dumps(body).encode(), status, says)


def said(name: str, content: Any, says: str = "", status: int = 400, **fields: Any) -> Hostile:
    """A chat of one message."""
    return chat(name, says, status, messages=[{"role": "user", "content": content, **fields}])


def tool(name: str, description: str | None = None, **schema: Any) -> dict[str, Any]:
    function = {"name": name, "description": description, "parameters": {"type": "object", **schema}}
    return {"type": "function", "function": function}


def form(schema: Any, name: str = "x") -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema}}


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


def many(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{one}": {"type": "string"} for one in range(count)}}
