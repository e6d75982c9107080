"""The process a chat template runs in. `worker_process` loads this file, which imports no other part
of Holdfast.

    set-up   {"source": ...}
    request  {"variables": {...}, "date": ..., "max_chars": ...}
    answer   {"text": ...} or {"error": ...}
    SIGUSR1  ends the rendering under way; its answer is an error

The jinja2 environment is the one transformers renders with, without anything that would make two
renderings differ: there is no clock (`strftime_now` gives the date of the request), no randomness
(`random`, `lipsum`) and no order of a set: a difference of keys keeps the order of the first operand.
Python writes an object that is no plain value (a generator, a method, a `cycler`) as its address in
memory. So wherever a template turns a value into text, anything but a plain value is refused:

    {{ x }}  x ~ y  "..." % x  "{}".format(x)  x | join  any filter that is not in `_PASSES_ON`

jinja2's sandbox bounds neither time nor memory, so the kernel does: address space, CPU time for each
rendering (the timer's signal ends the process), no files, no processes.
"""

import json
import signal
import traceback
from collections.abc import Callable, ItemsView, KeysView, Mapping, Set, ValuesView
from datetime import datetime
from functools import wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_join, make_attrgetter
from jinja2.nodes import EvalContext
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.utils import Namespace, pass_eval_context
from markupsafe import Markup

_MAX_ERROR_CHARS = 500
_TEMPLATE = "<template>"  # jinja2's name of the file, in tracebacks
# Filters that hand values on and make no text of them.
_PASSES_ON = {
    "abs", "attr", "batch", "count", "d", "default", "dictsort", "first", "float", "groupby", "int", "items", "join",
    "last", "length", "list", "map", "max", "min", "reject", "rejectattr", "reverse", "round", "select",
    "selectattr", "slice", "sort", "sum", "tojson", "unique",
}  # fmt: skip
_SCALARS = (str, bytes, int, float, complex, type(None), Undefined, range)
_COLLECTIONS = (list, tuple, KeysView, ValuesView, ItemsView)


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


class _NotPlainError(TemplateError):
    """The template would write an address in memory."""


def _plain(value: Any) -> Any:
    """Return a value whose text is the same in every process. Refuse any other."""
    if not isinstance(value, _SCALARS):
        if isinstance(value, Mapping):
            _plain(list(value.items()))
        elif isinstance(value, _COLLECTIONS):
            for one in value:
                _plain(one)
        else:
            raise _NotPlainError(
                f"it would write an object of type {type(value).__name__} as its address in memory, which is another "
                "each time; write what it gives instead: its items (| list), or what calling it returns"
            )
    return value


def _requires_plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter that takes plain values only."""
    first = int(hasattr(function, "jinja_pass_arg"))  # jinja2's own argument

    @wraps(function)
    def checked(*args: Any, **values: Any) -> Any:
        _plain((args[first:], values))
        return function(*args, **values)

    return checked


@pass_eval_context
def _join(context: EvalContext, value: Any, d: str = "", attribute: str | int | None = None) -> str:
    if attribute is not None:
        value = map(make_attrgetter(context.environment, attribute), value)
    text: str = do_join(context, _plain(list(value)), _plain(d))
    return text


class _PlainFields(SandboxedFormatter):
    def get_field(self, field_name: str, args: Any, kwargs: Any) -> tuple[Any, str]:
        found, first = super().get_field(field_name, args, kwargs)
        return _plain(found), first


class _EscapedPlainFields(_PlainFields, SandboxedEscapeFormatter):
    pass


class _PlainOperands(CodeGenerator):
    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        check = nodes.EnvironmentAttribute("finalize")
        operands: list[nodes.Expr] = [nodes.Call(check, [one], [], None, None) for one in node.nodes]
        super().visit_Concat(nodes.Concat(operands, lineno=node.lineno), frame)


class _PlainEnvironment(ImmutableSandboxedEnvironment):
    """An environment in which only plain values become text."""

    code_generator_class = _PlainOperands
    intercepted_binops = frozenset(("%", "-"))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "-" and (isinstance(left, Set) or isinstance(right, Set)):
            gone = set(right)
            return dict.fromkeys(one for one in left if one not in gone).keys()
        return super().call_binop(context, operator, left, _plain(right) if operator == "%" else right)

    def call(__self, __context: Context, __function: Any, *args: Any, **values: Any) -> Any:  # noqa: N805
        if isinstance(getattr(__function, "__self__", None), Markup):
            _plain((args, values))  # its methods escape what they are given
        return super().call(__context, __function, *args, **values)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        if super().wrap_str_format(value) is None:
            return None
        layout, takes_mapping = value.__self__, value.__name__ == "format_map"
        formatter = _PlainFields(self)
        if isinstance(layout, Markup):
            formatter = _EscapedPlainFields(self, escape=layout.escape)

        def write(*args: Any, **values: Any) -> str:
            if takes_mapping:
                (values,), args = args, ()
            text: str = type(layout)(formatter.vformat(layout, args, values))
            return text

        return write


def _raise_exception(message: object) -> None:
    raise TemplateError(str(_plain(message)))


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
    environment = _PlainEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols], finalize=_plain
    )
    filters = environment.filters
    filters |= {name: _requires_plain(one) for name, one in filters.items() if name not in _PASSES_ON}
    filters |= {"tojson": _to_json, "random": _refuse_random, "join": _join}
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
    if isinstance(error, _NotPlainError):
        return f"line {_find_line(error)}: {text}"
    return text if type(error) is TemplateError else f"{type(error).__name__}: {text}"


def _find_line(error: BaseException) -> int:
    """Return the template's line that raised an error."""
    lines = [1]
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename == _TEMPLATE:
            lines.append(line)
    return lines[-1]


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
