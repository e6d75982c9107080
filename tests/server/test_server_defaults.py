"""`serve --deterministic`: clients that know nothing of the field get the guarantee and one seed."""

from typing import Any

import pytest

from support.serving import Server

PROMPT = "the quick brown fox"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 8}),
        ("/v1/chat/completions", CHAT),
        ("/v1/messages", CHAT),
        ("/v1/responses", {"input": PROMPT, "max_output_tokens": 8}),
    ],
)
def test_every_api_has_the_defaults(deterministic_server: Server, path: str, body: dict[str, Any]) -> None:
    first, second = (
        deterministic_server.post(path, {**body, "return_token_ids": True}).json() for _ in range(2)
    )
    assert first["holdfast"]["mode"] in ("certified", "verified") and first["holdfast"]["seed"] == 0
    assert answer_ids(first) == answer_ids(second) and len(answer_ids(first)) == 8


def answer_ids(answer: dict[str, Any]) -> list[int]:
    ids: list[int] = answer["choices"][0]["token_ids"] if "choices" in answer else answer["token_ids"]
    return ids
