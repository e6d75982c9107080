"""The process a chat template runs in. `worker_process` loads this file, which imports no other part
of Holdfast.

    set-up   {"source": ...}
    request  {"variables": {...}, "date": ..., "max_chars": ...}
    answer   {"text": ...} or {"error": ...}
    SIGUSR1  ends the rendering under way; its answer is an error

The jinja2 environment is the one transformers renders with, without anything that would make two
renderings differ: there is no clock (`strftime_now` gives the date of the request) and no
randomness (`random`, `lipsum`). jinja2's sandbox bounds neither time nor memory, so the kernel
does: address space, CPU time for each rendering (the timer's signal ends the process), no files, no
processes.
"""

import json
import signal
from collections.abc import Callable
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_MAX_ERROR_CHARS = 500


class OutputTooLongError(Exception):
    """The rendering is longer than `max_chars`."""


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text, for training; here it only opens a scope."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class _PlainNamespace(Namespace):
    """A namespace that keeps no name beginning with an underscore."""

    def __init__(*args: Any, **values: Any) -> None:
        self, *rest = args
        attributes = dict(*rest, **values)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        Namespace.__setitem__(self, name, value)


def _check_name(name: str) -> None:
    if str(name).startswith("_"):
        raise SecurityError(
            f"a namespace may not hold {name!r}: names with an underscore first are not allowed"
        )


class _PlainDict:
    """`dict` as a function: a template does not get the type."""

    def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
        return dict(*args, **values)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _raise_exception(message: object) -> None:
    raise TemplateError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse_random(*_: Any, **__: Any) -> None:
    raise TemplateError("the template asks for a random choice; a prompt must be the same every time")


def compile_template(source: str) -> jinja2.Template:
    """Return a template ready to render, in jinja2's sandbox."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.filters["random"] = _refuse_random
    environment.globals.pop("lipsum", None)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["dict"] = _PlainDict()
    environment.globals["namespace"] = _PlainNamespace
    return environment.from_string(source)


def render(template: jinja2.Template, request: dict[str, Any]) -> str:
    """Return one rendering. Raise at `max_chars`."""
    date = datetime.fromisoformat(request["date"])
    variables = {"strftime_now": lambda layout: date.strftime(layout), **request["variables"]}
    chunks: list[str] = []
    num_chars = 0
    for chunk in template.generate(**variables):
        num_chars += len(chunk)
        if num_chars > request["max_chars"]:
            raise OutputTooLongError
        chunks.append(chunk)
    return "".join(chunks)


def explain(error: BaseException, request: dict[str, Any]) -> str:
    """Return the error as one line."""
    if isinstance(error, OutputTooLongError):
        return f"it wrote more than {request['max_chars']} characters"
    if isinstance(error, MemoryError):
        return "it asked for more memory than a template may have"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = str(error)[:_MAX_ERROR_CHARS]
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"line {error.lineno}: {text}"
    return text if type(error) is TemplateError else f"{type(error).__name__}: {text}"


class _Interrupted(BaseException):
    """Nobody waits for the rendering any more."""


_rendering: list[bool] = []  # not empty while a template is rendered


def _interrupt(*_: object) -> None:
    """End the rendering under way on SIGUSR1. Its answer is an error."""
    if _rendering:
        _rendering.clear()
        raise _Interrupted


def open_worker(setup: dict[str, Any]) -> Callable[[dict[str, Any]], dict[str, str]]:
    """Compile one template. Every exception that it causes becomes an error."""
    signal.signal(signal.SIGUSR1, _interrupt)
    try:
        template = compile_template(setup["source"])
    except BaseException as error:
        raise TemplateError(explain(error, setup)) from None

    def answer_to(request: dict[str, Any]) -> dict[str, str]:
        try:
            return {"text": _render_or_end(template, request)}
        except BaseException as error:
            return {"error": explain(error, request)}

    return answer_to


def _render_or_end(template: jinja2.Template, request: dict[str, Any]) -> str:
    _rendering.append(True)
    try:
        return render(template, request)
    finally:
        _rendering.clear()
