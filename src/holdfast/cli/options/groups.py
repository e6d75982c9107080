"""Option groups: a command takes a frozen dataclass, whose fields are the command's options.

    @grouped(without=("max_num_seqs",))
    def chat(model: ModelArgument = None, engine: EngineConfig = ENGINE) -> None: ...

A field is an option if it is declared with `holdfast.core.options.option`. The default is the value in
the instance the command starts from. For a class instead of an instance, as in
`changes: Any = TrainingSettings`, the command gets a dict of the options that are given.
"""

import inspect
import os
from collections.abc import Callable, Collection
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import typer

from holdfast.core.files import read_text
from holdfast.core.options import OptionField, option_fields
from holdfast.core.sampling_params import show
from holdfast.errors import ConfigError

Command = Callable[..., None]

LINES = "holdfast.lines"  # in a context's meta: where the configuration file has each option
_CONTEXT = "_context"


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


def gather_again(context: typer.Context, start: Any) -> Any:
    """Return a server's option group after the context's defaults changed. What is on the command line stays."""
    for one in context.command.params:
        if one.name in context.params and _source(context, one.name) in ("DEFAULT_MAP", "DEFAULT"):
            try:
                one.handle_parse_result(context, {}, [])
            except typer.BadParameter as error:
                say_where(error)
                raise ConfigError(error.format_message()) from None
    return _Group(start, (), None, True).gather(dict(context.params), context)


def given_options(context: typer.Context, names: Collection[str]) -> list[str]:
    """Return the parameters that are on the command line: --max-num-seqs, or MODEL for an argument."""
    given = []
    for one in context.command.params:
        if one.name in names and _source(context, one.name or "") == "COMMANDLINE":
            name = one.opts[0]
            given.append(name if one.param_type_name == "option" else name.upper())
    return given


def where_set(context: Any, name: str) -> tuple[str, object] | None:
    """Return where an option is set, and its value; None on the command line, where a user sees it."""
    source = _source(context, name)
    if source == "ENVIRONMENT":
        variable = f"{context.auto_envvar_prefix}_{name.upper()}"
        return variable, os.environ.get(variable)
    if source == "DEFAULT_MAP":
        return context.meta[LINES][name], context.default_map[name]
    return None


def say_where(error: Any) -> None:
    """Add where a value of another type comes from. A text, which may be a key, is never of another type."""
    found = (
        where_set(error.ctx, error.param.name) if error.ctx is not None and error.param is not None else None
    )
    if found is not None:
        where, value = found
        error.message = f"{error.message} ({where}: {show(value)})"


def parameter_names(config: type) -> set[str]:
    return {one.name for one in fields(config)} | {one.name for one in option_fields(config)}


class _Group:
    def __init__(
        self, start: Any, without: Collection[str], only: Collection[str] | None, server: bool
    ) -> None:
        self._start = start
        self._fields = [
            one
            for one in option_fields(start if isinstance(start, type) else type(start))
            if one.field_name not in without
            and (only is None or one.field_name in only)
            and (server or not one.option.server_only)
        ]
        self.parameters = [
            _setting_parameter(one, None if isinstance(start, type) else getattr(start, one.field_name))
            for one in self._fields
        ]

    def gather(self, given: dict[str, Any], context: typer.Context) -> Any:
        """Return the dataclass with the values of its options, which are taken out of given."""
        values = {one.field_name: _value(one, given.pop(one.name), context) for one in self._fields}
        if isinstance(self._start, type):
            return {name: value for name, value in values.items() if value not in (None, ())}
        try:
            return replace(self._start, **values)
        except ConfigError as error:
            # It begins with the name of a field and shows what may be shown of the value.
            named = [one.name for one in self._fields if one.field_name == str(error).split(" ", 1)[0]]
            found = where_set(context, named[0]) if named else None
            if found is None:
                raise
            raise ConfigError(f"{found[0]}: {error}") from error


def _setting_parameter(one: OptionField, default: Any) -> inspect.Parameter:
    option = one.option
    metavar = option.metavar or ("NAME" if one.choices else None)
    hint = _typer_type(one)
    if isinstance(default, tuple):
        default = list(default) or None
    described = f"{option.help} Default: {option.unset}." if option.unset else option.help
    if one.choices:  # not as metavar: in 80 columns it would leave no room for the text
        described = f"{' | '.join(one.choices)}. {described}"
    shown = typer.Option(
        *_names(one),
        help=described,
        rich_help_panel=option.panel,
        metavar=metavar,
        show_default=default is not None and not option.only_on,
    )
    return _parameter(one.name, Annotated[hint, shown], default)


def _names(one: OptionField) -> tuple[str, ...]:
    """Return the option's names; typer 0.27 would make one of the metavar."""
    name = f"--{one.name.replace('_', '-')}"
    if one.type in (bool, bool | None) and not one.option.only_on:
        name = f"{name}/--no-{name[2:]}"
    return (name, one.option.short) if one.option.short else (name,)


def _typer_type(one: OptionField) -> Any:
    """Return the type with which typer reads an option. Sizes such as 512MiB are text."""
    if one.option.file_chars:
        return Path | None
    if one.type == tuple[str, ...]:
        return list[str] | None
    members = get_args(one.type)
    if str in members:
        return str | None if NoneType in members else str
    return one.type


def _value(one: OptionField, value: Any, context: typer.Context) -> Any:
    if one.option.file_chars:
        what = f"the {one.field_name.replace('_', ' ')} {value}"
        return None if value is None else read_text(value, what, one.option.file_chars)
    if one.type == tuple[str, ...]:
        return several(one.name, value, context)
    return value


def several(name: str, values: list[str] | None, context: typer.Context) -> tuple[str, ...]:
    """Return the values of a repeated option. In the environment one variable has them all, with commas."""
    if values and _source(context, name) == "ENVIRONMENT":
        values = [part for value in values for part in value.split(",") if part]
    variable = f"{context.auto_envvar_prefix}_{name.upper()}"
    if not values and context.auto_envvar_prefix is not None and variable in os.environ:
        raise ConfigError(f"{variable} is set, but empty; give it a value or unset it")
    return tuple(values or ())


def _source(context: typer.Context, name: str) -> str | None:
    """Return where a parameter's value comes from: COMMANDLINE, ENVIRONMENT, DEFAULT_MAP, DEFAULT."""
    source = context.get_parameter_source(name)
    return None if source is None else source.name


def _parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
