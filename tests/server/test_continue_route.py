"""POST /v1/continue: the rest of a receipt's answer, and every way in which it is refused."""

import copy
import json
from typing import Any

import pytest

from holdfast import SamplingParams
from holdfast.receipts.receipt import digest_logprobs
from support.bodies import answer_of
from support.receipts import receipt_of, unsigned
from support.serving import Server
from support.streams import Client

ASKED: dict[str, Any] = {
    "prompt": "the dog",
    "seed": 9,
    "temperature": 0.9,
    "deterministic": True,
    "ignore_eos": True,
    "return_receipt": True,
    "return_token_ids": True,
}


def ask(server: Server, max_tokens: int, **changes: Any) -> dict[str, Any]:
    return answer_of(server, "/v1/completions", {**ASKED, **changes, "max_tokens": max_tokens})


def receipt_in(body: dict[str, Any]) -> dict[str, Any]:
    receipt: dict[str, Any] = body["holdfast"]["receipt"]
    return receipt


@pytest.mark.parametrize(
    "changes",
    [{"logprobs": 2}, {"n": 4, "ignore_eos": False, "stop": ["e", "a"], "min_tokens": 2, "temperature": 1.5}],
    ids=["logprobs", "choices"],
)
def test_rest_follows_the_receipt(tiny_server: Server, changes: dict[str, Any]) -> None:
    begun, whole = ask(tiny_server, 8, **changes), ask(tiny_server, 30, **changes)
    body = {"receipt": receipt_in(begun), "max_tokens": 30, "return_token_ids": True, "return_receipt": True}
    rest = tiny_server.post("/v1/continue", body).json()
    assert rest["object"] == "text_completion" and rest["system_fingerprint"] == whole["system_fingerprint"]
    for one, two, three in zip(begun["choices"], rest["choices"], whole["choices"], strict=True):
        assert one["token_ids"] + two["token_ids"] == three["token_ids"]
        # The beginning may end in an unfinished character, which the rest completes.
        ends = [one["text"][: len(one["text"]) - num] + two["text"] for num in range(4)]
        assert three["text"] in ends
        assert two["finish_reason"] == three["finish_reason"]
        if "logprobs" in changes:
            logprobs = (each["logprobs"]["token_logprobs"] for each in (one, two, three))
            assert next(logprobs) + next(logprobs) == next(logprobs)
    assert receipt_in(rest)["choices"] == receipt_in(whole)["choices"]
    assert rest["usage"]["completion_tokens"] == sum(len(one["token_ids"]) for one in rest["choices"])
    streamed = Client(tiny_server, "/v1/continue", **body, stream=True).wait()
    assert streamed.is_done and streamed.status == 200, streamed.body
    for index, choice in enumerate(rest["choices"]):
        own = [one for event in streamed.events for one in event["choices"] if one["index"] == index]
        assert "".join(one["text"] for one in own) == choice["text"]
        assert [id_ for one in own for id_ in one["token_ids"]] == choice["token_ids"]
        assert own[-1]["finish_reason"] == choice["finish_reason"]


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_contradiction_is_a_conflict(tiny_server: Server, stream: bool) -> None:
    forged = copy.deepcopy(receipt_in(ask(tiny_server, 8)))
    (choice,) = forged["choices"]
    bits = choice["logprobs"]["bits"]
    bits[6] = f"{int(bits[6], 16) ^ 1:08x}"
    choice["logprobs"]["digest"] = digest_logprobs(choice["token_ids"], bits)
    body = {"receipt": unsigned(forged), "max_tokens": 30, "stream": stream}
    refused = tiny_server.post("/v1/continue", body)
    assert refused.status_code == 409 and refused.json()["error"]["code"] == "guarantee_lost"
    tiny_server.wait_idle()
    assert tiny_server.get("/v1/certificate").json()["revocation"] is None


def test_other_engine_is_a_conflict_unless_forced(tiny_server: Server) -> None:
    receipt = receipt_in(ask(tiny_server, 2))
    foreign = copy.deepcopy(receipt)
    foreign["fingerprint"] = json.loads(
        json.dumps(receipt_of(SamplingParams(deterministic=True))["fingerprint"])
    )
    body = {"receipt": unsigned(foreign), "max_tokens": 9}
    refused = tiny_server.post("/v1/continue", body)
    assert refused.status_code == 409 and refused.json()["error"]["code"] == "fingerprint_differs"
    forced = tiny_server.post("/v1/continue", {**body, "force": True, "return_token_ids": True})
    assert forced.status_code == 200 and len(forced.json()["choices"][0]["token_ids"]) == 7


