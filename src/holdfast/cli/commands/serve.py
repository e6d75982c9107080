"""`holdfast serve`: from the command line, the environment and a file to a running server."""

from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import engine as o
from holdfast.cli.options.config_file import load_config_file
from holdfast.cli.options.groups import grouped
from holdfast.cli.show import note
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError
from holdfast.server.config import ServerConfig

PREFIX = "HOLDFAST"
CONTEXT = {"auto_envvar_prefix": PREFIX, "allow_extra_args": True}
_PACKAGES = ("fastapi", "uvicorn", "httptools", "msgspec", "prometheus_client")
_SERVER = ServerConfig()


@grouped()
def serve(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            help=o.MODEL_HELP,
            envvar=f"{PREFIX}_MODEL",
            show_default=False,
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="A YAML file with options: the names below without --, one name: value a line.",
            is_eager=True,
            callback=load_config_file,
            metavar="FILE",
            show_default=False,
            rich_help_panel="Server",
        ),
    ] = None,
    server: ServerConfig = _SERVER,
    engine: EngineConfig = o.ENGINE,
    *,
    gpu_memory_utilization: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Accepted for scripts written for other engines; --kv-memory is what counts.",
            show_default=False,
            rich_help_panel="Engine",
        ),
    ] = None,
) -> None:
    """Serve a model over HTTP, as OpenAI clients expect it, with a page that shows it work.

    An option comes from the command line, else from the environment (HOLDFAST_PORT for --port), else from the file given
    with --config, else it has its default. SIGTERM ends the server when running requests are answered.
    """
    if context.args:  # not shown: it may be a key
        raise ConfigError(
            "only one MODEL can be served; give an option that takes several values once for each"
        )
    _require_packages()
    if gpu_memory_utilization is not None:
        note(
            "--gpu-memory-utilization is accepted for scripts written for other engines and has no effect: "
            "--kv-memory says how much memory keys and values may take"
        )
    from holdfast.server.main import run

    raise typer.Exit(run(server, replace(engine, model=model)))


def _require_packages() -> None:
    for package in _PACKAGES:
        if find_spec(package) is None:
            raise ConfigError(f"the server needs {package}; install it with: pip install 'holdfast[server]'")
