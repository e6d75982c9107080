"""How a server is started. A `ServerConfig` that exists is consistent; what belongs to the engine is in `EngineConfig`."""

import math
from dataclasses import dataclass, fields
from typing import Literal

from holdfast.errors import ConfigError

LogFormat = Literal["text", "json"]


@dataclass(frozen=True)
class ServerConfig:
    """Where it listens, who may ask, and what it refuses. Sizes are bytes, times are seconds.

    Without api_keys everybody who can connect may ask. max_waiting requests may wait beside those that run; more are told
    to come back later. drain_timeout is how long running requests may go on after SIGTERM.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: tuple[str, ...] = ()
    served_model_names: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    chat_template: str | None = None  # the template's text
    inspector: bool = True
    max_body_bytes: int = 8 << 20
    max_connections: int = 4096
    max_waiting: int = 256
    max_choices: int = 32
    max_prompts: int = 256
    max_stops: int = 16
    header_timeout: float = 10.0
    body_timeout: float = 30.0
    keep_alive_timeout: float = 75.0
    send_timeout: float = 60.0
    request_timeout: float = 600.0
    drain_timeout: float = 30.0
    log_format: LogFormat = "text"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    otlp_endpoint: str | None = None

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.type is int:
                least = 0 if one.name in ("port", "max_waiting") else 1
                if isinstance(value, bool) or not isinstance(value, int) or value < least:
                    raise ConfigError(f"{one.name} must be a whole number of at least {least}, not {value!r}")
            elif one.type is float:
                if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                    raise ConfigError(f"{one.name} must be a number of seconds, not {value!r}")
                if value < 0 or (value == 0 and one.name != "drain_timeout"):
                    raise ConfigError(f"{one.name} must be more than 0 seconds, not {value!r}")
        if self.port > 65535:
            raise ConfigError(f"port must be at most 65535, not {self.port}")
        if any(not key or not key.isascii() or key != key.strip() for key in self.api_keys):
            raise ConfigError("an API key must be ASCII, not empty, without spaces around it")
        if self.log_format not in ("text", "json"):
            raise ConfigError(f"log_format must be text or json, not {self.log_format!r}")
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise ConfigError(f"log_level must be debug, info, warning or error, not {self.log_level!r}")
