"""Hostile numbers, token ids, prompts, texts and bytes. Each group names the weakness, and where it was found."""

import json
from collections.abc import Iterator

from support.hostile import HALF, SCORE, Hostile, chat, form, plain, raw, said, tool


def numbers() -> Iterator[Hostile]:
    # Sampling parameters nobody checked: NaN in the logits, a hang, an abort (llama.cpp #19367; vLLM #3341: a float top_k).
    for word in ("NaN", "Infinity", "-Infinity"):
        yield raw(f"temperature {word}", b'{"prompt": "a", "temperature": %s}' % word.encode(), word)
    yield raw("temperature 1e400", b'{"prompt": "a", "temperature": 1e400}', "too large")
    yield raw("temperature -1e400", b'{"prompt": "a", "temperature": -1e400}', "too large")
    yield raw("n of 5000 digits", b'{"prompt": "a", "n": %s}' % (b"9" * 5000), "digits")
    yield plain("temperature 999999", "temperature", temperature=999999.0)
    yield plain("temperature -0.0", status=200, temperature=-0.0)
    yield plain("temperature denormal", status=200, temperature=5e-324)
    yield plain("temperature true", "boolean", temperature=True)
    yield plain("temperature text", "string", temperature="0.7")
    yield plain("top_p -1", "top_p", top_p=-1.0)
    yield plain("top_p 0", "top_p", top_p=0)
    yield plain("top_p denormal", status=200, top_p=5e-324)
    yield plain("top_k 0.01", "top_k", top_k=0.01)
    yield plain("top_k -5", "top_k", top_k=-5)
    yield plain("top_k 2**64", "top_k", top_k=2**64)
    yield plain("repetition_penalty 0", "repetition_penalty", repetition_penalty=0.0)
    yield plain("frequency_penalty 1e308", "frequency_penalty", frequency_penalty=1e308)
    yield plain("seed -1", "seed", seed=-1)
    yield plain("seed 2**64", "seed", seed=2**64)
    yield plain("seed 2**64 - 1", status=200, seed=2**64 - 1)
    yield plain("logprobs -1", "logprobs", logprobs=-1)
    yield plain("logprobs 10**9", "logprobs", logprobs=10**9)
    yield chat("top_logprobs 10**9", "top_logprobs", logprobs=True, top_logprobs=10**9)

    # Answers by the million, copied before anybody counted them (CVE-2026-34756: n; CVE-2024-8939: best_of).
    yield plain("n 10**9", "'n'", n=10**9)
    yield plain("n 2**64", "'n'", n=2**64)
    yield plain("n 33", "n must be", n=33)
    yield plain("n 0", "'n'", n=0)
    yield plain("n -1", "'n'", n=-1)
    yield plain("n true", "boolean", n=True)
    yield plain("n 1.5", "integer", n=1.5)
    yield plain("best_of 10**6", "best_of", best_of=10**6)
    yield plain("8192 answers", "answers", prompt=["a"] * 256, n=32)
    yield plain("257 prompts", "257 prompts", prompt=["a"] * 257)

    # Lengths: negative, or beyond the context (llama.cpp: n_predict; CVE-2026-21869: n_discard; #3550: n_keep; vLLM #6521).
    yield plain("max_tokens -1", "max_tokens", max_tokens=-1)
    yield plain("max_tokens 0", "max_tokens", max_tokens=0)
    yield plain("max_tokens 0 and echo", status=200, max_tokens=0, echo=True, logprobs=1)
    yield plain("max_tokens 2**24", "context", max_tokens=2**24)
    yield plain("max_tokens 2**63", "max_tokens", max_tokens=2**63)
    yield plain("min_tokens above max_tokens", "min_tokens", min_tokens=2**24)
    yield plain("min_tokens 2**24", "context", min_tokens=2**24, max_tokens=2**24)
    yield plain("echo of logprobs in a stream", "stream", echo=True, logprobs=1, stream=True)
    for name in ("n_predict", "n_keep", "n_discard", "n_probs", "id_slot", "slot_id"):
        yield plain(f"{name} -1", f"Unknown parameter: '{name}'", **{name: -1})


