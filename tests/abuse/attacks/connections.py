"""Connections that are opened, used for one cheap wrong request, and dropped."""

from abuse.attack import Attack
from abuse.wire import Target, request


async def once(target: Target, number: int) -> int:
    return await request(target, ("/version", "/nothing", "/v1/models")[number % 3])


ATTACK = Attack(__doc__, once, probe="version", num_clients=(32, 128), without_key=True, behind_proxy=True)
