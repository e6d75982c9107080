"""A server with sleeping engines, as a process: `python -m holdfast.bench.frontend.sleeping_server JSON`.

JSON is a `SleepingServer`. It serves until a signal ends it, as `holdfast serve` does.
"""

import json
import sys
from dataclasses import asdict, dataclass, field

import msgspec

from holdfast.bench.frontend.sleeping_engine import sleeping_command
from holdfast.bench.frontend.sleeping_runner import StepTime
from holdfast.engine.config import EngineConfig
from holdfast.ray.config import ReplicasConfig
from holdfast.server.config import ServerConfig
from holdfast.server.main import run


@dataclass(frozen=True)
class SleepingServer:
    """The settings of such a server."""

    times: StepTime = field(default_factory=StepTime)
    server: ServerConfig = field(default_factory=ServerConfig)
    engine: EngineConfig = field(default_factory=EngineConfig)
    replicas: ReplicasConfig = field(default_factory=ReplicasConfig)

    @property
    def command(self) -> tuple[str, ...]:
        return sys.executable, "-m", "holdfast.bench.frontend.sleeping_server", json.dumps(asdict(self))


def main() -> None:
    settings = msgspec.json.decode(sys.argv[1], type=SleepingServer)
    command = sleeping_command(settings.times)
    if settings.replicas.is_pool:
        from holdfast.ray.serve_replicas import serve_replicas

        sys.exit(serve_replicas(settings.server, settings.engine, settings.replicas, command))
    sys.exit(run(settings.server, settings.engine, command=command))


if __name__ == "__main__":
    main()
