"""32 choices of a new long prompt each."""

from abuse.attack import Attack
from abuse.wire import Target, encode, request


async def once(target: Target, number: int) -> int:
    ids = [
        5 + (at * 3 + number * 19 + at * number) % 250 for at in range(min(1500, target.max_model_len // 2))
    ]
    body = {"prompt": ids, "n": 32, "max_tokens": 100, "temperature": 1, "ignore_eos": True}
    return await request(target, "/v1/completions", encode(body))


ATTACK = Attack(__doc__, once, num_clients=(4, 12))
