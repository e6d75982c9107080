"""A thinking model over HTTP: thoughts in the `holdfast` object, streamed or not, and its request
fields.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast import LLM, SamplingParams
from support.bodies import answer_of
from support.serving import Server
from support.streams import events_of

PROMPT = "heads tails the coin is flips heads heads tails the"
QUESTION: Any = [{"role": "user", "content": PROMPT}]
SETTINGS: dict[str, Any] = {"max_tokens": 14, "seed": 5, "ignore_eos": True, "deterministic": True}


def complete(server: Server, **body: Any) -> dict[str, Any]:
    return answer_of(server, "/v1/completions", {"prompt": PROMPT, **SETTINGS, **body})


def stream(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    return events_of(server.post(path, {**SETTINGS, **body, "stream": True}).text)


def stream_thoughts(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All thoughts of a stream, in the order of a whole response."""
    thoughts = [one for chunk in chunks for one in chunk.get("holdfast", {}).get("thoughts", ())]
    return sorted(thoughts, key=lambda one: one["index"])


def test_thoughts_equal_those_of_the_engine(thinking_server: Server, thinking_model: Path) -> None:
    answer = complete(thinking_server, n=2, return_token_ids=True)
    params = SamplingParams(**{**SETTINGS, "n": 2})
    here = LLM(str(thinking_model)).generate([PROMPT], params)[0]
    assert [tuple(one["token_ids"]) for one in answer["choices"]] == [one.token_ids for one in here.choices]
    expected = [
        (index, one.chunk, one.position, one.text, list(one.token_ids))
        for index, choice in enumerate(here.choices)
        for one in choice.thoughts
    ]
    assert [tuple(one.values()) for one in answer["holdfast"]["thoughts"]] == expected
    kinds = {bool(token_ids) for *_, token_ids in expected}
    assert kinds == {True, False}, "the model has no thoughts to tell, or no trivial ones"


def test_stream_sends_each_thought_once(thinking_server: Server) -> None:
    whole = complete(thinking_server, n=2)
    chunks = stream(thinking_server, "/v1/completions", {"prompt": PROMPT, "n": 2})
    assert stream_thoughts(chunks) == whole["holdfast"]["thoughts"]
    assert all(len(chunk["choices"]) == 1 for chunk in chunks)
    assert "thoughts" not in chunks[-1]["holdfast"] and "stats" in chunks[-1]["holdfast"]
    prompt_len, num_tokens = whole["usage"]["prompt_tokens"], 0
    for chunk in stream(thinking_server, "/v1/completions", {"prompt": PROMPT, "return_token_ids": True}):
        for one in chunk.get("holdfast", {}).get("thoughts", ()):
            assert one["position"] + 1 >= prompt_len + num_tokens or num_tokens == 0
            assert one["position"] < prompt_len + num_tokens  # sent before the tokens that follow it
        num_tokens += len(chunk["choices"][0]["token_ids"])


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_other_chat_apis_have_the_same_thoughts(thinking_server: Server, path: str) -> None:
    given = {name: value for name, value in SETTINGS.items() if name != "max_tokens"}
    bodies = {
        "/v1/responses": {"input": PROMPT, "max_output_tokens": 14},
        "/v1/messages": {"messages": QUESTION, "max_tokens": 14},
    }
    body = {**given, **bodies[path]}
    chat = thinking_server.post("/v1/chat/completions", {**SETTINGS, "messages": QUESTION}).json()
    thoughts = chat["holdfast"]["thoughts"]
    assert thoughts and thinking_server.post(path, body).json()["holdfast"]["thoughts"] == thoughts
    text = thinking_server.post(path, {**body, "stream": True}).text
    events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: ")]
    assert stream_thoughts(events) == thoughts
    if path == "/v1/responses":  # its last event has the whole response
        assert events[-1]["response"]["holdfast"]["thoughts"] == thoughts
    declined = thinking_server.post(path, {**body, "think": False}).json()
    assert declined["holdfast"]["thoughts"] == []


def test_server_without_a_key_has_no_public_key(thinking_server: Server) -> None:
    answer = thinking_server.get("/v1/receipt_key")
    assert answer.status_code == 404 and answer.json()["error"]["code"] == "no_receipt_key"


@pytest.mark.parametrize(
    ("body", "expected_message"),
    [
        ({"think": "no"}, "'think': expected a boolean"),
        ({"forced_thoughts": {"first": [5]}}, "its keys must be chunk indices"),
        ({"forced_thoughts": {"0": [10**6]}}, "token id 1000000 is not in the vocabulary"),
        ({"forced_thoughts": {"0": [5, 5, 5, 5]}}, "has at most 3 tokens"),
        ({"forced_thoughts": {"0": [5]}, "think": False}, "forced_thoughts are for a request that thinks"),
    ],
)
def test_invalid_thinking_fields_are_refused(
    thinking_server: Server, body: dict[str, Any], expected_message: str
) -> None:
    answer = thinking_server.post("/v1/completions", {"prompt": PROMPT, **SETTINGS, **body})
    assert answer.status_code == 400, answer.text
    assert expected_message in answer.json()["error"]["message"]


@pytest.mark.parametrize("how", [{}, {"think": False}, {"forced_thoughts": {"0": [7], "2": []}}], ids=str)
def test_score_uses_the_same_thoughts(thinking_server: Server, how: dict[str, Any]) -> None:
    answer = complete(thinking_server, logprobs=0, return_token_ids=True, **how)["choices"][0]
    request = {"prompt": PROMPT, "completion": answer["token_ids"]}
    scored = thinking_server.post("/v1/score", {**request, **how}).json()
    assert scored["logprobs"] == answer["logprobs"]["token_logprobs"]
    if how:
        assert thinking_server.post("/v1/score", request).json()["logprobs"] != scored["logprobs"]


def test_other_models_have_no_thoughts_field(tiny_server: Server) -> None:
    body = {"prompt": "the quick brown fox", "max_tokens": 6, "seed": 5}
    answers = [
        tiny_server.post("/v1/completions", {**body, **more}).json() for more in ({}, {"think": False})
    ]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert all("thoughts" not in one["holdfast"] for one in answers)
    chat = {"messages": QUESTION, "max_tokens": 6, "seed": 5}
    assert "thoughts" not in tiny_server.post("/v1/chat/completions", chat).json()["holdfast"]
    for chunk in stream(tiny_server, "/v1/completions", {"prompt": "the fox", "ignore_eos": False}):
        assert "thoughts" not in chunk.get("holdfast", {})


@pytest.mark.parametrize(
    "fields", [{"think": True}, {"forced_thoughts": {"0": [5]}}], ids=["think", "forced"]
)
def test_other_models_refuse_thinking_fields(tiny_server: Server, fields: dict[str, Any]) -> None:
    answer = tiny_server.post("/v1/score", {"prompt": PROMPT, "completion": " heads", **fields})
    error = answer.json()["error"]
    assert answer.status_code == 400 and error["param"] in fields and error["code"] == "unsupported_value"
    assert "thinking models, and this model is none" in error["message"]
