"""Cross-site GETs of the inspector's events, as a web page sends them: no Origin."""

from abuse.attack import Attack
from abuse.wire import Target, request

_HEADERS = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}


async def once(target: Target, number: int) -> int:
    return await request(target, "/inspector/events", headers=_HEADERS)


ATTACK = Attack(__doc__, once, num_clients=(8, 16), in_gate=True)