def token_ids() -> Iterator[Hostile]:
    # Ids outside the vocabulary reach an index (vLLM pull 16529: logit_bias; pull 5963: keys that are no numbers).
    yield plain("prompt id 320", "vocabulary", prompt=[5, 320])
    yield plain("prompt id -1", "prompt[0]", prompt=[-1])
    yield plain("prompt id 2**63", "prompt[0]", prompt=[2**63])
    yield plain("prompt id 1.5", "prompt[0]", prompt=[1.5])
    yield plain("prompt id true", "boolean", prompt=[True])
    yield plain("ids and texts", "prompt[1]", prompt=[5, "a"])
    yield plain("texts and ids", "prompt", prompt=["a", 5])
    yield plain(
        "ids without a text", status=200, prompt=[310, 319], echo=True, logprobs=5, return_token_ids=True
    )
    yield plain("only an id without a text", status=200, allowed_token_ids=[319], logprobs=20, max_tokens=8)
    yield plain("stop_token_ids 10**6", "vocabulary", stop_token_ids=[10**6])
    yield plain("stop_token_ids -1", "stop_token_ids", stop_token_ids=[-1])
    yield plain("allowed_token_ids 320", "vocabulary", allowed_token_ids=[320])
    yield plain("no allowed_token_ids", "empty", allowed_token_ids=[])
    yield plain("500,000 allowed_token_ids", "too long", allowed_token_ids=[5] * 500_000)
    yield plain("logit_bias of 99999", "vocabulary", logit_bias={"99999": 1})
    yield plain("logit_bias of AI", "logit_bias", logit_bias={"AI": -100})
    yield plain("logit_bias of -1", "logit_bias", logit_bias={"-1": 1})
    yield plain("logit_bias of an Arabic 5", "logit_bias", logit_bias={"٥": 1})
    yield plain("logit_bias of 5 and 05", status=200, logit_bias={"5": 1, "05": 2})
    yield plain("logit_bias 1e308", "logit_bias", logit_bias={"5": 1e308})
    yield raw("logit_bias NaN", b'{"prompt": "a", "logit_bias": {"5": NaN}}', "NaN")
    yield plain("logit_bias a list", "logit_bias", logit_bias=[1, 2])
    yield plain(
        "logit_bias against everything", status=200, logit_bias={str(id_): -100 for id_ in range(320)}
    )
    yield plain("2000 biases", "1024", logit_bias={str(id_): 1 for id_ in range(2000)})

    # Empty and senseless prompts (CVE-2024-8768: an empty prompt ended the server).
    yield plain("empty prompt", "empty", prompt="")
    yield plain("no prompts", "empty", prompt=[])
    yield plain("an empty text among others", "empty", prompt=["a", ""])
    yield plain("a prompt of no ids", "empty", prompt=[[]])
    yield plain("no prompt", "prompt", prompt=None)
    yield raw("nothing at all", b"", "no body")
    yield raw("an empty object", b"{}", "prompt")
    yield raw("null", b"null", "object")
    yield raw("a list", b"[]", "object")
    yield raw("score of nothing", b'{"prompt": [], "completion": []}', "nothing to score", path=SCORE)
    yield raw("no tokens, no text", b'{"tokens": null}', "tokens", path="/detokenize")
    yield raw("neither prompt nor messages", b"{}", "either", path="/tokenize")
    yield raw("id 300 has no text", b'{"tokens": [300]}', "vocabulary", path="/detokenize")

    # Prompts far beyond the context (llama.cpp GHSA-7rxv-5jhh-j6xx: a length that overflows; #10380: a context that does).
    yield plain("5 MB of spaces", "context", prompt=" " * 5_000_000)
    yield plain("5 MB of one letter", "context", prompt="a" * 5_000_000)
    yield plain("500,000 ids", "context", prompt=[5] * 500_000)
    yield plain("513 ids", "context", prompt=[5] * 513)
    yield said("a message of 5 MB", "a" * 5_000_000, "context")
    yield chat("2049 messages", "messages", messages=[{"role": "user", "content": ""}] * 2049)
    yield raw(
        "a score of 400,000 ids",
        b'{"prompt": "a", "completion": [%s5]}' % (b"5," * 399_999),
        "context",
        path=SCORE,
    )


