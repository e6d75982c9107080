"""Bad bodies over HTTP: every kind of refusal is OpenAI's error object, and the next request is served.

Each value is tested where it is refused: JSON in `http/test_body`, fields in `api/test_request_models`,
settings in `core/test_sampling_params`, prompts in `engine/test_input_processor`, grammars in
`structured/test_bad_grammars`, conversations in `text/test_chat_template`, tools in `tools/test_tool_config`.
Here is one body of each kind, and everything that only the running server refuses.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.bodies import (
    SCORE,
    Body,
    assert_serving,
    chat,
    checked_client,
    completion,
    counted_message,
    embedding,
    error_of,
    message,
    raw,
    response,
    user,
)
from support.serving import Server

JSON = {"content-type": "application/json"}
TOO_LONG = "context_length_exceeded"
MANY_IDS = b'{"prompt": "a", "completion": [%s5]}' % (b"5," * 399_999)
LONG_TOOL = {"type": "function", "function": {"name": "f", "description": "a" * 600}}
CALL_ITEM = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
X_NULL: dict[str, Any] = {"properties": {"x": {"type": "null"}}}
ENTANGLED = {
    "$defs": {f"d{n}": {**X_NULL, "allOf": [{"$ref": f"#/$defs/d{n + 1}"}]} for n in range(900)}
    | {"d900": X_NULL},
    "properties": {f"p{n}": {**X_NULL, "$ref": "#/$defs/d0"} for n in range(900)},
}
IMAGE = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest/meta-data/"}}


# One body for each layer that refuses it.
MAPPINGS = (
    raw("no body", b"", "no body", "invalid_json"),
    raw("incomplete JSON", b'{"prompt": "a', "JSON", "invalid_json"),
    raw("NaN", b'{"prompt": "a", "temperature": NaN}', "NaN", "invalid_json"),
    raw("deep JSON", b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested", "invalid_json"),
    raw("missing field", b"{}", "prompt", "missing_required_parameter", "prompt"),
    completion("unknown field", "Unknown", "unknown_parameter", "chat_template", chat_template="{{ 7 }}"),
    completion("wrong type", "boolean", "invalid_type", "n", n=True),
    completion("refused by SamplingParams", "min_tokens", "invalid_value", min_tokens=9),
    completion("refused by StructuredOutput", "choice", "invalid_value", guided_choice=[""]),
    completion("refused by the grammar compiler", "schema", "invalid_value", guided_json={"type": "nothing"}),
    completion("refused by the vocabulary", "vocabulary", "invalid_value", prompt=[5, 320]),
    completion("refused by the context", "context", TOO_LONG, max_tokens=512),
    completion("empty prompt", "empty", "invalid_value", prompt=""),
    chat("two structured outputs", "combined", "invalid_value", response_format={"type": "json_object"}, guided_regex="a"),
    chat("refused by the chat template", "parts", "invalid_value", messages=[user([IMAGE])]),
    chat("refused by the tools", "requires tools", "invalid_value", tool_choice="required"),
    raw("nothing to score", b'{"prompt": [], "completion": []}', "nothing to score", "invalid_value", path=SCORE),
)  # fmt: skip
# One body of each layer, in the routes that translate theirs into a chat.
TRANSLATED = (
    response("response refused by the context", "max_output_tokens", TOO_LONG, max_output_tokens=512),
    message("thinking of a plain model", "thinking blocks", "unsupported_value", thinking={"type": "adaptive"}),
    message("message refused by the context", "max_tokens", TOO_LONG, max_tokens=512),
    counted_message("counted message of 5 MB", "context", TOO_LONG, messages=[user("a" * 5_000_000)]),
    message("16000 blocks", "too large", "invalid_json", messages=[user([{"type": "text", "text": ""}] * 17_000)]),
)  # fmt: skip
# The server's own limits.
LIMITS = (
    completion("33 choices", "n must be", "invalid_value", "n", n=33),
    completion("8192 choices in all", "answers", "invalid_value", "n", prompt=["a"] * 256, n=32),
    completion("257 prompts", "257 prompts", "invalid_value", "prompt", prompt=["a"] * 257),
    completion("best_of", "best_of", "unsupported_value", "best_of", best_of=2),
    completion("1000 stops", "stop", "invalid_value", "stop", stop=["a"] * 1000),
    completion("a token twice", "token 1 twice", "invalid_value", logit_bias={"01": 1, "1": 2}),
    completion("bias of -1", "logit_bias", "invalid_value", "logit_bias", logit_bias={"-1": 1}),
    completion("schema of chained references", "combines too many", "invalid_value", guided_json=ENTANGLED),
    chat("nothing to continue", "continue_final_message", "invalid_value", continue_final_message=True,
         messages=[user("a"), {"role": "assistant", "content": ""}]),
    raw("neither prompt nor messages", b"{}", "exactly one of prompt and messages", "invalid_value", path="/tokenize"),
    raw("id without a text", b'{"tokens": [300]}', "vocabulary", "invalid_value", path="/detokenize"),
    # Prompts far beyond the context are refused before they are tokenised or sent to the engine
    # (llama.cpp GHSA-7rxv-5jhh-j6xx, #10380).
    completion("513 ids", "context", TOO_LONG, prompt=[5] * 513),
    completion("5 MB of one letter", "context", TOO_LONG, prompt="a" * 5_000_000),
    chat("message of 5 MB", "context", TOO_LONG, messages=[user("a" * 5_000_000)]),
    chat("tools beyond the context", "the prompt has", TOO_LONG, tools=[LONG_TOOL], tool_choice="required"),
    chat("template variables of 5 MB", "context", TOO_LONG, chat_template_kwargs={"x": "a" * 5_000_000}),
    raw("score of 400,000 ids", MANY_IDS, "context", TOO_LONG, path=SCORE),
    embedding("empty list of inputs", "empty", "invalid_value", "input", input=[]),
    embedding("id outside the vocabulary", "vocabulary", "invalid_value", input=[[5], [320]]),
    embedding("input beyond the context", "context", TOO_LONG, input=[[5], [5] * 513]),
)  # fmt: skip
# Unusual, but valid: the response is JSON, without NaN.
ACCEPTED = (
    completion("denormal temperature", status=200, temperature=5e-324, logprobs=5),
    completion("5,000 ids, truncated to fit", status=200, prompt=[5] * 5000, truncate_prompt_tokens=-1, max_tokens=1),
    completion("max_tokens 0 with echo", status=200, max_tokens=0, echo=True, logprobs=1),
    completion("only an id without a text", status=200, allowed_token_ids=[319], logprobs=20, max_tokens=8),
    completion("NUL", status=200, prompt="a\0b", stop="\0"),
    response("arguments that are no JSON", status=200, input=[{**CALL_ITEM, "arguments": "{{ 7 }"}, user("a")]),
    message("only a prefill", status=200, messages=[{"role": "assistant", "content": "a"}]),
    chat("content without parts", status=200, messages=[user([])]),
    chat("other template variable", status=200, chat_template_kwargs={"tokenize": True, "chat_template": "{{ 7 }}"}),
)  # fmt: skip


@pytest.fixture(scope="module")
def client(tiny_server: Server) -> Iterator[httpx.Client]:
    with checked_client(tiny_server) as client:
        yield client


@pytest.mark.parametrize("body", [*MAPPINGS, *TRANSLATED, *LIMITS], ids=str)
def test_bad_body_is_refused(client: httpx.Client, body: Body) -> None:
    response = client.post(body.path, content=body.raw, headers=JSON)
    assert response.status_code == body.status, response.text[:500]
    error = error_of(response)
    assert (error["type"], error["code"], error["param"]) == ("invalid_request_error", body.code, body.param)
    assert body.message.lower() in error["message"].lower()
    assert_serving(client)


@pytest.mark.parametrize("body", ACCEPTED, ids=str)
def test_unusual_body_is_served(client: httpx.Client, body: Body) -> None:
    response = client.post(body.path, content=body.raw, headers=JSON)
    assert response.status_code == body.status, response.text[:500]
    json.loads(response.text, parse_constant=pytest.fail)


@pytest.mark.parametrize(
    "name",
    [
        *("../../etc/passwd", "file:///etc/passwd", "TINY", "tiny\0", ""),
    ],
)
def test_other_model_name_is_not_found(client: httpx.Client, name: str) -> None:
    response = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1, "model": name})
    assert response.status_code == 404, response.text
    error = error_of(response)
    assert (error["type"], error["code"]) == ("not_found_error", "model_not_found")
    assert "does not exist" in error["message"]
