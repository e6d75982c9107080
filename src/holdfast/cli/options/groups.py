"""Option groups: a command takes a frozen dataclass, whose fields are the command's options.

    @grouped(without=("max_num_seqs",))
    def chat(model: ModelArgument = None, engine: EngineConfig = ENGINE) -> None: ...

A field is an option if it is declared with `holdfast.core.options.option` (settings of the engine
and the server), or if its type is `Annotated[..., typer.Option(...)]` (groups that only the command
line has). The default is the value in the instance the command starts from. Each alias of a setting
is a hidden option, so that the environment and the configuration file accept it as well.
"""

import inspect
import os
import warnings
from collections.abc import Callable, Collection
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from holdfast.cli.console import note
from holdfast.core.options import OptionField, option_fields
from holdfast.errors import ConfigError

Command = Callable[..., None]

_CONTEXT = "_context"
_SOURCES = ("COMMANDLINE", "ENVIRONMENT", "DEFAULT_MAP")  # the first that has an option wins


def grouped(
    *, without: Collection[str] = (), only: Collection[str] | None = None, server: bool = False
) -> Callable[[Command], Command]:
    """Replace a command's groups by single options: all fields, without some, or only some.

    Settings that are declared `server_only` are options of a server's command.
    """

    def spread(command: Command) -> Command:
        groups: dict[str, _Group] = {}
        parameters: list[inspect.Parameter] = []
        context_name = _CONTEXT
        hints = get_type_hints(command, include_extras=True)
        for name, parameter in inspect.signature(command).parameters.items():
            if is_dataclass(parameter.default):
                groups[name] = _Group(parameter.default, without, only, server)
                parameters += groups[name].parameters
            else:
                parameters.append(_parameter(name, hints[name], parameter.default))
                if hints[name] is typer.Context:
                    context_name = name
        if context_name == _CONTEXT:
            parameters.append(_parameter(_CONTEXT, typer.Context, inspect.Parameter.empty))

        @wraps(command)
        def call(**given: Any) -> None:
            context = given.pop(_CONTEXT) if context_name == _CONTEXT else given[context_name]
            for name, group in groups.items():
                given[name] = group.gather(given, context)
            command(**given)

        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in parameters}
        return call

    return spread


def given_options(context: typer.Context, names: Collection[str]) -> list[str]:
    """The parameters that are on the command line: --max-num-seqs, or MODEL for an argument."""
    given = []
    for one in context.command.params:
        if one.name in names and _source(context, one.name or "") == "COMMANDLINE":
            name = one.opts[0]
            given.append(name if one.param_type_name == "option" else name.upper())
    return given


def parameter_names(config: type) -> set[str]:
    """The names of a configuration's fields, as parameters of a command, with their aliases."""
    names = {one.name for one in fields(config)}
    for one in option_fields(config):
        names |= {one.name, *one.all_aliases}
    return names


class _Group:
    """The options of one dataclass instance."""

    def __init__(
        self, start: Any, without: Collection[str], only: Collection[str] | None, server: bool
    ) -> None:
        self._start = start
        self._settings: list[OptionField] = []
        self._plain: list[str] = []
        self.parameters: list[inspect.Parameter] = []

        def wanted(name: str) -> bool:
            return name not in without and (only is None or name in only)

        for one in option_fields(type(start)):
            if wanted(one.field_name) and (server or not one.option.server_only):
                self._settings.append(one)
                self.parameters += _setting_parameters(one, getattr(start, one.field_name))
        for name, hint in get_type_hints(type(start), include_extras=True).items():
            if get_origin(hint) is Annotated and wanted(name):
                self._plain.append(name)
                self.parameters.append(_parameter(name, hint, getattr(start, name)))

    def gather(self, given: dict[str, Any], context: typer.Context) -> Any:
        """The dataclass with the values of its options, which are taken out of given."""
        values = {name: given.pop(name) for name in self._plain}
        for one in self._settings:
            found = {name: given.pop(name) for name in (one.name, *one.all_aliases)}
            values[one.field_name] = _value(one, found, context)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", DeprecationWarning)
            config = replace(self._start, **values)
        for warning in caught:
            note(str(warning.message))
        return config