def texts() -> Iterator[Hostile]:
    # Half of a surrogate pair in every text there is: whatever writes it down as UTF-8 fails, in a thread or in the log.
    for name in (
        "prompt",
        "model",
        "stop",
        "user",
        "suffix",
        "guided_regex",
        "guided_grammar",
        "guided_json",
    ):
        yield plain(f"half a pair in {name}", "surrogate", **{name: f"a{HALF}"})
    yield plain("half a pair among stops", "surrogate", stop=["a", HALF])
    yield plain("half a pair in bad_words", "surrogate", bad_words=[HALF])
    yield plain("half a pair in a choice", "surrogate", guided_choice=[HALF])
    yield plain("half a pair in a bias", "surrogate", logit_bias={HALF: 1})
    yield plain("half a pair as a field", "surrogate", **{HALF: 1})
    yield raw("half a pair twice", b'{"prompt": "a", "\\ud800": 1, "\\ud800": 2}', "")
    yield said("half a pair in a content", HALF, "surrogate")
    yield said("half a pair in a part", [{"type": "text", "text": HALF}], "surrogate")
    yield chat("half a pair in a role", "surrogate", messages=[{"role": HALF, "content": "a"}])
    yield chat("half a pair in a tool", "surrogate", tools=[tool("f", description=HALF)])
    yield chat("half a pair in a tool's schema", "surrogate", tools=[tool("f", properties={HALF: {}})])
    yield chat("half a pair in a schema", "surrogate", response_format=form({"const": HALF}))
    yield chat("half a pair for a template", "surrogate", chat_template_kwargs={HALF: HALF})
    yield raw("half a pair to tokenize", b'{"prompt": "\\udfff"}', "surrogate", path="/tokenize")
    yield raw(
        "half a pair in a receipt", b'{"receipt": {"format": "\\ud800"}}', "surrogate", path="/v1/replay"
    )
    yield plain("a whole pair", status=200, prompt="\U0001f600")

    # Bytes that are no UTF-8, or another encoding.
    yield raw("a byte that is no UTF-8", b'{"prompt": "a\xff"}', "UTF-8")
    yield raw("an overlong slash", b'{"prompt": "\xc0\xaf"}', "UTF-8")
    yield raw("a surrogate in UTF-8", b'{"prompt": "\xed\xa0\x80"}', "UTF-8")
    yield raw("UTF-16", '{"prompt": "a"}'.encode("utf-16"), "UTF-8")
    yield raw("a byte order mark", b'\xef\xbb\xbf{"prompt": "a"}', "JSON")
    yield plain("NUL in a prompt", status=200, prompt="a\0b")
    yield plain("NUL in a stop", status=200, stop="\0")
    yield plain("NUL in the model's name", "does not exist", status=404, model="tiny\0")
    yield plain("a stop of 5 MB", "stop", stop="a" * 5_000_000)
    yield plain("1000 stops", "stop", stop=["a"] * 1000)
    yield plain("an empty stop", "stop", stop="")
    yield plain("4 MB of bad words", "bad_words", bad_words=["a" * 4096] * 1024)

    # JSON that costs more than it weighs, or means two things (a parser that recurses; proxies that read the other key).
    yield raw("1 MB of brackets", b"[" * 1_000_000, "nested")
    yield raw("100,000 levels", b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested")
    yield raw("100,000 objects deep", b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested")
    yield raw("two prompts", b'{"prompt": "a", "prompt": "b"}', "Duplicate")
    yield raw("two temperatures", b'{"prompt": "a", "temperature": 0, "temperature": 9}', "Duplicate")
    yield raw(
        "duplicate keys inside",
        b'{"prompt": "a", "guided_json": {"type": "object", "type": "null"}}',
        "Duplicate",
    )
    yield raw("a million commas", b'{"prompt": [' + b"," * 1_000_000 + b"]}", "")
    yield raw("16,000 unknown fields", json.dumps({f"x{one}": 1 for one in range(16_000)}).encode(), "prompt")
    yield raw("a comma too many", b'{"prompt": "a",}', "JSON")
    yield raw("a comment", b'{"prompt": "a" /* b */}', "JSON")
    yield raw("two bodies", b'{"prompt": "a"}{"prompt": "b"}', "JSON")
    yield raw("a body that breaks off", b'{"prompt": "a', "JSON")
    yield raw("a pickle", b"\x80\x04\x95\x0e\x00\x00\x00\x00\x00\x00\x00\x8c\x05posix\x94.", "UTF-8")
