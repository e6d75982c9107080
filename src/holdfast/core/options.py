"""Declare a setting once: a dataclass field with its help text, its aliases and its option name.

    max_num_seqs: int | None = option(None, "Requests that run at once.", panel="Engine", unset="64 on a CPU")

The dataclass is the only declaration. Command-line options, environment variables, names in a
configuration file and the table in docs/operations.md are derived from its fields
(`holdfast.cli.options`). Choices are the field's `Literal` type.
"""

import inspect
import sys
import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, wraps
from types import UnionType
from typing import (
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from holdfast.errors import ConfigError

_KEY = "option"
T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True)
class Option:
    """How a field is offered as an option.

    name         the option's name if it is not the field's: each --api-key adds to api_keys
    unset        what None means, for the documentation
    aliases      other names for the setting, accepted without a note
    deprecated   old names, accepted with a note
    old_values   old values and their replacements, accepted with a note
    file_chars   if not 0, the option takes a file with the value, of at most this many characters
    server_only  an option of `holdfast serve`; other commands decide it request by request
    """

    help: str
    panel: str
    name: str = ""
    metavar: str | None = None
    unset: str = ""
    aliases: tuple[str, ...] = ()
    deprecated: tuple[str, ...] = ()
    old_values: Mapping[str, str] = field(default_factory=dict)
    file_chars: int = 0
    server_only: bool = False


def option(default: Any, help: str, *, panel: str, **details: Any) -> Any:
    """A dataclass field that is also an option. details are those of `Option`."""
    return field(default=default, metadata={_KEY: Option(help, panel, **details)})


@dataclass(frozen=True)
class OptionField:
    """A field of a configuration dataclass that is an option, with its type resolved."""

    field_name: str
    type: Any
    default: Any
    option: Option

    @property
    def name(self) -> str:
        """The option's name, with underscores."""
        return self.option.name or self.field_name

    @property
    def all_aliases(self) -> tuple[str, ...]:
        return (*self.option.aliases, *self.option.deprecated)

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a `Literal` type; empty for any other type."""
        for one in (self.type, *_members(self.type)):
            if get_origin(one) is Literal:
                return get_args(one)
        return ()


def option_fields(config: type) -> tuple[OptionField, ...]:
    """The fields of a dataclass that are options, in order."""
    return _read_fields(cast(Hashable, config))


@cache
def _read_fields(config: Any) -> tuple[OptionField, ...]:
    hints = get_type_hints(config)
    return tuple(
        OptionField(one.name, hints[one.name], one.default, one.metadata[_KEY])
        for one in fields(config)
        if _KEY in one.metadata
    )


def accept_aliases(config: type[T]) -> type[T]:
    """Class decorator: the constructor of a dataclass accepts the aliases of its fields."""
    init: Callable[..., None] = config.__init__
    names = {alias: one for one in option_fields(config) for alias in one.all_aliases}

    @wraps(init)
    def accept(self: T, *args: Any, **given: Any) -> None:
        for alias in names.keys() & given.keys():
            one = names[alias]
            if one.field_name in given:
                raise ConfigError(f"{alias} and {one.field_name} are the same setting; give one of them")
            if alias in one.option.deprecated:
                warn_deprecated(f"{alias} is now called {one.field_name}; the old name will be removed")
            given[one.field_name] = given.pop(alias)
        init(self, *args, **given)

    config.__init__ = accept  # type: ignore[assignment, method-assign]
    return config


def takes_fields_of(
    config: Callable[P, object],
) -> Callable[[Callable[..., None]], Callable[Concatenate[Any, P], None]]:
    """Decorate an `__init__(self, *args, **options)`.

    Type checkers, `inspect` and `help` see the fields of the dataclass as its parameters.
    """

    def wrap(init: Callable[..., None]) -> Callable[Concatenate[Any, P], None]:
        own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
        signature = inspect.Signature([own, *inspect.signature(config).parameters.values()])
        init.__signature__ = signature  # type: ignore[attr-defined]
        lines = [f"    {one.field_name}: {one.option.help}" for one in option_fields(cast(type, config))]
        init.__doc__ = "\n".join([inspect.cleandoc(init.__doc__ or ""), "", *lines])
        return init

    return wrap


def check_choices(config: Any) -> None:
    """Replace old values by new ones, with a warning.

    Raise `ConfigError` for a value that is no choice of its field.
    """
    for one in option_fields(type(config)):
        value = getattr(config, one.field_name)
        if isinstance(value, str) and value in one.option.old_values:
            new = one.option.old_values[value]
            warn_deprecated(f"{one.field_name} {value!r} is now called {new!r}; the old name will be removed")
            object.__setattr__(config, one.field_name, new)
        elif one.choices and value not in (*one.choices, one.default):
            *first, last = one.choices
            raise ConfigError(f"{one.field_name} must be {', '.join(first)} or {last}, not {value!r}")


def warn_deprecated(message: str) -> None:
    """A `DeprecationWarning` at the first caller outside Holdfast: Python shows it there."""
    level = 1
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("holdfast."):
        frame = frame.f_back
        level += 1
    warnings.warn(message, DeprecationWarning, stacklevel=level)


def _members(hint: Any) -> tuple[Any, ...]:
    """The members of a union; nothing for another type."""
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