def _setting_parameters(one: OptionField, default: Any) -> list[inspect.Parameter]:
    """The option, and a hidden one for each alias."""
    option = one.option
    metavar = option.metavar or ("NAME" if one.choices else None)
    hint = _typer_type(one)
    if isinstance(default, tuple):
        default = list(default) or None
    described = f"{option.help} Default: {option.unset}." if option.unset else option.help
    if one.choices:  # not as metavar: in 80 columns it would leave no room for the text
        described = f"{' | '.join(one.choices)}. {described}"
    shown = typer.Option(
        help=described, rich_help_panel=option.panel, metavar=metavar, show_default=default is not None
    )
    parameters = [_parameter(one.name, Annotated[hint, shown], default)]
    for alias in one.all_aliases:
        hidden = typer.Option(hidden=True)
        parameters.append(_parameter(alias, Annotated[hint | None, hidden], None))
    return parameters


def _typer_type(one: OptionField) -> Any:
    """The type typer reads an option with.

    Sizes such as 512MiB are text; old values are checked by the dataclass.
    """
    if one.option.file_chars:
        return Path | None
    if one.type == tuple[str, ...]:
        return list[str] | None
    if one.option.old_values:
        return str
    members = get_args(one.type)
    if str in members:
        return str | None if NoneType in members else str
    return one.type


def _value(one: OptionField, found: dict[str, Any], context: typer.Context) -> Any:
    """The value of an option or of one of its aliases: that of the source which comes first."""
    ranks = {name: _rank(context, name) for name in found}
    best = min(ranks.values())
    names = [name for name in found if ranks[name] == best]
    if best == len(_SOURCES):
        names = [one.name]
    if len(names) > 1:
        raise ConfigError(f"{' and '.join(map(_spelled, names))} are the same option; give one of them")
    (name,) = names
    if name in one.option.deprecated:
        note(f"{_spelled(name)} is now called {_spelled(one.name)}; the old name will be removed")
    value = found[name]
    if one.option.file_chars:
        return None if value is None else _read_text(value, one)
    if one.type == tuple[str, ...]:
        return _several(name, value, context)
    return value


def _several(name: str, values: list[str] | None, context: typer.Context) -> tuple[str, ...]:
    """The values of an option that may be repeated.

    In the environment, one variable holds them all, with commas.
    """
    if values and _source(context, name) == "ENVIRONMENT":
        values = [part for value in values for part in value.split(",") if part]
    variable = f"{context.auto_envvar_prefix}_{name.upper()}"
    if not values and context.auto_envvar_prefix is not None and variable in os.environ:
        raise ConfigError(f"{variable} is set, but empty; give it a value or unset it")
    return tuple(values or ())


def _read_text(path: Path, one: OptionField) -> str:
    what = one.field_name.replace("_", " ")
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(one.option.file_chars + 1)
    except UnicodeDecodeError as error:
        raise ConfigError(f"the {what} in {path} is no valid UTF-8") from error
    except OSError as error:
        raise ConfigError(f"the {what} {path} cannot be read: {error.strerror}") from error
    if len(text) > one.option.file_chars:
        raise ConfigError(f"the {what} in {path} is longer than {one.option.file_chars} characters")
    return text


def _rank(context: typer.Context, name: str) -> int:
    source = _source(context, name)
    return _SOURCES.index(source) if source in _SOURCES else len(_SOURCES)


def _source(context: typer.Context, name: str) -> str | None:
    """Where a parameter's value comes from: COMMANDLINE, ENVIRONMENT, DEFAULT_MAP, DEFAULT."""
    source = context.get_parameter_source(name)
    return None if source is None else source.name


def _spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
