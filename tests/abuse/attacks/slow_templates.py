"""Conversations of 2,000 messages and large template variables."""

from abuse.attack import Attack
from abuse.wire import Target, encode, request


async def once(target: Target, number: int) -> int:
    body = {
        "messages": [{"role": "user", "content": f"{number} {at}"} for at in range(2000)],
        "max_tokens": 1,
        "chat_template_kwargs": {"x": [[at] for at in range(4000)]},
    }
    return await request(target, "/v1/chat/completions", encode(body))


ATTACK = Attack(__doc__, once, probe="chat", num_clients=(8, 32))
