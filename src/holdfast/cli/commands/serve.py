"""`holdfast serve`: start a server; options from the command line, the environment, a file."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.console import require_packages
from holdfast.cli.options import engine as o
from holdfast.cli.options.config_file import load_config_file
from holdfast.cli.options.groups import grouped
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError
from holdfast.ray.config import ReplicasConfig
from holdfast.server.config import ServerConfig

PREFIX = "HOLDFAST"
COMMAND_SETTINGS = {"context_settings": {"auto_envvar_prefix": PREFIX, "allow_extra_args": True}}
_PACKAGES = ("fastapi", "uvicorn", "httptools", "msgspec", "prometheus_client")
_SERVER = ServerConfig()
_REPLICAS = ReplicasConfig()


@grouped(server=True)
def serve(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            help=o.MODEL_HELP,
            envvar=f"{PREFIX}_MODEL",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="A YAML file with options: the names below without --, one name: value a line.",
            is_eager=True,
            callback=load_config_file,
            metavar="FILE",
            rich_help_panel="Server",
        ),
    ] = None,
    server: ServerConfig = _SERVER,
    engine: EngineConfig = o.ENGINE,
    replicas: ReplicasConfig = _REPLICAS,
) -> None:
    """Serve a model over HTTP with OpenAI's API, and a page that shows the engine at work.

    Options are taken from the command line, else the environment (HOLDFAST_PORT), else the --config
    file. SIGTERM ends the server after the running requests.
    """
    if context.args:  # not shown, because it may be a key
        raise ConfigError("only one MODEL can be served; repeat an option that takes several values")
    require_packages(*_PACKAGES, extra="server", what="the server")
    engine = replace(engine, model=model)
    o.open_model(engine)
    if replicas.is_pool:
        require_packages("ray", extra="ray", what="--replicas")
        from holdfast.ray.serve_replicas import serve_replicas

        raise typer.Exit(serve_replicas(server, engine, replicas))
    from holdfast.server.main import run

    raise typer.Exit(run(server, engine))
