"""JSON schemas near the size limit, each a new one."""

from abuse.attack import Attack
from abuse.wire import Target, encode, request


async def once(target: Target, number: int) -> int:
    properties = {f"field_{number}_{at}": {"type": "string", "pattern": f"^[a-z]{{1,{at % 50 + 1}}}$"}
                  for at in range(1500)}  # fmt: skip
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    body = {"prompt": "a", "max_tokens": 4, "guided_json": schema}
    return await request(target, "/v1/completions", encode(body), leave_after=2.0)


ATTACK = Attack(__doc__, once, probe="form", num_clients=(6, 24))
