"""Hundreds of connections, or thousands. Each sends the head of a POST, and no body."""

from abuse.attack import Attack
from abuse.wire import Target, hold


async def once(target: Target, number: int) -> int:
    return await hold(target, target.head("POST", "/v1/completions", 1000), 30.0)


ATTACK = Attack(__doc__, once, num_clients=(160, 4200), in_gate=True, behind_proxy=True)
