"""Twelve loops of requests for 32 choices each."""

from abuse.attack import Attack
from abuse.wire import Target, request


async def once(target: Target, number: int) -> int:
    body = {"prompt": f"{number} the", "n": 32, "max_tokens": 200, "temperature": 1, "ignore_eos": True}
    return await request(target, "/v1/completions", body)


ATTACK = Attack(__doc__, once, num_clients=(12, 12), in_gate=True)
