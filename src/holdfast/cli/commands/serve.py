"""`holdfast serve`: from the command line, the environment and a file to a running server."""

import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import engine as o
from holdfast.cli.options.config_file import load_config_file
from holdfast.cli.options.groups import grouped
from holdfast.cli.options.server import LogOptions, ServerOptions
from holdfast.cli.show import note
from holdfast.errors import ConfigError

PREFIX = "HOLDFAST"
CONTEXT = {"auto_envvar_prefix": PREFIX, "allow_extra_args": True}
_PACKAGES = ("fastapi", "uvicorn", "httptools", "msgspec", "prometheus_client")
_SERVER = ServerOptions()
_LOGS = LogOptions()


@grouped()
def serve(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Argument(
            help="Folder, .gguf file, hub id or built-in name; without one, the default model.",
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
    server: ServerOptions = _SERVER,
    engine: o.EngineOptions = o.ENGINE,
    logs: LogOptions = _LOGS,
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
    server = replace(
        server,
        api_key=_listed(context, "api_key", server.api_key),
        served_model_name=_listed(context, "served_model_name", server.served_model_name),
        allowed_origin=_listed(context, "allowed_origin", server.allowed_origin),
    )
    server_config = server.config(logs)
    if gpu_memory_utilization is not None:
        note(
            "--gpu-memory-utilization is accepted for scripts written for other engines and has no effect: "
            "--kv-memory says how much memory keys and values may take"
        )
    from holdfast.server.main import run

    raise typer.Exit(run(server_config, replace(engine, model=model).config()))


def _listed(context: typer.Context, name: str, values: list[str] | None) -> list[str] | None:
    """The values of an option that may be repeated. In the environment they stand in one variable, with commas."""
    variable = f"{PREFIX}_{name.upper()}"
    source = context.get_parameter_source(name)
    if values and source is not None and source.name == "ENVIRONMENT":
        values = [part for value in values for part in value.split(",") if part]
    if not values and variable in os.environ:
        raise ConfigError(f"{variable} is set, but empty; give it a value or unset it")
    return values


def _require_packages() -> None:
    for package in _PACKAGES:
        if find_spec(package) is None:
            raise ConfigError(f"the server needs {package}; install it with: pip install 'holdfast[server]'")
