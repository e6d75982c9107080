"""Prompts of 500,000 digits. Each is refused, because it does not fit the context."""

from abuse.attack import Attack
from abuse.wire import Target, encode, request

_BODY = encode({"prompt": "0123456789" * 50_000, "max_tokens": 1})


async def once(target: Target, number: int) -> int:
    return await request(target, "/v1/completions", _BODY)


ATTACK = Attack(__doc__, once, probe="version", num_clients=(2, 4), in_gate=True)
