"""What the server tests of llama.cpp, vLLM and SGLang expect, on one running server.

Each row names its source: the project, the test file and the test. Rows whose source is a peer's
difference from us are in docs/http-api.md, under "Differences from vLLM, SGLang and llama.cpp".
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import httpx
import pytest

from support.serving import Server
from support.streams import events_of
from support.tiny import EOS, SPECIAL_TOKENS

LLAMA = "llama.cpp tools/server/tests/unit/"
VLLM = "vLLM tests/entrypoints/openai/"
VLLM_TESTS = "vLLM tests/"
SGLANG = "SGLang test/"
CHAT, COMPLETIONS, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize"
HELLO = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0}
CONTEXT = 512  # of the tiny model
PREFILL = [{"role": "user", "content": "the best book"}, {"role": "assistant", "content": "Whill"}]
PROMPT = {"prompt": "hello", "max_tokens": 4, "temperature": 0}
FORCED = {"structured_outputs": {"choice": ["yes#no"]}, "max_tokens": 20}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
CONTINUOUS = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
YES = {"type": "object", "properties": {"yes": {"type": "boolean"}}, "required": ["yes"]}
FINITE = {"type": "object", "properties": {"in": YES}, "required": ["in"]}
FINITE_TOOL = {"type": "function", "function": {"name": "g", "parameters": FINITE}}
ENDS = [("stop", {"in"}), ("tool_calls", {"in"})]

Check = Callable[[Any], bool]


class Row(NamedTuple):
    """A request and what is expected. `check` gets the JSON of a response, or the chunks of a
    stream; a text must be in the error."""

    source: str
    path: str
    body: dict[str, Any]
    status: int = 200
    check: Check | str = lambda answer: True


def first(answer: Any) -> Any:
    return answer["choices"][0]


def content(answer: Any) -> Any:
    return first(answer)["message"]["content"]


def written(answer: Any) -> Any:
    """The content, or the arguments of the call."""
    calls = first(answer)["message"].get("tool_calls")
    return calls[0]["function"]["arguments"] if calls else content(answer)


def named_logprobs(answer: Any) -> Any:
    return first(answer)["logprobs"]["content"][0]["top_logprobs"]


def last_choice(chunks: list[Any]) -> Any:
    return [chunk for chunk in chunks if chunk["choices"]][-1]["choices"][0]


def counts(chunks: list[Any]) -> list[int]:
    return [chunk["usage"]["completion_tokens"] for chunk in chunks]


ROWS = [
    # structured output
    Row(LLAMA + "test_chat_completion.py::test_completion_with_response_format", CHAT,
        {**HELLO, "max_tokens": 9, "response_format": {"type": "json_object", "schema": {"const": "42"}}},
        check=lambda answer: content(answer) == '"42"'),
    Row(LLAMA + "test_chat_completion.py::test_completion_with_grammar", CHAT,
        {**HELLO, "grammar": 'root ::= "a"{5,5}'}, 400, "structured_outputs.grammar with a Lark grammar"),
    # objects that list their properties are closed, so answers of a finite schema end
    *[
        Row("OpenAI: strict schemas; xgrammar: strict_mode", CHAT,
            {**HELLO, "max_tokens": 120, "truncate_prompt_tokens": 200, **body},
            check=lambda answer: (first(answer)["finish_reason"], json.loads(written(answer)).keys()) in ENDS)
        for body in (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": FINITE}}},
            {"tools": [FINITE_TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            {"tools": [FINITE_TOOL], "tool_choice": "required", "parallel_tool_calls": False,
             "include_stop_str_in_output": True, "skip_special_tokens": False},
        )
    ],
    # continuing a message
    Row(LLAMA + "test_chat_completion.py::test_chat_template_continue_final_message_mutual_exclusion", CHAT,
        {**HELLO, "messages": PREFILL, "continue_final_message": True, "add_generation_prompt": True},
        400, "continue_final_message"),
    # usage in streams
    Row(VLLM + "chat_completion/test_chat.py::test_chat_completion_stream_options", CHAT,
        {**HELLO, "stream": False, "stream_options": {"include_usage": None}}, 400, "stream_options"),
    Row(VLLM + "chat_completion/test_chat.py::test_chat_completion_stream_options", CHAT,
        {**HELLO, **CONTINUOUS, "max_tokens": 10, "min_tokens": 10},
        check=lambda chunks: counts(chunks)[-1] == 10
        and all(one["usage"]["prompt_tokens"] + count == one["usage"]["total_tokens"]
                for one, count in zip(chunks, counts(chunks), strict=True))
        and counts(chunks) == sorted(counts(chunks))),
    Row(VLLM + "completion/test_completion.py::test_completion_stream_options", COMPLETIONS,
        {**PROMPT, **CONTINUOUS, "min_tokens": 4}, check=lambda chunks: counts(chunks)[-2:] == [4, 4]),
    Row(SGLANG + "manual/openai_server/features/test_continuous_usage_stats.py::test_continuous_usage_stats_disabled",
        CHAT, {**HELLO, **USAGE}, check=lambda chunks: [bool(one["choices"]) for one in chunks if one["usage"]] == [False]),
    # the end of an answer
    Row(VLLM_TESTS + "detokenizer/test_stop_reason.py::test_stop_reason", COMPLETIONS,
        {**PROMPT, **FORCED, "stop": ["x", "#"]},
        check=lambda answer: (first(answer)["text"], first(answer)["stop_reason"]) == ("yes", "#")),
    Row(SGLANG + "registered/openai_server/validation/test_matched_stop.py::test_finish_stop_str", CHAT,
        {**HELLO, **FORCED, "stop": "#"}, check=lambda answer: first(answer)["matched_stop"] == "#"),
    Row(SGLANG + "registered/openai_server/validation/test_matched_stop.py::test_finish_stop_eos", CHAT,
        {**HELLO, "allowed_token_ids": [EOS]},
        check=lambda answer: first(answer)["matched_stop"] == EOS),
    Row(SGLANG + "registered/openai_server/validation/test_matched_stop.py::test_finish_length", CHAT,
        {**HELLO, "min_tokens": 4},
        check=lambda answer: (first(answer)["finish_reason"], first(answer)["matched_stop"]) == ("length", None)),
    Row(VLLM + "completion/test_completion.py::test_completion_streaming", COMPLETIONS,
        {**PROMPT, "stream": True, "min_tokens": 4},
        check=lambda chunks: [one["choices"][0]["finish_reason"] for one in chunks] == [None] * 3 + ["length"]
        and last_choice(chunks)["text"] != ""),
    Row(VLLM + "test_return_token_ids.py::test_chat_completion_with_emoji_and_token_ids", CHAT,
        {**HELLO, "allowed_token_ids": [EOS], "stream": True, "return_token_ids": True, "logprobs": True},
        check=lambda chunks: last_choice(chunks)["token_ids"] == [EOS]
        and last_choice(chunks)["finish_reason"] == "stop"
        and last_choice(chunks)["matched_stop"] == EOS
        and len(last_choice(chunks)["logprobs"]["content"]) == 1),
    # logprobs
    Row(VLLM + "completion/test_completion.py::test_zero_logprobs", COMPLETIONS,
        {**PROMPT, "prompt": [5] * 5, "logprobs": 0},
        check=lambda answer: [[*one] for one in first(answer)["logprobs"]["top_logprobs"]]
        == [[token] for token in first(answer)["logprobs"]["tokens"]]),
    Row(VLLM + "test_return_tokens_as_ids.py::test_completion_return_tokens_as_token_ids_completion", COMPLETIONS,
        {**PROMPT, "prompt": "Say 'Hello!' 🎉", "echo": True, "logprobs": 1, "return_tokens_as_token_ids": True},
        check=lambda answer: first(answer)["logprobs"]["tokens"][1:]
        == [next(iter(one)) for one in first(answer)["logprobs"]["top_logprobs"][1:]]
        and all(one.startswith("token_id:") for one in first(answer)["logprobs"]["tokens"])),
    Row(VLLM + "test_return_tokens_as_ids.py::test_chat_return_tokens_as_token_ids_completion", CHAT,
        {**HELLO, "logprobs": True, "top_logprobs": 1, "return_tokens_as_token_ids": True, "return_token_ids": True},
        check=lambda answer: [one["token"] for one in first(answer)["logprobs"]["content"]]
        == [f"token_id:{one}" for one in first(answer)["token_ids"]]),
    *[
        Row(VLLM + "chat_completion/test_chat.py::test_prompt_logprobs_chat", CHAT,
            {**HELLO, "prompt_logprobs": count},
            check=lambda answer: answer["prompt_logprobs"][0] is None
            and len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"])
        for count in (0, 1)
    ],
    Row(VLLM + "completion/test_completion.py::test_prompt_logprobs_completion", COMPLETIONS,
        {**PROMPT, "prompt": ["A robot may not", "My name is"], "prompt_logprobs": 1},
        check=lambda answer: all(len(one["prompt_logprobs"]) > 1 for one in answer["choices"])),
    *[
        Row(VLLM + "chat_completion/test_logprob_token_ids.py::test_logprob_token_ids_returns_requested_ids", CHAT,
            {**HELLO, "max_tokens": 1, "logprobs": True, "top_logprobs": 3, "return_tokens_as_token_ids": True,
             "allowed_token_ids": [sampled], "logprob_token_ids": [70, 71, 72]},
            check=lambda answer, sampled=sampled: {one["token"] for one in named_logprobs(answer)}
            == {f"token_id:{one}" for one in (70, 71, 72, sampled)}
            and len(named_logprobs(answer)) == len({70, 71, 72, sampled}))
        for sampled in (42, 71)
    ],
    Row(VLLM + "chat_completion/test_logprob_token_ids.py::test_logprob_token_ids_stream_with_no_top_k", CHAT,
        {**HELLO, "max_tokens": 1, "logprobs": True, "return_tokens_as_token_ids": True, "stream": True,
         "allowed_token_ids": [42], "logprob_token_ids": [70]},
        check=lambda chunks: {one["token"] for one in last_choice(chunks)["logprobs"]["content"][0]["top_logprobs"]}
        == {"token_id:42", "token_id:70"}),
    Row(VLLM + "chat_completion/test_logprob_token_ids.py::"
        "test_completion_rejects_explicit_token_ids_without_generated_tokens", COMPLETIONS,
        {**PROMPT, "max_tokens": 0, "echo": True, "logprobs": 5, "logprob_token_ids": [70]}, 400, "an answer"),
    Row(VLLM + "chat_completion/test_logprob_token_ids.py", COMPLETIONS,
        {**PROMPT, "max_tokens": 1, "logprobs": 0, "logprob_token_ids": [70, 71], "return_tokens_as_token_ids": True},
        check=lambda answer: {"token_id:70", "token_id:71"} <= {*first(answer)["logprobs"]["top_logprobs"][0]}),
    # fields
    Row(VLLM + "completion/test_completion.py::test_completion_truncation_side_controls_prompt_truncation", COMPLETIONS,
        {**PROMPT, "prompt": [*range(3, 11)], "truncate_prompt_tokens": 4, "return_token_ids": True},
        check=lambda answer: first(answer)["prompt_token_ids"] == [7, 8, 9, 10]),
    Row(VLLM + "completion/test_completion.py::test_completion_truncation_side_controls_prompt_truncation", COMPLETIONS,
        {**PROMPT, "prompt": [*range(3, 11)], "truncate_prompt_tokens": 4, "truncation_side": "right",
         "return_token_ids": True},
        check=lambda answer: first(answer)["prompt_token_ids"] == [3, 4, 5, 6]),
    Row("llama.cpp tools/server/README.md: n_predict", COMPLETIONS,
        {**PROMPT, "max_tokens": -1, "ignore_eos": True, "prompt": [5] * 500},
        check=lambda answer: answer["usage"]["total_tokens"] == CONTEXT),
    Row("llama.cpp tools/server/README.md: n_predict", CHAT,
        {**HELLO, "max_tokens": -1, "ignore_eos": True, "truncate_prompt_tokens": -1,
         "messages": [{"role": "user", "content": "hello " * 600}]},
        check=lambda answer: answer["usage"]["total_tokens"] == CONTEXT),
    Row(VLLM + "chat_completion/test_chat_logit_bias_validation.py::test_chat_logit_bias_non_integer_key", CHAT,
        {**HELLO, "logit_bias": {"not_a_token_id": 50}}, 400, "POST /tokenize"),
    Row(VLLM + "completion/test_completion.py::test_batch_completions", COMPLETIONS,
        {**PROMPT, "n": 2, "use_beam_search": True}, 400, "use n"),
    # what SDKs send
    Row("openai CompletionCreateParams", CHAT,
        {**HELLO, **dict.fromkeys(("moderation", "prompt_cache_options", "prediction", "web_search_options"))}),
    Row("openai: a fixed tool_choice", CHAT, {**HELLO, "tools": [], "tool_choice": "auto"}),
    Row("vLLM ChatCompletionRequest", CHAT,
        {**HELLO, "priority": 0, "chat_template_kwargs": {"enable_thinking": False}, "skip_special_tokens": True}),
    Row("vLLM ChatCompletionRequest", CHAT, {**HELLO, "max_tokens": 0}, 400, "/tokenize"),
    Row("vLLM ChatCompletionRequest", CHAT, {**HELLO, "max_tokens": 0, "prompt_logprobs": 0},
        check=lambda answer: answer["usage"]["completion_tokens"] == 0 and len(answer["prompt_logprobs"]) > 3),
    Row("vLLM CompletionRequest", COMPLETIONS,
        {**PROMPT, "allowed_token_ids": [EOS], "ignore_eos": True, "max_tokens": 2, "skip_special_tokens": False},
        check=lambda answer: first(answer)["text"] == SPECIAL_TOKENS[EOS] * 2),
    # another base URL
    Row(LLAMA + "test_chat_completion.py::test_chat_completion", "/chat/completions", HELLO,
        check=lambda answer: answer["choices"][0]["message"]["role"] == "assistant"),
    Row(LLAMA + "test_compat_oai_responses.py", "/responses", {"input": "hello", "max_output_tokens": 2},
        check=lambda answer: answer["object"] == "response"),
    Row(LLAMA + "test_completion.py::test_completion", "/completion", PROMPT, 404, "POST /v1/completions"),
    Row(SGLANG + "registered/openai_server/basic/test_openai_server.py::test_retrieve_model", CHAT,
        {**HELLO, "model": "non-existent-model"}, 404, "--served-model-name"),
    Row("openai: base_url with two /v1", "/v1/v1/chat/completions", HELLO, 404, "POST /v1/chat/completions"),
    Row("any: a wrong URL", "/v1/chat/completion", HELLO, 404, "typos"),
]  # fmt: skip


@pytest.fixture(scope="module")
def client(tiny_server: Server) -> Any:
    unkept = httpx.Limits(max_keepalive_connections=0)  # a route that is not found reads no body
    with httpx.Client(base_url=tiny_server.url, timeout=60, limits=unkept) as client:
        yield client


@pytest.mark.parametrize("row", ROWS, ids=[f"{n}-{row.source.split('/')[-1]}" for n, row in enumerate(ROWS)])
def test_peer_expectation(client: httpx.Client, row: Row) -> None:
    response = client.post(row.path, json=row.body)
    assert response.status_code == row.status, response.text
    if isinstance(row.check, str):
        assert row.check in response.json()["error"]["message"]
    else:
        answer = events_of(response.text) if row.body.get("stream") else response.json()
        assert row.check(answer), answer


def test_continued_message_ends_the_prompt(client: httpx.Client) -> None:
    """vLLM tests/entrypoints/openai/chat_completion/test_chat_echo.py."""
    asked = {"messages": PREFILL, "continue_final_message": True}
    ids = client.post(TOKENIZE, json=asked).json()["tokens"]
    text = client.post("/detokenize", json={"tokens": ids}).json()["prompt"]
    assert text.endswith("<|im_start|>assistant\nWhill")
    answer = client.post(CHAT, json={**HELLO, **asked, "return_token_ids": True}).json()
    assert answer["prompt_token_ids"] == ids
    open_, closed = (
        client.post(TOKENIZE, json={"messages": PREFILL, "add_generation_prompt": flag}).json()["count"]
        for flag in (True, False)
    )
    assert len(ids) < closed < open_


@pytest.mark.parametrize(("path", "body"), [(CHAT, HELLO), (COMPLETIONS, PROMPT)])
def test_request_id_names_the_response(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    """vLLM's field `request_id`; the header takes precedence."""
    named = client.post(path, json={**body, "request_id": "my-id.7"})
    assert named.headers["X-Request-Id"] == "my-id.7" and named.json()["id"].endswith("-my-id.7")
    both = client.post(path, json={**body, "request_id": "my-id.7"}, headers={"X-Request-Id": "other"})
    assert both.headers["X-Request-Id"] == "other" and both.json()["id"].endswith("-other")


