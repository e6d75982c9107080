"""/tokenize with texts of 500 KB and /detokenize with 500,000 ids; half of the clients leave early."""

from abuse.attack import Attack
from abuse.wire import Target, encode, request

_BODIES = (
    ("/tokenize", encode({"prompt": "the quick brown fox 123 " * 20_800})),
    ("/detokenize", encode({"tokens": [5 + at % 250 for at in range(500_000)]})),
)


async def once(target: Target, number: int) -> int:
    path, body = _BODIES[number % 2]
    return await request(target, path, body, leave_after=0.5 if number % 4 < 2 else None)


ATTACK = Attack(__doc__, once, probe="tokenize", num_clients=(16, 64), in_gate=True)
