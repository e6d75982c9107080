"""What an attack is: a request that one hostile client repeats, in several loops at once."""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from abuse.wire import LOST, Target

_PAUSE = 0.02  # after a refusal, so that the attacking process does not only attack its own CPU

Once = Callable[[Target, int], Awaitable[int]]


@dataclass(frozen=True)
class Attack:
    """once(target, number) sends request `number` and returns its status.

    probe names the honest client's request (`honest.PROBES`). num_clients loops run at once: the
    number in the short form, and in the long form. without_key: the hostile client has no key. in_gate:
    the gate runs the short form. behind_proxy: only nginx holds it (docs/nginx.conf).
    """

    once: Once
    probe: str = "completion"
    num_clients: tuple[int, int] = (16, 64)
    without_key: bool = False
    in_gate: bool = False
    behind_proxy: bool = False


async def run_attack(
    attack: Attack, targets: list[Target], num_clients: int, seconds: float, stop: asyncio.Event
) -> Counter[int]:
    """Run loops of every target's client for so long, or until `stop` is set. Counts the statuses."""
    statuses: Counter[int] = Counter()
    numbers = iter(range(1 << 60))
    until = time.monotonic() + seconds

    async def loop(target: Target) -> None:
        while time.monotonic() < until:
            status = await attack.once(target, next(numbers))
            statuses[status] += 1
            if status == LOST or status >= 400:
                await asyncio.sleep(_PAUSE)

    loops = [asyncio.ensure_future(loop(target)) for target in targets for _ in range(num_clients)]
    ending = asyncio.ensure_future(stop.wait())
    await asyncio.wait([asyncio.gather(*loops, return_exceptions=True), ending], timeout=seconds,
                       return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
    for one in (*loops, ending):
        one.cancel()
    results = await asyncio.gather(*loops, ending, return_exceptions=True)
    for one in results:
        if isinstance(one, Exception) and not isinstance(one, asyncio.CancelledError):
            raise one
    return statuses
