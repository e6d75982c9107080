"""Long answers that ask for a preference: priority, service_tier, a proxy's headers."""

from abuse.attack import Attack
from abuse.wire import Target, encode, request


async def once(target: Target, number: int) -> int:
    body = {"messages": [{"role": "user", "content": f"{number}"}], "max_tokens": 400, "ignore_eos": True,
            "service_tier": "priority", "user": "root"}  # fmt: skip
    if number % 2:
        body["priority"] = -1000
    headers = {"X-Forwarded-For": f"10.0.{number % 250}.7", "X-Priority": "high"}
    return await request(target, "/v1/chat/completions", encode(body), headers=headers)


ATTACK = Attack(__doc__, once, probe="chat", num_clients=(32, 96))
