"""`serve --deterministic`: clients that know nothing of the field get the guarantee and one seed."""

from typing import Any

import openai
import pytest

from support.serving import Server

PROMPT = "the quick brown fox"


@pytest.fixture(scope="module")
def client(deterministic_server: Server) -> Any:
    url = f"{deterministic_server.url}/v1"
    with openai.OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


def complete(client: openai.OpenAI, prompt: str = PROMPT, **settings: Any) -> Any:
    return client.completions.create(model="tiny", prompt=prompt, max_tokens=12, logprobs=2, **settings)


def told(answer: Any) -> tuple[str, int]:
    about = answer.model_extra["holdfast"]
    return about["mode"], about["seed"]


def test_request_without_fields_is_deterministic_with_seed_0(client: openai.OpenAI) -> None:
    mode, seed = told(complete(client))
    assert mode in ("certified", "verified") and seed == 0


def test_every_chat_api_has_the_defaults(deterministic_server: Server) -> None:
    asked = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 8}
    bodies = {
        "/v1/chat/completions": asked,
        "/v1/messages": asked,
        "/v1/responses": {"input": PROMPT, "max_output_tokens": 8},
    }
    for path, body in bodies.items():
        first, second = (
            deterministic_server.post(path, {**body, "return_token_ids": True}).json() for _ in range(2)
        )
        assert first["holdfast"]["mode"] in ("certified", "verified") and first["holdfast"]["seed"] == 0
        assert answer_ids(first) == answer_ids(second) and len(answer_ids(first)) == 8


def answer_ids(answer: dict[str, Any]) -> list[int]:
    ids: list[int] = answer["choices"][0]["token_ids"] if "choices" in answer else answer["token_ids"]
    return ids
