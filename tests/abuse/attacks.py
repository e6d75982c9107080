"""The attacks: each is a request that one hostile client repeats. Its name is the function's."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from abuse.attack import Attack, Once
from abuse.wire import LEFT, LOST, Target, encode, hold, request
from holdfast.receipts.receipt import seal_of

ATTACKS: dict[str, Attack] = {}


def attack(**settings: Any) -> Callable[[Once], Once]:
    """Make an attack of a function; see `Attack` for the settings."""

    def add(once: Once) -> Once:
        name = once.__name__  # type: ignore[attr-defined]
        ATTACKS[name] = Attack(once, **settings)
        return once

    return add


def attack_names(*, in_gate: bool = False) -> list[str]:
    return sorted(name for name, one in ATTACKS.items() if one.in_gate or not in_gate)


async def complete(target: Target, body: dict[str, Any], leave_after: float | None = None) -> int:
    return await request(target, "/v1/completions", encode(body), leave_after=leave_after)


# Work for the engine


@attack(num_clients=(6, 24), in_gate=True)
async def aborted_streams(target: Target, number: int) -> int:
    """Streams whose clients leave after the first tokens, one after the other."""
    prompt = f"{number} the dog " * 20
    body = {"prompt": prompt, "n": 8, "max_tokens": 400, "stream": True, "ignore_eos": True}
    return await complete(target, body, leave_after=0.05)


@attack(num_clients=(16, 64), in_gate=True)
async def bad_words(target: Target, number: int) -> int:
    """Requests with 1,024 bad words each."""
    words = [f"{number} {at} b" for at in range(1024)]
    return await complete(target, {"prompt": "the", "max_tokens": 16, "ignore_eos": True, "bad_words": words})


@attack(num_clients=(4, 12))
async def embedding_batches(target: Target, number: int) -> int:
    """Embeddings of 256 new inputs at a time."""
    inputs = [f"{number} {at} the quick brown fox jumps over" for at in range(256)]
    return await request(target, "/v1/embeddings", encode({"input": inputs}))


@attack(num_clients=(8, 32), in_gate=True)
async def logit_biases(target: Target, number: int) -> int:
    """Requests with full maps of logit biases, bad words and stop strings, and every penalty."""
    body = {
        "prompt": f"{number} the",
        "max_tokens": 64,
        "n": 4,
        "temperature": 1,
        "ignore_eos": True,
        "logit_bias": {str(5 + at): (at + number) % 7 - 3 for at in range(250)},
        "bad_words": [f"{at} b" for at in range(500)],
        "stop": [f"never {at}" * 40 for at in range(16)],
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "min_p": 0.01,
        "top_k": 50,
        "logprobs": 20,
    }
    return await complete(target, body)


@attack(num_clients=(4, 12))
async def long_choices(target: Target, number: int) -> int:
    """32 choices of a new long prompt each."""
    num = min(1500, target.max_model_len // 2)
    ids = [5 + (at * 3 + number * 19 + at * number) % 250 for at in range(num)]
    return await complete(
        target, {"prompt": ids, "n": 32, "max_tokens": 100, "temperature": 1, "ignore_eos": True}
    )


@attack(num_clients=(8, 8), in_gate=True)
async def long_prompts(target: Target, number: int) -> int:
    """Prompts that fill the context, each a new one."""
    num = min(4000, target.max_model_len - 8)
    ids = [5 + (at * 7 + number * 13 + at * number) % 250 for at in range(num)]
    return await complete(target, {"prompt": ids, "max_tokens": 4, "ignore_eos": True})


@attack(num_clients=(12, 12), in_gate=True)
async def many_choices(target: Target, number: int) -> int:
    """Twelve loops of requests for 32 choices each."""
    body = {"prompt": f"{number} the", "n": 32, "max_tokens": 200, "temperature": 1, "ignore_eos": True}
    return await complete(target, body)


@attack(num_clients=(4, 8))
async def many_prompts(target: Target, number: int) -> int:
    """Requests of 200 prompts each: one HTTP request, 200 answers."""
    prompts = [f"{number} {at} the lazy dog" for at in range(200)]
    return await complete(target, {"prompt": prompts, "max_tokens": 60, "ignore_eos": True})


@attack(probe="chat", num_clients=(12, 48))
async def other_apis(target: Target, number: int) -> int:
    """Long answers through /v1/responses and /v1/messages, and counts of tokens of long conversations."""
    turns = [{"role": "user", "content": f"{number} {at} the dog"} for at in range(60)]
    long = "the lazy dog 123 " * 6_000
    bodies = (
        ("/v1/responses", {"input": turns, "max_output_tokens": 300}),
        ("/v1/messages", {"messages": turns, "max_tokens": 300}),
        ("/v1/responses/input_tokens", {"input": long}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": long}]}),
    )
    path, body = bodies[number % len(bodies)]
    return await request(target, path, encode({"model": target.model, **body}))


@attack(probe="chat", num_clients=(32, 96))
async def priorities(target: Target, number: int) -> int:
    """Long answers that ask for a preference: priority, service_tier, a proxy's headers."""
    body = {"messages": [{"role": "user", "content": f"{number}"}], "max_tokens": 400, "ignore_eos": True,
            "service_tier": "priority", "user": "root"}  # fmt: skip
    if number % 2:
        body["priority"] = -1000
    headers = {"X-Forwarded-For": f"10.0.{number % 250}.7", "X-Priority": "high"}
    return await request(target, "/v1/chat/completions", encode(body), headers=headers)


