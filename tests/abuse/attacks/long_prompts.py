"""Prompts that fill the context, each a new one."""

from abuse.attack import Attack
from abuse.wire import Target, request


async def once(target: Target, number: int) -> int:
    ids = [
        5 + (at * 7 + number * 13 + at * number) % 250 for at in range(min(4000, target.max_model_len - 8))
    ]
    return await request(target, "/v1/completions", {"prompt": ids, "max_tokens": 4, "ignore_eos": True})


ATTACK = Attack(__doc__, once, num_clients=(8, 8), in_gate=True)
