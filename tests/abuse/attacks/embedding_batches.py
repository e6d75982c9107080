"""Embeddings of 256 new inputs at a time."""

from abuse.attack import Attack
from abuse.wire import Target, encode, request


async def once(target: Target, number: int) -> int:
    inputs = [f"{number} {at} the quick brown fox jumps over" for at in range(256)]
    return await request(target, "/v1/embeddings", encode({"input": inputs}))


ATTACK = Attack(__doc__, once, num_clients=(4, 12))
