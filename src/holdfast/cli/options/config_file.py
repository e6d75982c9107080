"""A command's options from a YAML file: the names and values of the command line.

    model: smollm2
    max-model-len: 4096          # or max_model_len
    api-key: [one, two]
    determinism: off             # the word off, not a boolean: values are taken as text

The file sets defaults: the environment and the command line override it. An error names the file, the
line and the option. It shows a value only if the option is no text, because texts may be keys.
"""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

import typer

from holdfast.cli.options.groups import LINES, gather_again
from holdfast.core.files import read_text
from holdfast.core.sampling_params import show
from holdfast.errors import ConfigError

MAX_FILE_CHARS = 1 << 16
T = TypeVar("T")

_YAML = "tag:yaml.org,2002:"
_SCALARS = frozenset(_YAML + name for name in ("str", "int", "float", "bool", "timestamp", "value"))


def load_config_file(context: typer.Context, path: Path | None) -> Path | None:
    """Callback of an eager option: the values of the file become the command's defaults."""
    if path is not None and not context.resilient_parsing:
        context.default_map, context.meta[LINES] = read_config_file(path, _options(context))
    return path


def reload_config_file(context: typer.Context, path: Path, start: T) -> tuple[T, list[str]]:
    """Read the file again. Returns the option group that start is an instance of, and the options that changed.

    The command line and the environment count as before. Raises `ConfigError`; the values of before stay.
    """
    if not path.is_file():
        raise ConfigError(f"the configuration file {path} is gone, or is a pipe, which is read only once")
    before = context.default_map or {}, context.meta[LINES]
    context.default_map, context.meta[LINES] = now, _ = read_config_file(path, _options(context))
    try:
        group = gather_again(context, start)
    except ConfigError:
        context.default_map, context.meta[LINES] = before
        raise
    return group, sorted(name for name in {*before[0], *now} if before[0].get(name) != now.get(name))


def _options(context: typer.Context) -> dict[str, bool]:
    """Return the options that a file may have, and whether each may be repeated."""
    params = [one for one in context.command.params if one.name not in (None, "config", "help")]
    return {str(one.name): getattr(one, "multiple", False) for one in params}


def read_config_file(
    path: Path, options: Mapping[str, bool]
) -> tuple[dict[str, str | list[str]], dict[str, str]]:
    """Return the options in a file, and where each is. options has all names, and whether each may be repeated."""
    settings: dict[str, str | list[str]] = {}
    lines: dict[str, str] = {}
    for key, value in _pairs(path):
        where = f"{path}, line {key.start_mark.line + 1}"
        name = _name(key, where, options)
        if name in settings:
            raise ConfigError(f"{where}: {_spelled(name)} is given twice; keep one")
        settings[name] = _values(value, f"{where}: {_spelled(name)}", several=options[name])
        lines[name] = where
    return settings, lines


def _pairs(path: Path) -> Sequence[tuple[Any, Any]]:
    """Return the names and values of the file's mapping, as YAML nodes: no object is constructed."""
    text = read_text(path, f"the configuration file {path}", MAX_FILE_CHARS)
    try:
        import yaml
    except ImportError as error:
        raise ConfigError("--config needs pyyaml; install it with: pip install 'holdfast[server]'") from error

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f", line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path}{where}: this is not YAML; write one name: value a line") from None
    except (yaml.YAMLError, RecursionError):
        raise ConfigError(f"{path} is not YAML; write one name: value a line") from None
    if root is None or root.tag == f"{_YAML}null":
        return ()
    if not isinstance(root, yaml.MappingNode):
        raise ConfigError(f"{path} must hold options as name: value, one a line")
    pairs: list[tuple[Any, Any]] = root.value
    return pairs


def _name(key: Any, where: str, options: Mapping[str, bool]) -> str:
    written = key.value if isinstance(key.value, str) else None
    name = written.replace("-", "_") if written is not None else ""
    if name in options:
        return name
    near = get_close_matches(name, options, n=1)
    hint = f"did you mean {_spelled(near[0])}?" if near else "see holdfast serve --help"
    raise ConfigError(f"{where}: there is no option {show(written)}; {hint}")


def _values(node: Any, what: str, *, several: bool) -> str | list[str]:
    if isinstance(node.value, str):
        text = _text(node, what)
        return [text] if several else text
    if several and node.tag == f"{_YAML}seq":
        return [_text(one, what) for one in node.value]
    raise ConfigError(f"{what} takes {'values' if several else 'one value'}, nothing nested")


def _text(node: Any, what: str) -> str:
    if node.tag == f"{_YAML}null":
        raise ConfigError(f"{what} has no value; leave the line out for the default")
    if node.tag not in _SCALARS:
        raise ConfigError(f"{what} must be plain text or a number")
    return str(node.value)


def _spelled(name: str) -> str:
    return name.replace("_", "-")
