"""Options in groups: a command takes a frozen dataclass, and the dataclass's fields are the command's options.

    @grouped(without=("max_num_seqs",))
    def chat(model: ModelArgument = None, engine: EngineOptions = EngineOptions()) -> None: ...

A field is an option if its type says so (`Annotated[..., typer.Option(...)]`); its default is the one in the group the
command starts from. So an option is written down once, wherever it is offered.
"""

import inspect
from collections.abc import Callable, Collection
from dataclasses import is_dataclass, replace
from functools import wraps
from typing import Annotated, Any, get_origin, get_type_hints

Command = Callable[..., None]


def grouped(*, without: Collection[str] = ()) -> Callable[[Command], Command]:
    """Spread a command's groups into single options, but for those it does without."""

    def spread(command: Command) -> Command:
        groups: dict[str, tuple[Any, list[str]]] = {}
        parameters: list[inspect.Parameter] = []
        hints = get_type_hints(command, include_extras=True)
        for name, parameter in inspect.signature(command).parameters.items():
            if is_dataclass(parameter.default):
                options = _options(parameter.default, without)
                groups[name] = parameter.default, [option.name for option in options]
                parameters += options
            else:
                parameters.append(parameter.replace(annotation=hints[name]))

        @wraps(command)
        def call(**given: Any) -> None:
            for name, (start, names) in groups.items():
                given[name] = replace(start, **{option: given.pop(option) for option in names})
            command(**given)

        call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {one.name: one.annotation for one in parameters}
        return call

    return spread


def _options(group: Any, without: Collection[str]) -> list[inspect.Parameter]:
    """The group's fields that are options, as keyword parameters."""
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=getattr(group, name), annotation=hint)
        for name, hint in get_type_hints(type(group), include_extras=True).items()
        if get_origin(hint) is Annotated and name not in without
    ]