def test_bad_continuations_are_refused(tiny_server: Server) -> None:
    receipt = receipt_in(ask(tiny_server, 8))
    for body, message in (
        ({"receipt": receipt, "max_tokens": 8}, "ask for more tokens"),
        ({"receipt": receipt, "max_tokens": 1 << 20}, "context"),
        ({"receipt": receipt}, "max_tokens"),
        ({"receipt": receipt, "max_tokens": 16, "temperature": 0}, "temperature"),
    ):
        refused = tiny_server.post("/v1/continue", body)
        assert refused.status_code == 400 and message in refused.json()["error"]["message"], refused.text


def test_thoughts_go_on_after_those_of_the_receipt(thinking_server: Server) -> None:
    """A receipt leaves trivial thoughts out, also at its end."""
    settings = {"prompt": "heads tails the coin is " * 3, "model": "thinker", "temperature": 1.5}
    whole = ask(thinking_server, 30, **settings, n=2)
    for length in range(10, 15):
        begun = ask(thinking_server, length, **settings, n=2)
        body = {"receipt": receipt_in(begun), "max_tokens": 30, "return_receipt": True}
        rest = thinking_server.post("/v1/continue", body).json()
        assert receipt_in(rest)["choices"] == receipt_in(whole)["choices"]
        for index in range(2):
            one, two, three = (
                [thought for thought in each["holdfast"]["thoughts"] if thought["index"] == index]
                for each in (begun, rest, whole)
            )
            assert one + two == three and one, length
    again = thinking_server.post("/v1/replay", {"receipt": receipt_in(rest)}).json()
    assert again["same"] and again["compared"]
    forged = copy.deepcopy(receipt_in(begun))
    forged["choices"][0]["thoughts"].append([1 << 30, [5]])
    refused = thinking_server.post("/v1/continue", {"receipt": unsigned(forged), "max_tokens": 40})
    assert refused.status_code == 400 and "thought" in refused.json()["error"]["message"], refused.text


MESSAGES = {"messages": [{"role": "user", "content": "the dog"}], "logprobs": True, "top_logprobs": 1}
OWN = {
    "/v1/completions": {**ASKED, "logprobs": 1, "max_tokens": 24},
    "/v1/chat/completions": {**ASKED, **MESSAGES, "max_tokens": 24},
}
ORDINARY = {"deterministic": False, "return_receipt": False}
del OWN["/v1/chat/completions"]["prompt"]


def shown(choice: dict[str, Any]) -> tuple[str, list[float]]:
    """The text of a choice, and its logprobs."""
    logprobs = choice["logprobs"]
    if "text" in choice:
        return choice["text"], logprobs["token_logprobs"]
    return choice["message"]["content"], [one["logprob"] for one in logprobs["content"]]


@pytest.mark.parametrize("path", OWN)
def test_rest_follows_own_tokens(tiny_server: Server, path: str) -> None:
    whole = tiny_server.post(path, OWN[path]).json()
    (choice,) = whole["choices"]
    ids, (text, logprobs) = choice["token_ids"], shown(choice)
    for length in (0, 1, 17, 23):
        body = {"request": OWN[path], "token_ids": ids[:length]}
        rest = tiny_server.post("/v1/continue", body).json()
        assert rest["object"] == whole["object"] and rest["usage"]["completion_tokens"] == 24 - length
        assert rest["holdfast"]["mode"] == whole["holdfast"]["mode"] != "none"
        assert receipt_in(rest)["choices"] == receipt_in(whole)["choices"]
        (end,) = rest["choices"]
        assert end["token_ids"] == ids[length:] and end["finish_reason"] == choice["finish_reason"]
        assert text.endswith(shown(end)[0]) and shown(end)[1] == logprobs[length:]
        body["request"] = {**OWN[path], "stream": True}
        streamed = Client(tiny_server, "/v1/continue", **body).wait()
        assert streamed.is_done and streamed.status == 200, streamed.body
        events = [one for event in streamed.events for one in event["choices"]]
        assert [id_ for one in events for id_ in one.get("token_ids", ())] == ids[length:]
        parts = [one["text"] if "text" in one else one["delta"].get("content", "") for one in events]
        assert "".join(parts) == shown(end)[0]


