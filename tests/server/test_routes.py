"""Holdfast's own routes and fields over HTTP: score, replay, certificate, tokenize, the `holdfast`
object.
"""

import json
from typing import Any

import pytest

from support.bodies import answer_of
from support.receipts import unsigned
from support.serving import Server
from support.streams import events_of

PROMPT = "the quick brown fox"


def ask(server: Server, **body: Any) -> dict[str, Any]:
    return answer_of(server, "/v1/completions", {"prompt": PROMPT, "max_tokens": 12, "seed": 5, **body})


def test_holdfast_object(tiny_server: Server) -> None:
    ordinary, deterministic = ask(tiny_server), ask(tiny_server, deterministic=True)
    assert ordinary["holdfast"]["mode"] == "none" and "receipt" not in ordinary["holdfast"]
    assert deterministic["holdfast"]["mode"] in ("certified", "verified")
    assert deterministic["holdfast"]["seed"] == 5
    stats = deterministic["holdfast"]["stats"]
    assert stats["accepted"] + stats["canonical_tokens"] == deterministic["usage"]["completion_tokens"]
    structured = ask(tiny_server, deterministic=True, guided_regex="[ab]{4}")
    digest = tiny_server.get("/v1/certificate").json()["fingerprint"]["digest"]
    assert deterministic["system_fingerprint"] == structured["system_fingerprint"] == digest


def test_generated_seed_reproduces_the_completion(tiny_server: Server) -> None:
    first = ask(tiny_server, seed=None, deterministic=True, temperature=1.0)
    again = ask(tiny_server, seed=first["holdfast"]["seed"], deterministic=True, temperature=1.0)
    assert again["choices"] == first["choices"]


def test_score_equals_generation_bitwise(tiny_server: Server) -> None:
    made = ask(tiny_server, deterministic=True, logprobs=0, return_token_ids=True)
    ids = made["choices"][0]["token_ids"]
    scored = tiny_server.post(
        "/v1/score", {"prompt": PROMPT, "completion": ids, "return_receipt": True}
    ).json()
    assert scored["logprobs"] == made["choices"][0]["logprobs"]["token_logprobs"]
    assert scored["token_ids"] == ids and scored["holdfast"]["mode"] in ("certified", "verified")
    assert scored["holdfast"]["receipt"]["format"].startswith("holdfast-receipt")


@pytest.mark.parametrize("extra", [{"n": 3}, {"echo": True, "logprobs": 4}])
def test_receipt_replays(tiny_server: Server, extra: dict[str, Any]) -> None:
    made = ask(tiny_server, deterministic=True, return_receipt=True, temperature=0.7, **extra)
    receipt = made["holdfast"]["receipt"]
    outcome = tiny_server.post("/v1/replay", {"receipt": receipt}).json()
    assert outcome["same"] and outcome["compared"] and outcome["promised"], outcome
    assert outcome["num_tokens"] == made["usage"]["completion_tokens"]
    assert (outcome["seal"], outcome["signature"]) == ("intact", "valid")
    wrong = json.loads(json.dumps(receipt))
    wrong["choices"][0]["token_ids"][3] += 1
    answer = tiny_server.post("/v1/replay", {"receipt": wrong})
    assert answer.status_code == 400
    if "logprobs" in extra:  # their digest covers more than the receipt contains; the replay recomputes it
        assert "its seal is broken" in answer.json()["error"]["message"]
        answer = tiny_server.post("/v1/replay", {"receipt": unsigned(wrong)})
        assert answer.json()["same"] is False and answer.json()["difference"]["position"] == 3
    else:
        assert "digest" in answer.json()["error"]["message"]


def test_receipt_without_prompt_requires_it(tiny_server: Server) -> None:
    made = ask(tiny_server, deterministic=True, return_receipt=True)
    receipt = made["holdfast"]["receipt"]
    ids = receipt["prompt"]["token_ids"]
    receipt["prompt"]["token_ids"] = None
    assert tiny_server.post("/v1/replay", {"receipt": receipt}).status_code == 400
    assert tiny_server.post("/v1/replay", {"receipt": receipt, "prompt_token_ids": ids}).json()["same"]
    salt, receipt["prompt"]["salt"] = receipt["prompt"]["salt"], None
    assert tiny_server.post("/v1/replay", {"receipt": receipt, "prompt_token_ids": ids}).status_code == 400
    whole = {"receipt": receipt, "prompt_token_ids": ids, "prompt_salt": salt}
    assert tiny_server.post("/v1/replay", whole).json()["same"]


