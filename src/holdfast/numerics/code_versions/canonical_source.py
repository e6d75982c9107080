"""A source file in a form without what cannot decide a bit.

Python: the syntax tree, written by a function of our own. `ast.dump` and `ast.unparse` give other
text on other Python versions; this form is the same on all of them. Comments, docstrings, line
breaks, quotes and redundant parentheses are not part of it. Annotations are: Triton and dataclasses
read them.

C: the tokens without comments and line breaks. A preprocessor directive keeps its line, and where
it has spaces: `#define F (x)` is not `#define F(x)`.
"""

import ast
import re
from collections.abc import Callable, Iterable
from functools import cache

# ctx follows from the place of a node; kind is the "u" of an old string; types in comments.
_LEFT_OUT = ("ctx", "kind", "type_comment", "type_ignores")

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    | (?P<space>\s+)
    | (?P<token>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'     # strings and characters
      | \.?\d(?:[eEpP][+-]|[\w.])*|[A-Za-z_]\w*             # numbers and names
      | \.\.\.|<<=|>>=|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|\#\#|.)""",
    re.DOTALL | re.VERBOSE,
)


def canonical_python(source: bytes) -> bytes:
    """The syntax tree as text. Raises SyntaxError."""
    parts: list[str] = []
    _write(ast.parse(source), parts.append)
    return "".join(parts).encode("utf-8", "surrogatepass")


def _write(value: object, add: Callable[[str], None]) -> None:
    """A node as (Type field=value ...), without fields that are None or empty."""
    if isinstance(value, ast.Constant):
        add(_constant(value.value))
    elif isinstance(value, ast.AST):
        add(f"({type(value).__name__}")
        for field in _sorted(value._fields):
            child = getattr(value, field, None)
            if isinstance(child, list):
                child = _joined(child) if isinstance(value, ast.JoinedStr) else _with_effect(child)
            if child is not None and child != []:
                add(f" {field}=")
                _write(child, add)
        add(")")
    elif isinstance(value, list):
        add("[")
        for each in value:
            _write(each, add)
            add(",")
        add("]")
    else:
        add(repr(value) if not isinstance(value, str) else _sized(value))


@cache
def _sorted(fields: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(name for name in fields if name not in _LEFT_OUT))


def _with_effect(nodes: list[ast.AST]) -> list[ast.AST]:
    """Without statements that are a constant: docstrings, above all."""
    return [
        node for node in nodes if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]


def _joined(pieces: Iterable[ast.expr]) -> list[ast.expr]:
    """The pieces of an f-string. Python versions split its literal text differently, so
    neighbouring text is one piece."""
    found: list[ast.expr] = []
    for piece in pieces:
        if isinstance(piece, ast.Constant) and found and isinstance(found[-1], ast.Constant):
            found[-1] = ast.Constant(f"{found[-1].value!s}{piece.value!s}")
        else:
            found.append(piece)
    return [piece for piece in found if not (isinstance(piece, ast.Constant) and piece.value == "")]


def _constant(value: object) -> str:
    """Type and value. repr() of a text depends on Python's Unicode tables, that of a large integer
    is limited."""
    match value:
        case str():
            return f"(str {_sized(value)})"
        case bytes():
            return f"(bytes {value.hex()})"
        case bool() | None:
            return f"({value!r})"
        case int():
            return f"(int {value:x})"
        case float():
            return f"(float {value.hex()})"
        case complex():
            return f"(complex {value.real.hex()} {value.imag.hex()})"
    return f"({value!r})"  # Ellipsis


def _sized(text: str) -> str:
    """With its length before it, so that no text can look like the end of one."""
    return f"{len(text)}:{text}"


def canonical_c(source: bytes) -> bytes:
    """The tokens, separated by one space; a directive on a line of its own."""
    text = re.sub(r"\\[ \t]*\r?\n", "", source.decode())
    lines: list[str] = []
    at = 0
    while at < len(text):
        at, words = _c_line(text, at)
        if words and words[0].strip() == "#":
            lines.append(f"\n{''.join(words).strip()}\n")
        else:
            lines.extend(f"{word.strip()} " for word in words)
    return "".join(lines).encode()


def _c_line(text: str, at: int) -> tuple[int, list[str]]:
    """The end and the tokens of one line, each with a space before it if the source has one. A
    comment may continue the line."""
    words: list[str] = []
    space = ""
    while at < len(text):
        found = _TOKEN.match(text, at)
        assert found is not None  # the last alternative matches any character
        at = found.end()
        if found["token"] is not None:
            words.append(space + found["token"])
            space = ""
            continue
        space = " "
        if found["space"] is not None and "\n" in found["space"]:
            break
    return at, words
