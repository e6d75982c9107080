"""/detokenize with 500,000 ids; half of the clients leave early."""

from abuse.attack import Attack
from abuse.wire import Target, encode, request

_BODY = encode({"tokens": [5 + at % 250 for at in range(500_000)]})


async def once(target: Target, number: int) -> int:
    return await request(target, "/detokenize", _BODY, leave_after=0.5 if number % 2 else None)


ATTACK = Attack(__doc__, once, probe="tokenize", num_clients=(8, 32), in_gate=True)
