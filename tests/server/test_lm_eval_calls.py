"""The calls that lm-eval's `local-completions` and `local-chat-completions` make, with
`tokenizer_backend=remote`, and what its parser reads of the answers.

Source: lm-eval 0.4.13, `lm_eval.utils.RemoteTokenizer`, `check_remote_tokenizer_support`,
`lm_eval.models.api_models` and `openai_completions`.
"""

import json
import urllib.request
from typing import Any

from support.serving import Server
from support.tiny import CHAT_TEMPLATE, EOS, SPECIAL_TOKENS

HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer "}  # without OPENAI_API_KEY


def call(server: Server, method: str, path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(server.url + path, data, HEADERS, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def encode(server: Server, text: Any) -> list[int]:
    tokens = call(server, "POST", "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
    assert isinstance(tokens, list)
    return tokens


def test_remote_tokenizer(tiny_server: Server) -> None:
    info = call(tiny_server, "GET", "/tokenizer_info")
    assert info["eos_token"] == SPECIAL_TOKENS[EOS] and info["chat_template"] == CHAT_TEMPLATE
    assert info["bos_token"] is None and info["pad_token"] is None and info["unk_token"] is None
    assert info["model_max_length"] == 512 and not info["add_bos_token"] and not info["add_eos_token"]
    assert info["added_tokens_decoder"] == {str(id_): text for id_, text in enumerate(SPECIAL_TOKENS)}
    assert info["additional_special_tokens"] == list(SPECIAL_TOKENS[1:])
    assert info["tokenizer_class"] == "PreTrainedTokenizerFast"
    assert encode(tiny_server, info["eos_token"]) == [EOS]
    ids = encode(tiny_server, f"the dog {SPECIAL_TOKENS[1]} é")
    assert (
        call(tiny_server, "POST", "/detokenize", {"tokens": ids})["prompt"]
        == f"the dog {SPECIAL_TOKENS[1]} é"
    )


def test_conversation_as_prompt_of_tokenize(tiny_server: Server) -> None:
    """With --apply_chat_template the remote backend sends the messages as `prompt`."""
    messages = [{"role": "user", "content": "the dog"}]
    rendered = call(tiny_server, "POST", "/tokenize", {"messages": messages})["tokens"]
    assert encode(tiny_server, messages) == rendered


def test_generated_end_of_text_is_one_token_of_the_logprobs(tiny_server: Server) -> None:
    """The parser drops the last entry, so an answer that ends at once has an entry, too."""
    ids = encode(tiny_server, "the quick brown")
    logprobs = call(
        tiny_server,
        "POST",
        "/v1/completions",
        {
            "model": "tiny",
            "prompt": [ids],
            "temperature": 0,
            "max_tokens": 1,
            "logprobs": 1,
            "seed": 1234,
            "echo": True,
            "allowed_token_ids": [EOS],
        },
    )["choices"][0]["logprobs"]
    assert len(logprobs["token_logprobs"]) == len(logprobs["top_logprobs"]) == len(ids) + 1
    assert logprobs["token_logprobs"][0] is None and None not in logprobs["token_logprobs"][1:]
