"""`serve --deterministic`: clients that know nothing of the field get the guarantee and one seed."""

from concurrent.futures import ThreadPoolExecutor
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


def test_request_may_decline_or_bring_its_own_seed(client: openai.OpenAI) -> None:
    assert told(complete(client, extra_body={"deterministic": False})) == ("none", 0)
    assert told(complete(client, seed=7))[1] == 7


def test_stream_names_the_seed(client: openai.OpenAI) -> None:
    *_, last = complete(client, stream=True)
    assert told(last)[1] == 0


def test_sampled_answers_of_a_load_are_one_for_each_prompt_and_seed(client: openai.OpenAI) -> None:
    asked = [(f"{PROMPT} {n % 3}", n % 2) for n in range(36)]
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda one: complete(client, one[0], seed=one[1], temperature=1.0), asked))
    seen: dict[tuple[str, int], set[str]] = {}
    for one, answer in zip(asked, answers, strict=True):
        seen.setdefault(one, set()).add(answer.choices[0].model_dump_json())
    assert len(seen) == 6 and all(len(texts) == 1 for texts in seen.values())
    assert len({text for texts in seen.values() for text in texts}) == 6  # prompt and seed decide
