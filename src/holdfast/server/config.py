"""Settings of one server.

A `ServerConfig` that exists is consistent; the engine's settings are in `EngineConfig`.
"""

# ruff: noqa: RUF009  (option() makes a dataclass field)

import math
from dataclasses import dataclass, fields
from functools import partial
from typing import Literal

from holdfast.core.options import check_choices, option
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError
from holdfast.server.reasoning.formats import ReasoningParserName
from holdfast.server.tenants.addresses import is_loopback, parse_proxies
from holdfast.server.tools.formats import ToolParserName

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

# What a server reads again at SIGHUP, beside its key file.
RELOADED = (
    *("api_keys", "key_file", "max_waiting", "max_choices", "max_prompts", "max_stops"),
    *("request_timeout", "send_timeout", "drain_timeout"),
)
_MAY_BE_ZERO = ("port", "max_waiting", "hang_timeout", "drain_timeout")

_server = partial(option, panel="Server")
_limit = partial(option, panel="Limits")
_logs = partial(option, panel="Logs")


@dataclass(frozen=True)
class ServerConfig:
    """Address, access, limits, logs.

    Sizes are bytes, times are seconds. Without keys every client is accepted.
    """

    host: str = _server(
        "127.0.0.1", "Address to listen on. 0.0.0.0 accepts other machines; then set an API key as well."
    )
    port: int = _server(8000, "Port to listen on; 0 takes a free one.")
    api_keys: tuple[str, ...] = _server(
        (),
        "A key that clients must send, as Authorization: Bearer KEY or X-Api-Key: KEY. Repeat the option for several "
        "keys. In the environment, separate keys by commas; other users of this machine cannot read them there.",
        name="api_key",
        metavar="KEY",
    )
    key_file: str | None = _server(
        None,
        "A TOML file with named keys and the limits of each; SIGHUP reads it again. See Tenants and limits.",
        metavar="FILE",
        unset="no named keys",
    )
    trusted_proxies: tuple[str, ...] = _server(
        (),
        "Address or network (10.0.0.0/8) of a proxy whose X-Forwarded-For header says who the client is. "
        "Repeat the option for several.",
        name="trusted_proxy",
        metavar="ADDRESS",
    )
    served_model_names: tuple[str, ...] = _server(
        (),
        "The model's name in requests and responses. Repeat the option for several names; responses have the first.",
        name="served_model_name",
        metavar="NAME",
        unset="the model's own name",
    )
    allowed_origins: tuple[str, ...] = _server(
        (),
        "Origin of a web page whose scripts may send requests, such as https://example.org, or * for all. Repeat the "
        "option for several origins.",
        name="allowed_origin",
        metavar="ORIGIN",
    )
    inspector: bool | None = _server(
        None,
        "Serve the inspector, a page that shows the engine at work, at /. A key sees its own requests there.",
        unset="on a loopback address only",
    )
    reasoning_parser: ReasoningParserName = _server(
        "auto",
        "The format of the thinking that is separated from answers as reasoning_content. auto: by the chat template; "
        "none: it stays in the content.",
    )
    tool_call_parser: ToolParserName = _server(
        "auto",
        "The format of tool calls. auto: by the chat template; none: calls stay in the content, unless tool_choice "
        "forces them.",
    )
    max_body_bytes: int = _limit(8 << 20, "Maximum size of a request's body.")
    max_connections: int = _limit(
        4096, "Maximum number of open connections; while there are more, requests are refused with 503."
    )
    max_waiting: int = _limit(
        256, "Maximum number of answers that wait to run; more are refused with 429 and Retry-After."
    )
    max_choices: int = _limit(32, "Maximum n of a request.")
    max_prompts: int = _limit(256, "Maximum number of prompts in one request.")
    max_stops: int = _limit(16, "Maximum number of stop strings in one request.")
    body_timeout: float = _limit(
        30.0, "Seconds for a request's body to arrive; longer while at least 16 KiB a second arrive."
    )
    keep_alive_timeout: float = _limit(75.0, "Seconds an idle connection stays open.")
    send_timeout: float = _limit(
        60.0, "Seconds a write of a stream may wait for its client before the request is aborted."
    )
    request_timeout: float = _limit(600.0, "Seconds a request may take in total.")
    resume: bool = _server(
        True,
        "Continue requests whose engine process died in the next one. Without it they end with an error.",
    )
    hang_timeout: float = _limit(
        60.0,
        "Seconds without a step after which an engine process that hangs is killed and restarted, at least 20 times "
        "its longest step; 0: never.",
    )
    drain_timeout: float = _limit(
        30.0, "Seconds that running requests may continue after SIGTERM; a second signal ends them at once."
    )
    log_format: LogFormat = _logs(
        "text", "Log records as lines of text, or as one JSON object a line. To stderr."
    )
    log_level: LogLevel = _logs(
        "info", "Least severe level that is logged. Each request is one line of level info."
    )
    files_dir: str | None = _server(
        None,
        "A folder for the files and batches of clients: /v1/files and /v1/batches.",
        metavar="FOLDER",
        unset="no files and no batches",
    )
    max_files_bytes: int = _limit(
        4 << 30, "Maximum size of all files and answers of batches in --files-dir; one client may take half."
    )
    otlp_endpoint: str | None = _logs(
        None,
        "Send traces to this OpenTelemetry collector, such as http://localhost:4318. Needs the extra otel.",
        unset="no traces",
    )

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if one.type is int:
                least = 0 if one.name in _MAY_BE_ZERO else 1
                if isinstance(value, bool) or not isinstance(value, int) or value < least:
                    raise ConfigError(f"{one.name} must be a whole number of at least {least}, not {value!r}")
            elif one.type is float:
                if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                    raise ConfigError(f"{one.name} must be a number of seconds, not {value!r}")
                if value < 0 or (value == 0 and one.name not in _MAY_BE_ZERO):
                    raise ConfigError(f"{one.name} must be more than 0 seconds, not {value!r}")
        if self.port > 65535:
            raise ConfigError(f"port must be at most 65535, not {self.port}")
        if not all(map(is_valid_key, self.api_keys)):
            raise ConfigError("an API key must be ASCII, not empty, without spaces around it")
        parse_proxies(self.trusted_proxies)
        check_choices(self)

    @property
    def has_inspector(self) -> bool:
        return is_loopback(self.host) if self.inspector is None else self.inspector

    @property
    def has_keys(self) -> bool:
        return bool(self.api_keys) or self.key_file is not None


@dataclass(frozen=True)
class ModelConfig:
    """One model of a server. names: in requests, by default its own; responses have the first."""

    engine: EngineConfig
    names: tuple[str, ...] = ()


def is_valid_key(key: str) -> bool:
    """Whether a client can send this API key in a header."""
    return bool(key) and key.isascii() and key.isprintable() and key == key.strip()
