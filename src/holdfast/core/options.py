"""Declare a setting once: a dataclass field with its help text and its option name.

    max_num_seqs: int | None = option(None, "Requests that run at once.", panel="Engine", unset="64 on a CPU")

The dataclass is the only declaration. Command-line options, environment variables, names in a
configuration file and the table in docs/operations.md are derived from its fields
(`holdfast.cli.options`). Choices are the field's `Literal` type.
"""

import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, fields
from functools import cache
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
    short        its name with one letter: -n
    only_on      it can only be switched on: there is no --no-NAME
    unset        what None means, for the documentation
    file_chars   if not 0, the option takes a file with the value, of at most this many characters
    server_only  an option of `holdfast serve`; other commands decide it request by request
    """

    help: str
    panel: str
    name: str = ""
    short: str = ""
    only_on: bool = False
    metavar: str | None = None
    unset: str = ""
    file_chars: int = 0
    server_only: bool = False


def option(default: Any, help: str, *, panel: str, **details: Any) -> Any:
    """Return a dataclass field that is also an option. details are those of `Option`."""
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
        return self.option.name or self.field_name

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a `Literal` type; empty for any other type."""
        for one in (self.type, *_members(self.type)):
            if get_origin(one) is Literal:
                return get_args(one)
        return ()


def option_fields(config: type) -> tuple[OptionField, ...]:
    """Return the fields of a dataclass that are options, in order."""
    return _read_fields(cast(Hashable, config))


@cache
def _read_fields(config: Any) -> tuple[OptionField, ...]:
    hints = get_type_hints(config)
    return tuple(
        OptionField(one.name, hints[one.name], one.default, one.metadata[_KEY])
        for one in fields(config)
        if _KEY in one.metadata
    )


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
    """Raise `ConfigError` for a value that is no choice of its field."""
    for one in option_fields(type(config)):
        value = getattr(config, one.field_name)
        if one.choices and value not in (*one.choices, one.default):
            *first, last = one.choices
            raise ConfigError(f"{one.field_name} must be {', '.join(first)} or {last}, not {value!r}")


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