@pytest.mark.parametrize("path", OWN)
def test_contradicting_tokens_are_a_conflict(tiny_server: Server, path: str) -> None:
    """Those of an ordinary answer are committed as they are."""
    (choice,) = tiny_server.post(path, OWN[path]).json()["choices"]
    for at, stream in ((0, False), (9, True), (11, False)):
        ids = choice["token_ids"][:12]
        ids[at] = (ids[at] + 1) % 100 + 10
        request = {**OWN[path], "stream": stream}
        refused = tiny_server.post("/v1/continue", {"request": request, "token_ids": ids})
        assert refused.status_code == 409 and refused.json()["error"]["code"] == "guarantee_lost"
        request |= {**ORDINARY, "stream": False}
        rest = tiny_server.post("/v1/continue", {"request": request, "token_ids": ids}).json()
        assert rest["holdfast"]["mode"] == "none" and len(rest["choices"][0]["token_ids"]) == 12
    tiny_server.wait_idle()
    assert tiny_server.get("/v1/certificate").json()["revocation"] is None


def test_calls_go_on_after_own_tokens(tools_server: Server) -> None:
    tool = {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}}
    request = {
        **OWN["/v1/chat/completions"],
        "ignore_eos": False,
        "max_tokens": 60,
        "tools": [{"type": "function", "function": tool}],
        "tool_choice": "required",
    }
    (choice,) = answer_of(tools_server, "/v1/chat/completions", request)["choices"]
    (call,) = choice["message"]["tool_calls"]
    kept = set()
    for length in range(0, len(choice["token_ids"]), 7):
        body = {"request": request, "token_ids": choice["token_ids"][:length]}
        (rest,) = tools_server.post("/v1/continue", body).json()["choices"]
        assert rest["finish_reason"] == choice["finish_reason"]
        for one in rest["message"].get("tool_calls", ()):
            assert (one["id"], one["function"]["name"]) == (call["id"], "look")
            assert call["function"]["arguments"].endswith(one["function"]["arguments"])
            kept.add(len(one["function"]["arguments"]))
    assert len(kept) > 2
    for changes, code in (({}, "guarantee_lost"), (ORDINARY, "answer_impossible")):
        body = {"request": {**request, **changes}, "token_ids": choice["token_ids"][:3] * 2}
        refused = tools_server.post("/v1/continue", body).json()
        assert refused["error"]["code"] == code, refused
    assert tools_server.get("/health").status_code == 200


def test_bad_tokens_are_refused(tiny_server: Server, thinking_server: Server) -> None:
    request = {"prompt": "the dog", "max_tokens": 8, "seed": 1}
    (choice,) = tiny_server.post(
        "/v1/completions", {**ASKED, "ignore_eos": False, "stop": ["e", "a", "o"], "max_tokens": 60}
    ).json()["choices"]
    assert choice["finish_reason"] == "stop"
    for changes, token_ids, param, message in (
        ({}, [1] * 8, "token_ids", "8 tokens and max_tokens is 8"),
        ({}, [1, 1 << 20], "token_ids", "vocabulary"),
        ({}, [-1], "token_ids[0]", ">= 0"),
        ({"stop_token_ids": [7]}, [5, 7, 5], "token_ids", "ends it"),
        ({"stop": ["e", "a", "o"], "max_tokens": 99}, choice["token_ids"], "token_ids", "ends"),
        ({"n": 2}, [1], "n", "one answer"),
        ({"seed": None}, [1], "seed", "sampled"),
        ({"echo": True}, [1], "echo", "prompt"),
        ({"return_receipt": True}, [1], "return_receipt", "ordinary"),
        ({"prompt": ["a", "b"]}, [1], "prompt", "at most 1"),
        ({"max_tokens": "8"}, [1], "request.max_tokens", "an integer"),
        ({"model": "none"}, [1], "model", "does not exist"),
        ({"messages": []}, [1], "request.messages", "too short"),
    ):
        body = {"request": {**request, **changes}, "token_ids": token_ids}
        refused = tiny_server.post("/v1/continue", body)
        error = refused.json()["error"]
        status = 404 if param == "model" else 400
        assert refused.status_code == status and error["param"] == param and message in error["message"], (
            error
        )
    for body, param in (
        ({"token_ids": [1]}, "request"),
        ({"request": request}, "token_ids"),
        ({"request": request, "token_ids": [], "max_tokens": 9}, "max_tokens"),
    ):
        assert tiny_server.post("/v1/continue", body).json()["error"]["param"] == param
    thinking = {"request": {**request, "model": "thinker"}, "token_ids": [1]}
    refused = thinking_server.post("/v1/continue", thinking)
    assert refused.status_code == 400 and "receipt" in refused.json()["error"]["message"], refused.text
