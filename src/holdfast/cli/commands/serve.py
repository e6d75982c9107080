"""`holdfast serve`: start a server; options from the command line, the environment, a file."""

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.console import require_packages
from holdfast.cli.options import engine as o
from holdfast.cli.options.config_file import load_config_file, reload_config_file
from holdfast.cli.options.groups import given_options, grouped, several
from holdfast.core.options import option_fields
from holdfast.core.sampling_params import show
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError
from holdfast.ray.config import ReplicasConfig
from holdfast.server.config import RELOADED, ModelConfig, ServerConfig

PREFIX = "HOLDFAST"
COMMAND_SETTINGS = {"context_settings": {"auto_envvar_prefix": PREFIX, "allow_extra_args": True}}
_PACKAGES = ("fastapi", "uvicorn", "httptools", "msgspec", "prometheus_client")
_SERVER = ServerConfig()
_log = logging.getLogger("holdfast.server")
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
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model",
            "-m",
            help="A model to serve: NAME=MODEL, or MODEL by its own name. Repeat the option to serve several, each in "
            "an engine process of its own.",
            metavar="NAME=MODEL",
            rich_help_panel="Server",
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
        raise ConfigError("MODEL is one model; give several as --model NAME=MODEL, one option for each")
    require_packages(*_PACKAGES, extra="server", what="the server")
    served = _models(context, model, several("models", models, context), server, engine)
    if replicas.is_pool:
        if len(served) > 1:
            raise ConfigError("replicas serve one model; start a server for each, or leave out --replicas")
        o.open_model(served[0].engine)
        require_packages("ray", extra="ray", what="--replicas")
        from holdfast.ray.serve_replicas import serve_replicas

        server = replace(server, served_model_names=served[0].names)
        raise typer.Exit(serve_replicas(server, served[0].engine, replicas))
    from holdfast.server.main import run

    read_config = None if config is None else partial(_read_again, context, config)
    raise typer.Exit(run(server, _opened(served), read_config=read_config))


def _read_again(context: typer.Context, path: Path) -> ServerConfig:
    """Return the server's options with the file as it is now. Says which changes are for the next start."""
    server, changed = reload_config_file(context, path, _SERVER)
    reloaded = {one.name for one in option_fields(ServerConfig) if one.field_name in RELOADED}
    if later := [one for one in changed if one not in reloaded]:
        _log.warning("changed in %s, but read at the next start only: %s", path, ", ".join(later))
    return server


def _models(
    context: typer.Context,
    model: str | None,
    models: Sequence[str],
    server: ServerConfig,
    engine: EngineConfig,
) -> list[ModelConfig]:
    """Return the models to serve. What is on the command line counts."""
    typed = given_options(context, ("model", "models"))
    if model is not None and models and len(typed) != 1:
        raise ConfigError("give MODEL, or --model for each model, not both")
    if not models or typed == ["MODEL"]:
        return [ModelConfig(replace(engine, model=model), server.served_model_names)]
    served = [_named(one, engine) for one in models]
    if len(served) == 1:
        return [replace(served[0], names=server.served_model_names or served[0].names)]
    if server.served_model_names:
        raise ConfigError("served_model_name is for one model; name several as --model NAME=MODEL")
    return served


def _named(text: str, engine: EngineConfig) -> ModelConfig:
    """Return the model of a `NAME=MODEL`, or of a `MODEL`."""
    name, equals, model = text.partition("=")
    if not equals or os.path.exists(os.path.expanduser(text)):  # False for a text too long for a path
        return ModelConfig(replace(engine, model=text))
    if not name or name != name.strip() or not model.strip() or not name.isprintable():
        raise ConfigError(f"--model takes MODEL or NAME=MODEL, not {show(text)}")
    return ModelConfig(replace(engine, model=model), (name,))


def _opened(models: list[ModelConfig]) -> list[ModelConfig]:
    """Return the models with their parts of the memory, after their files are checked."""
    opened = [o.open_model(one.engine) for one in models]
    if len(models) == 1:
        return models
    from holdfast.engine.start.share_memory import share_memory
    from holdfast.models.locate import locate

    names = [one.names or (locate(one.engine.model).name,) for one in models]
    if twice := {one for one in names if names.count(one) > 1}:
        raise ConfigError(f"two models are named {min(twice)[0]}; name them: --model NAME=MODEL")
    engines, plan = share_memory(opened)
    typer.echo(plan)
    return [ModelConfig(engine, each) for engine, each in zip(engines, names, strict=True)]