def test_prompt_logprobs_are_those_of_echo(client: httpx.Client) -> None:
    """Scores in vLLM's shape have the bits of those in OpenAI's."""
    answer = client.post(
        COMPLETIONS,
        json={**PROMPT, "echo": True, "logprobs": 1, "prompt_logprobs": 3, "return_token_ids": True},
    ).json()
    choice = first(answer)
    prompt_ids, echoed = choice["prompt_token_ids"], choice["logprobs"]
    assert len(choice["prompt_logprobs"]) == len(prompt_ids) and choice["prompt_logprobs"][0] is None
    for token_id, entries, logprob, top in zip(
        prompt_ids, choice["prompt_logprobs"], echoed["token_logprobs"], echoed["top_logprobs"], strict=False
    ):
        if entries is not None:
            assert entries[str(token_id)]["logprob"] == logprob
            assert len(top) <= 2 and 3 <= len(entries) <= 4
            ranks = sorted(one["rank"] for one in entries.values() if one["rank"] is not None)
            assert ranks == [1, 2, 3]


def test_models_without_v1_are_the_same(client: httpx.Client) -> None:
    """llama.cpp tools/server/server.cpp serves both."""
    assert client.get("/models").json() == client.get("/v1/models").json()


@pytest.mark.parametrize("max_tokens", [0, 5])
def test_stream_of_an_echo_begins_with_the_logprobs_of_the_prompt(
    client: httpx.Client, max_tokens: int
) -> None:
    """SGLang test/registered/openai_server/basic/test_openai_server.py::test_completion_stream."""
    asked = {"prompt": [[*range(70, 82)], "hello<|end|> fox", [7]], "n": 1 + (max_tokens > 0), "max_tokens": max_tokens,
             "echo": True, "logprobs": 2, "deterministic": True, "seed": 3, "min_tokens": max_tokens}  # fmt: skip
    whole = client.post(COMPLETIONS, json=asked).json()["choices"]
    chunks = [first(one) for one in events_of(client.post(COMPLETIONS, json={**asked, "stream": True}).text)]
    for choice in whole:
        parts = [one for one in chunks if one["index"] == choice["index"]]
        logprobs = [part["logprobs"] for part in parts]
        assert all(logprobs) and parts[0]["logprobs"]["token_logprobs"][0] is None
        assert "".join(part["text"] for part in parts) == choice["text"]
        for name, values in choice["logprobs"].items():
            assert [value for one in logprobs for value in one[name]] == values, name
        assert parts[0]["text"] == choice["text"][: len(parts[0]["text"])] != ""
