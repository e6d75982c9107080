"""How the engine is doing, in plain numbers: what it holds now, and what it has done since it started.

The engine process sends one when it is asked; the front shows it (`metrics`). The front never sees the engine itself.
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.engine.engine import Engine


@dataclass(frozen=True)
class EngineStatus:
    """Numbers of one moment. pages_used are held by requests; pages_cached by nobody but the prefix cache, which gives
    them up as soon as a request needs them. From steps on: `engine.loop.Counters`, counted since this engine started.
    """

    running: int
    waiting: int
    pages_used: int
    pages_cached: int
    num_pages: int
    steps: int = 0
    fast_passes: int = 0
    canonical_passes: int = 0
    certified_passes: int = 0
    shared_canonical_passes: int = 0
    rows: int = 0
    spot_checks: int = 0
    spot_checked_rows: int = 0
    revocations: int = 0


def status_of(engine: "Engine") -> EngineStatus:
    """The engine's numbers now. Only the thread that owns the engine may ask."""
    scheduler = engine.scheduler
    return EngineStatus(
        running=scheduler.num_running,
        waiting=scheduler.num_waiting,
        pages_used=scheduler.pool.num_held,
        pages_cached=scheduler.pool.num_idle,
        num_pages=scheduler.pool.num_pages,
        **asdict(engine.counters),
    )
