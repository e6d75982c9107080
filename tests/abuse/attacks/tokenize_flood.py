"""/tokenize with texts of 500 KB; half of the clients leave early."""

from abuse.attack import Attack
from abuse.wire import Target, encode, request

_BODY = encode({"prompt": "the quick brown fox 123 " * 20_800})


async def once(target: Target, number: int) -> int:
    return await request(target, "/tokenize", _BODY, leave_after=0.5 if number % 2 else None)


ATTACK = Attack(__doc__, once, probe="tokenize", num_clients=(8, 32), in_gate=True)
