"""Where a server listens, what it refuses and how it logs, as groups of options. Values are checked in `ServerConfig`.

Every option is also a variable of the environment, HOLDFAST_ and its name, and a name in a configuration file.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from holdfast.errors import ConfigError
from holdfast.server.config import ServerConfig

MAX_TEMPLATE_CHARS = 1 << 20


def _option(panel: str, help: str, **settings: Any) -> Any:
    return typer.Option(help=help, rich_help_panel=panel, **settings)


def _server(help: str, **settings: Any) -> Any:
    return _option("Server", help, **settings)


def _limit(help: str) -> Any:
    return _option("Limits", help)


@dataclass(frozen=True)
class ServerOptions:
    """A group of options (`groups`)."""

    host: Annotated[
        str, _server("Address to listen on. 0.0.0.0 lets other machines ask; then give an API key, too.")
    ] = ServerConfig.host
    port: Annotated[int, _server("Port to listen on; 0 takes a free one.")] = ServerConfig.port
    api_key: Annotated[
        list[str] | None,
        _server(
            "A key clients must send, as Authorization: Bearer KEY. Give the option once for each key; in the "
            "environment, commas separate keys, and other users of this machine cannot read them there.",
            metavar="KEY",
            show_default=False,
        ),
    ] = None
    served_model_name: Annotated[
        list[str] | None,
        _server(
            "What clients call the model; give the option once for each name. The first is in responses. Without "
            "one, the model's own name.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None
    allowed_origin: Annotated[
        list[str] | None,
        _server(
            "A web page's origin, such as https://example.org, whose scripts may ask, or * for all of them; give "
            "the option once for each.",
            metavar="ORIGIN",
            show_default=False,
        ),
    ] = None
    chat_template: Annotated[
        Path | None,
        _server(
            "A file with a Jinja chat template, instead of the model's own.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None
    inspector: Annotated[bool, _server("Show the page on which one sees the server work, at /.")] = (
        ServerConfig.inspector
    )

    max_body_bytes: Annotated[int, _limit("Largest request.")] = ServerConfig.max_body_bytes
    max_connections: Annotated[int, _limit("Connections open at once.")] = ServerConfig.max_connections
    max_waiting: Annotated[
        int,
        _limit(
            "Answers that may wait beside those that run; more are refused with 429 and told when to come back."
        ),
    ] = ServerConfig.max_waiting
    max_choices: Annotated[int, _limit("Largest n of a request.")] = ServerConfig.max_choices
    max_prompts: Annotated[int, _limit("Prompts in one request.")] = ServerConfig.max_prompts
    max_stops: Annotated[int, _limit("Stop strings in one request.")] = ServerConfig.max_stops
    header_timeout: Annotated[float, _limit("Seconds in which a request's headers must arrive.")] = (
        ServerConfig.header_timeout
    )
    body_timeout: Annotated[float, _limit("Seconds in which a request's body must arrive.")] = (
        ServerConfig.body_timeout
    )
    keep_alive_timeout: Annotated[float, _limit("Seconds an idle connection is kept open.")] = (
        ServerConfig.keep_alive_timeout
    )
    send_timeout: Annotated[
        float, _limit("Seconds a client may take to read what was sent, before its request is given up.")
    ] = ServerConfig.send_timeout
    request_timeout: Annotated[float, _limit("Seconds a request may take in all.")] = (
        ServerConfig.request_timeout
    )
    drain_timeout: Annotated[
        float, _limit("Seconds running requests may go on after SIGTERM; a second signal ends them at once.")
    ] = ServerConfig.drain_timeout

    def config(self, logs: "LogOptions") -> ServerConfig:
        """The server's settings; raises `ConfigError` for what is wrong with them."""
        given = asdict(self)
        return ServerConfig(
            api_keys=tuple(given.pop("api_key") or ()),
            served_model_names=tuple(given.pop("served_model_name") or ()),
            allowed_origins=tuple(given.pop("allowed_origin") or ()),
            chat_template=_read_template(given.pop("chat_template")),
            **given,
            **asdict(logs),
        )


@dataclass(frozen=True)
class LogOptions:
    """A group of options (`groups`)."""

    log_format: Annotated[
        Literal["text", "json"], _option("Logs", "One readable line a record, or one JSON object. To stderr.")
    ] = ServerConfig.log_format
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        _option("Logs", "What is logged: this and what is worse. Each request is a line of level info."),
    ] = ServerConfig.log_level
    otlp_endpoint: Annotated[
        str | None,
        _option(
            "Logs",
            "Send traces to this OpenTelemetry collector, such as http://localhost:4318; it needs the extra otel.",
            show_default=False,
        ),
    ] = ServerConfig.otlp_endpoint


def _read_template(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_TEMPLATE_CHARS + 1)
    except UnicodeDecodeError as error:
        raise ConfigError(f"the chat template in {path} is no valid UTF-8") from error
    except OSError as error:
        raise ConfigError(f"the chat template {path} cannot be read: {error.strerror}") from error
    if len(text) > MAX_TEMPLATE_CHARS:
        raise ConfigError(f"the chat template in {path} is longer than {MAX_TEMPLATE_CHARS} characters")
    return text
