"""OpenAI's client with the default model: logprobs and determinism."""

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


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="smollm2", messages=QUESTION, max_tokens=6, temperature=0, logprobs=True, top_logprobs=3
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None and logprobs.content is not None and len(logprobs.content) == 6
    for one in logprobs.content:
        assert len(one.top_logprobs) == 3 and one.top_logprobs[0].logprob == one.logprob <= 0
        assert bytes(one.bytes or ()).decode() == one.token
    assert "".join(one.token for one in logprobs.content) == answer.choices[0].message.content


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
