"""The process a chat template runs in. It is run as a file, by `template_sandbox`, and imports no other part.

Each message on stdin and stdout is eight bytes of length (big-endian) and a JSON object:

    in   {"source": ..., "memory_bytes": ..., "cpu_seconds": ...}                    once, first
    in   {"variables": {...}, "date": ..., "cpu_seconds": ..., "max_chars": ...}     for each rendering
    out  {"text": ...} or {"error": ...}                                             one for each in, in order

The environment is the one transformers renders with, less whatever would make two renderings differ: there
is no clock (`strftime_now` tells the date it was given) and no randomness (`random`, `lipsum`). What
jinja2's sandbox does not bound, time and memory, the kernel bounds here: address space, CPU time for each
rendering (the timer's signal ends the process), no files, no processes.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any

try:
    import resource
except ImportError:  # a system without limits: the parent's deadline is still kept
    resource = None  # type: ignore[assignment]

if __name__ == "__main__":
    sys.path[:0] = sys.argv[1:]  # where jinja2 and markupsafe lie; nothing else is importable

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_MAX_ERROR_CHARS = 500


class OutputTooLongError(Exception):
    """The rendering passed its limit."""


class _Generation(Extension):
    """`{% generation %}` marks what the assistant said, for training; here it only opens a scope."""

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
    """`dict` without the type behind it."""

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
    """A template ready to render, in the sandbox."""
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
    """One rendering, cut off at its limit."""
    date = datetime.fromisoformat(request["date"])
    variables = {"strftime_now": lambda layout: date.strftime(layout), **request["variables"]}
    pieces: list[str] = []
    num_chars = 0
    for piece in template.generate(**variables):
        num_chars += len(piece)
        if num_chars > request["max_chars"]:
            raise OutputTooLongError
        pieces.append(piece)
    return "".join(pieces)


def explain(error: BaseException, request: dict[str, Any]) -> str:
    """What went wrong, in a line."""
    if isinstance(error, OutputTooLongError):
        return f"it wrote more than {request['max_chars']} characters"
    if isinstance(error, MemoryError):
        return "it asked for more memory than a template may have"
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    words = str(error)[:_MAX_ERROR_CHARS]
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"line {error.lineno}: {words}"
    return words if type(error) is TemplateError else f"{type(error).__name__}: {words}"


def attempt(work: Callable[[], Any], request: dict[str, Any]) -> dict[str, str]:
    """The answer to one message; nothing a template does comes out as anything else."""
    try:
        return {"text": work()}
    except BaseException as error:
        return {"error": explain(error, request)}


def _limit_process(memory_bytes: int) -> None:
    if resource is None:
        return
    bounds = {
        "RLIMIT_AS": memory_bytes,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_CORE": 0,
        "RLIMIT_NPROC": 0,
        "RLIMIT_NOFILE": 16,
    }
    for name, bound in bounds.items():
        with contextlib.suppress(AttributeError, ValueError, OSError):  # not every system knows every limit
            resource.setrlimit(getattr(resource, name), (bound, bound))


def _limit_cpu(seconds: float) -> None:
    """Ends the process when it has computed for so long; 0 takes the limit away."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _read_exactly(count: int) -> bytes:
    pieces = []
    while count:
        piece = os.read(0, min(count, 1 << 20))
        if not piece:
            sys.exit(0)  # the engine has gone
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def _receive() -> dict[str, Any]:
    request: dict[str, Any] = json.loads(_read_exactly(int.from_bytes(_read_exactly(8), "big")))
    return request


def _send(answer: dict[str, str]) -> None:
    payload = json.dumps(answer).encode()
    message = memoryview(len(payload).to_bytes(8, "big") + payload)
    while message:
        message = message[os.write(1, message) :]


def serve() -> None:
    """Compile one template, then render it until the engine goes."""
    first = _receive()
    _limit_process(first["memory_bytes"])
    template: list[jinja2.Template] = []
    _limit_cpu(first["cpu_seconds"])
    answer = attempt(lambda: template.append(compile_template(first["source"])), first)
    _limit_cpu(0)
    _send(answer)
    while template:
        request = _receive()
        _limit_cpu(request["cpu_seconds"])
        answer = attempt(lambda request=request: render(template[0], request), request)  # type: ignore[misc]
        _limit_cpu(0)
        _send(answer)


if __name__ == "__main__":
    serve()
