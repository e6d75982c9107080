"""Bodies of several megabytes: deep, with many keys, with many values. All are refused."""

from abuse.attack import Attack
from abuse.wire import Target, request

_BODIES = (
    b"[" * 4_000_000,
    b'{"prompt": ' + b"[" * 63 + b"1" + b"]" * 63 + b', "x": [' + b"1," * 500_000 + b"1]}",
    b"{" + b",".join(b'"k%d":1' % at for at in range(16_000)) + b"}",
    b'{"prompt": "a", "unknown": "' + b"\\u0041" * 600_000 + b'"}',
)


async def once(target: Target, number: int) -> int:
    return await request(target, "/v1/completions", _BODIES[number % len(_BODIES)])


ATTACK = Attack(__doc__, once, probe="version", num_clients=(6, 24))
