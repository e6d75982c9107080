"""Streams whose clients leave after the first tokens, one after the other."""

from abuse.attack import Attack
from abuse.wire import Target, encode, request


async def once(target: Target, number: int) -> int:
    body = {
        "prompt": f"{number} the dog " * 20,
        "n": 8,
        "max_tokens": 400,
        "stream": True,
        "ignore_eos": True,
    }
    return await request(target, "/v1/completions", encode(body), leave_after=0.05)


ATTACK = Attack(__doc__, once, num_clients=(6, 24), in_gate=True)