@attack(num_clients=(6, 16))
async def prompt_logprobs(target: Target, number: int) -> int:
    """Long prompts whose every token gets 20 logprobs: prompt_logprobs, echo and /v1/score."""
    num = min(2000, target.max_model_len - 8)
    ids = [5 + (at * 11 + number * 17 + at * number) % 250 for at in range(num)]
    bodies = (
        ("/v1/completions", {"prompt": ids, "max_tokens": 0, "prompt_logprobs": 20}),
        ("/v1/completions", {"prompt": ids, "max_tokens": 1, "echo": True, "logprobs": 20}),
        ("/v1/score", {"prompt": ids[: num // 2], "completion": ids[num // 2 :]}),
    )
    path, body = bodies[number % len(bodies)]
    return await request(target, path, encode(body))


# Receipts

_receipts: dict[tuple[str, str | None, int], Any] = {}
_lock = asyncio.Lock()


@attack(num_clients=(8, 16), in_gate=True)
async def forged_receipts(target: Target, number: int) -> int:
    """Replays of forged receipts: four tokens in the receipt, as many as the context holds to compute."""
    receipt = await make_receipt(target, 4)
    if receipt is None:
        return LOST
    changes = {"max_tokens": target.max_model_len - 64, "ignore_eos": True, "stop": []}
    if number % 2:
        changes = {"stop": [f"never{at}" for at in range(40)]}
    return await request(target, "/v1/replay", {"receipt": forge(receipt, changes), "force": True})


@attack(num_clients=(8, 32))
async def honest_replays(target: Target, number: int) -> int:
    """Replays of a long answer's receipt, as often as possible."""
    receipt = await make_receipt(target, min(1000, target.max_model_len - 64))
    return LOST if receipt is None else await request(target, "/v1/replay", {"receipt": receipt})


def forge(receipt: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The receipt with other settings, sealed anew as a forger without the server's key can."""
    settings = {**receipt["settings"], **changes}
    forged = {**receipt, "settings": settings, "signer": None, "signature": None}
    return {**forged, "seal": seal_of(forged)}


async def make_receipt(target: Target, max_tokens: int) -> Any:
    """A true receipt of this server, made once; None if the server refuses."""
    key = target.url, target.key, max_tokens
    async with _lock:
        if key not in _receipts:
            body = {"prompt": "the", "max_tokens": max_tokens, "seed": 7, "deterministic": True}
            answer = await _send(target, {**body, "ignore_eos": True, "return_receipt": True})
            _receipts[key] = answer.get("holdfast", {}).get("receipt")
    return _receipts[key]


async def _send(target: Target, body: Any) -> Any:
    content = encode(body)
    reader, writer = await target.connect()
    try:
        writer.write(target.head("POST", "/v1/completions", len(content)) + content)
        head, _, answer = (await reader.read(-1)).partition(b"\r\n\r\n")
        return json.loads(answer) if b" 200 " in head else {}
    finally:
        writer.close()


# Work before the engine

_DEEP = (
    b"[" * 4_000_000,
    b'{"prompt": ' + b"[" * 63 + b"1" + b"]" * 63 + b', "x": [' + b"1," * 500_000 + b"1]}",
    b"{" + b",".join(b'"k%d":1' % at for at in range(16_000)) + b"}",
    b'{"prompt": "a", "unknown": "' + b"\\u0041" * 600_000 + b'"}',
)
_IDS = encode({"tokens": [5 + at % 250 for at in range(500_000)]})
_DIGITS = encode({"prompt": "0123456789" * 50_000, "max_tokens": 1})
_TEXT = encode({"prompt": "the quick brown fox 123 " * 20_800})


@attack(probe="version", num_clients=(6, 24), in_gate=True)
async def deep_json(target: Target, number: int) -> int:
    """Bodies of several megabytes: deep, with many keys, with many values. All are refused."""
    return await request(target, "/v1/completions", _DEEP[number % len(_DEEP)])


@attack(probe="tokenize", num_clients=(8, 32), in_gate=True)
async def detokenize_flood(target: Target, number: int) -> int:
    """/detokenize with 500,000 ids; half of the clients leave early."""
    return await request(target, "/detokenize", _IDS, leave_after=0.5 if number % 2 else None)


@attack(probe="version", num_clients=(2, 4), in_gate=True)
async def digits(target: Target, number: int) -> int:
    """Prompts of 500,000 digits. Each is refused, because it does not fit the context."""
    return await request(target, "/v1/completions", _DIGITS)


@attack(probe="form", num_clients=(6, 24))
async def huge_schemas(target: Target, number: int) -> int:
    """JSON schemas near the size limit, each a new one."""
    properties = {f"field_{number}_{at}": {"type": "string", "pattern": f"^[a-z]{{1,{at % 50 + 1}}}$"}
                  for at in range(1500)}  # fmt: skip
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return await complete(target, {"prompt": "a", "max_tokens": 4, "guided_json": schema}, leave_after=2.0)


@attack(probe="chat", num_clients=(6, 24))
async def huge_tools(target: Target, number: int) -> int:
    """Chats with a dozen tools, forced by grammar, each list a new one."""
    properties = {f"p{at}_{number}": {"type": "string"} for at in range(4)}
    parameters = {"type": "object", "properties": properties}
    tools = [
        {"type": "function", "function": {"name": f"f{at}", "parameters": parameters}} for at in range(12)
    ]
    body = {
        "messages": [{"role": "user", "content": "dog"}],
        "max_tokens": 4,
        "tools": tools,
        "tool_choice": "required",
    }
    return await request(target, "/v1/chat/completions", encode(body), leave_after=1.0)


@attack(probe="form", num_clients=(8, 40), in_gate=True)
async def slow_grammars(target: Target, number: int) -> int:
    """Slow regular expressions, each a new one, whose clients leave after 0.12 s."""
    regex = f"x{number}" + "[a-z]?" * 20_000
    return await complete(target, {"prompt": "a", "max_tokens": 4, "guided_regex": regex}, leave_after=0.12)


@attack(probe="chat", num_clients=(8, 32))
async def slow_templates(target: Target, number: int) -> int:
    """Conversations of 2,000 messages and large template variables."""
    body = {
        "messages": [{"role": "user", "content": f"{number} {at}"} for at in range(2000)],
        "max_tokens": 1,
        "chat_template_kwargs": {"x": [[at] for at in range(4000)]},
    }
    return await request(target, "/v1/chat/completions", encode(body))


@attack(probe="tokenize", num_clients=(8, 32), in_gate=True)
async def tokenize_flood(target: Target, number: int) -> int:
    """/tokenize with texts of 500 KB; half of the clients leave early."""
    return await request(target, "/tokenize", _TEXT, leave_after=0.5 if number % 2 else None)


# Connections

_CROSS_SITE = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
_PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/replay", "/version", "/metrics")
_BODY_PATHS = (
    *("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"),
    *("/v1/score", "/v1/replay", "/tokenize", "/detokenize"),
)


@attack(probe="version", num_clients=(32, 128), without_key=True, behind_proxy=True)
async def connections(target: Target, number: int) -> int:
    """Connections that are opened, used for one cheap wrong request, and dropped."""
    return await request(target, ("/version", "/nothing", "/v1/models")[number % 3])


@attack(num_clients=(160, 4200), in_gate=True, behind_proxy=True)
async def slow_bodies(target: Target, number: int) -> int:
    """Hundreds of connections, or thousands. Each sends the head of a POST, and no body."""
    return await hold(target, target.head("POST", "/v1/completions", 1000), 30.0)


@attack(num_clients=(160, 4200), without_key=True, behind_proxy=True)
async def slow_bodies_without_key(target: Target, number: int) -> int:
    """The same without a key: any machine that reaches the port can do it."""
    return await slow_bodies(target, number)


@attack(num_clients=(160, 4200), without_key=True, behind_proxy=True)
async def slow_heads(target: Target, number: int) -> int:
    """Hundreds of connections, or thousands. Each sends the head of a request one byte at a time."""
    head = target.head("POST", _PATHS[number % len(_PATHS)], 10)
    return await hold(target, head[:20], 30.0, trickle=head[20:])


@attack(num_clients=(160, 4200), behind_proxy=True)
async def trickled_bodies(target: Target, number: int) -> int:
    """Bodies that arrive a byte every 0.2 s, on every route that reads one."""
    body = b'{"prompt": "' + b"a" * 4000
    head = target.head("POST", _BODY_PATHS[number % len(_BODY_PATHS)], 1 << 20)
    return await hold(target, head + body[:8], 30.0, trickle=body[8:])


@attack(num_clients=(8, 32), in_gate=True)
async def unread_streams(target: Target, number: int) -> int:
    """Streams with many logprobs that their clients never read."""
    body = encode({"prompt": f"{number}", "n": 8, "max_tokens": 200, "logprobs": 20, "stream": True,
                   "temperature": 1, "ignore_eos": True})  # fmt: skip
    try:
        _, writer = await target.connect()
    except OSError:
        return LOST
    try:
        writer.write(target.head("POST", "/v1/completions", len(body)) + body)
        await asyncio.sleep(3.0)
        return LEFT
    finally:
        writer.transport.abort()


@attack(num_clients=(8, 16), in_gate=True)
async def watchers(target: Target, number: int) -> int:
    """Cross-site GETs of the inspector's events, as a web page sends them: no Origin."""
    return await request(target, "/inspector/events", headers=_CROSS_SITE)
