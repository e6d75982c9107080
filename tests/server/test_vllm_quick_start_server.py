"""The requests of vLLM's quick start for its OpenAI-compatible server, with another model."""

import httpx
from openai import OpenAI

from support.serving import Server


def test_plain_http_requests(tiny_server: Server) -> None:
    url = f"{tiny_server.url}/v1"
    models = httpx.get(f"{url}/models").json()
    assert [model["id"] for model in models["data"]] == ["tiny"]
    body = {"model": "tiny", "prompt": "the quick brown", "max_tokens": 7, "temperature": 0}
    completion = httpx.post(f"{url}/completions", json=body, timeout=60).json()
    assert completion["object"] == "text_completion" and completion["usage"]["completion_tokens"] <= 7
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    chat = httpx.post(
        f"{url}/chat/completions", json={"model": "tiny", "messages": messages, "max_tokens": 7}, timeout=60
    ).json()
    assert chat["choices"][0]["message"]["role"] == "assistant"


def test_openai_client(tiny_server: Server) -> None:
    with OpenAI(api_key="EMPTY", base_url=f"{tiny_server.url}/v1") as client:
        assert client.models.list().data[0].id == "tiny"
        completion = client.completions.create(model="tiny", prompt="the quick brown")
        assert isinstance(completion.choices[0].text, str)
        chat = client.chat.completions.create(
            model="tiny",
            messages=[{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}],
            max_tokens=8,
        )
        assert isinstance(chat.choices[0].message.content, str)
