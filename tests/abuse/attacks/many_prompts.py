"""Requests of 200 prompts each: one HTTP request, 200 answers."""

from abuse.attack import Attack
from abuse.wire import Target, encode, request


async def once(target: Target, number: int) -> int:
    prompts = [f"{number} {at} the lazy dog" for at in range(200)]
    body = {"prompt": prompts, "max_tokens": 60, "ignore_eos": True}
    return await request(target, "/v1/completions", encode(body))


ATTACK = Attack(__doc__, once, num_clients=(4, 8))
