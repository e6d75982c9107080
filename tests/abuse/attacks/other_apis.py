"""Long answers through /v1/responses and /v1/messages, and counts of tokens of long conversations."""

from abuse.attack import Attack
from abuse.wire import Target, encode, request


async def once(target: Target, number: int) -> int:
    turns = [{"role": "user", "content": f"{number} {at} the dog"} for at in range(60)]
    long = "the lazy dog 123 " * 6_000
    bodies = (
        ("/v1/responses", {"input": turns, "max_output_tokens": 300}),
        ("/v1/messages", {"messages": turns, "max_tokens": 300}),
        ("/v1/responses/input_tokens", {"input": long}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": long}]}),
    )
    path, body = bodies[number % len(bodies)]
    return await request(target, path, encode({"model": target.model, **body}))


ATTACK = Attack(__doc__, once, probe="chat", num_clients=(12, 48))
