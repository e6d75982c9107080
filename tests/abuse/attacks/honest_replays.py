"""Replays of a long answer's receipt, as often as possible."""

from abuse.attack import Attack
from abuse.attacks.forged_receipts import make_receipt
from abuse.wire import LOST, Target, request


async def once(target: Target, number: int) -> int:
    receipt = await make_receipt(target, min(1000, target.max_model_len - 64))
    if receipt is None:
        return LOST
    return await request(target, "/v1/replay", {"receipt": receipt})


ATTACK = Attack(__doc__, once, num_clients=(8, 32))
