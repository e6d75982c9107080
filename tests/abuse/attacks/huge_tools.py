"""Chats with a dozen tools, forced by grammar, each list a new one."""

from abuse.attack import Attack
from abuse.wire import Target, encode, request


def tool(name: str, number: int) -> dict[str, object]:
    properties = {f"p{at}_{number}": {"type": "string"} for at in range(4)}
    parameters = {"type": "object", "properties": properties}
    return {
        "type": "function",
        "function": {"name": name, "parameters": parameters},
    }


async def once(target: Target, number: int) -> int:
    body = {
        "messages": [{"role": "user", "content": "dog"}],
        "max_tokens": 4,
        "tools": [tool(f"f{at}", number) for at in range(12)],
        "tool_choice": "required",
    }
    return await request(target, "/v1/chat/completions", encode(body), leave_after=1.0)


ATTACK = Attack(__doc__, once, probe="chat", num_clients=(6, 24))
