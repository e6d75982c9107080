"""OpenAI's client with the default model: chat, streams, logprobs, JSON, tools, determinism."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from support.serving import Server

pytestmark = pytest.mark.smollm2

QUESTION: Any = [{"role": "user", "content": "Name three rivers of Europe."}]
DETERMINISTIC = {"deterministic": True}


@pytest.fixture(scope="module")
def client(smollm2_server: Server) -> Iterator[openai.OpenAI]:
    url = f"{smollm2_server.url}/v1"
    with openai.OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=120) as client:
        yield client


def test_tokenizer_info_of_the_default_model(smollm2_server: Server) -> None:
    """In this file, so that one server of the default model is enough."""
    info = smollm2_server.get("/tokenizer_info").json()
    assert info["eos_token"] == "<|im_end|>" and info["bos_token"] == "<|im_start|>"
    for text in (info["eos_token"], info["bos_token"]):
        answer = smollm2_server.post("/tokenize", {"prompt": text, "add_special_tokens": False})
        assert len(answer.json()["tokens"]) == 1
    assert "<|im_start|>" in info["chat_template"] and not info["add_bos_token"]


def test_deterministic_request_is_bitwise_equal_under_load(client: openai.OpenAI) -> None:
    def ask(number: int) -> tuple[str, Any]:
        settings: Any = {"model": "smollm2", "max_tokens": 12, "temperature": 0.8}
        if number % 3:  # load: other prompts with other sampling
            text = f"Tell a story about the number {number}."
            client.chat.completions.create(messages=[{"role": "user", "content": text}], **settings)
            return "", None
        answer = client.chat.completions.create(
            messages=QUESTION, seed=7, logprobs=True, extra_body=DETERMINISTIC, **settings
        )
        assert answer.model_extra is not None and answer.model_extra["holdfast"]["mode"] in (
            "certified",
            "verified",
        )
        return answer.choices[0].message.content or "", answer.choices[0].logprobs

    alone = ask(0)
    with ThreadPoolExecutor(9) as pool:
        others = [answer for answer in pool.map(ask, range(18)) if answer[0]]
    assert len(others) == 6 and all(answer == alone for answer in others)
