"""The same without a key: any machine that reaches the port can do it."""

from abuse.attack import Attack
from abuse.wire import Target, hold


async def once(target: Target, number: int) -> int:
    return await hold(target, target.head("POST", "/v1/completions", 1000), 30.0)


ATTACK = Attack(__doc__, once, num_clients=(160, 4200), without_key=True, behind_proxy=True)