def test_tokenize_equals_the_chat_prompt(tiny_server: Server) -> None:
    function = {"name": "look_up", "parameters": {"type": "object", "properties": {}}}
    conversation = {
        "messages": [{"role": "developer", "content": "a"}, {"role": "user", "content": "b"}],
        "tools": [{"type": "function", "function": function}],
    }
    tokens = tiny_server.post("/tokenize", {"messages": conversation["messages"]}).json()["tokens"]
    request = {"messages": conversation["messages"], "max_tokens": 1, "return_token_ids": True}
    assert tiny_server.post("/v1/chat/completions", request).json()["prompt_token_ids"] == tokens
    # With a tool the prompt exceeds this model's context, so only its text is compared.
    with_tools = tiny_server.post("/tokenize", conversation).json()["tokens"]
    shown = tiny_server.post("/detokenize", {"tokens": with_tools}).json()["prompt"]
    assert "look_up" in shown and "<|im_start|>system\na" in shown


def test_version_models_and_certificate(tiny_server: Server) -> None:
    from holdfast import __version__

    certificate = {"state": "certified", "checks_done": 0, "checks": 0}
    assert tiny_server.get("/health").json() == {"status": "ok", "certificate": certificate}
    assert tiny_server.get("/version").json() == {"version": __version__}
    (model,) = tiny_server.get("/v1/models").json()["data"]
    assert (model["id"], model["about"]) == ("tiny", None)
    certificate = tiny_server.get("/v1/certificate").json()
    assert certificate["determinism"] == "auto" and certificate["certificate"]["sizes"]
    assert certificate["revocation"] is None


def test_choice_indices_of_a_batch(tiny_server: Server) -> None:
    body: dict[str, Any] = {
        "prompt": [[5, 6, 7], [8, 9], [10]],
        "n": 2,
        "deterministic": True,
        "seed": 1,
        "max_tokens": 5,
    }
    whole = tiny_server.post("/v1/completions", body).json()
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3, 4, 5]
    assert len(whole["holdfast"]["requests"]) == 3
    streamed = events_of(tiny_server.post("/v1/completions", {**body, "stream": True}).text)
    texts = [""] * 6
    for chunk in streamed:
        for choice in chunk["choices"]:
            texts[choice["index"]] += choice["text"]
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert streamed[-1]["holdfast"]["mode"] == whole["holdfast"]["mode"]


def test_stream_returns_prompt_token_ids(tiny_server: Server) -> None:
    body: dict[str, Any] = {
        "prompt": [[5, 6, 7], [8, 9]],
        "max_tokens": 3,
        "stream": True,
        "return_token_ids": True,
    }
    chunks = events_of(tiny_server.post("/v1/completions", body).text)
    with_ids = [choice for chunk in chunks for choice in chunk["choices"] if "prompt_token_ids" in choice]
    assert {choice["index"]: choice["prompt_token_ids"] for choice in with_ids} == {0: [5, 6, 7], 1: [8, 9]}
    assert len(with_ids) == 2
    chat = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 2,
        "stream": True,
        "return_token_ids": True,
    }
    first = events_of(tiny_server.post("/v1/chat/completions", chat).text)[0]
    assert first["prompt_token_ids"]


def test_unsupported_route_error_names_an_alternative(tiny_server: Server) -> None:
    answer = tiny_server.post("/v1/assistants", {"input": "hi"})
    assert answer.status_code == 404 and "/v1/chat/completions" in answer.json()["error"]["message"]
    for path, ours in (("/generate", "/v1/completions"), ("/rerank", "/v1/score"), ("/slots", "/metrics")):
        assert ours in tiny_server.post(path, {"text": "hi"}).json()["error"]["message"]
    assert tiny_server.get("/v1/nothing").json()["error"]["code"] == "unknown_url"
