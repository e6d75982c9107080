"""Canonical sources: the same for every formatting and Python version, another for every change that
could decide a bit.
"""

import ast
import hashlib
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast.numerics.code_versions.canonical_source import canonical_c, canonical_python

HERE = Path(holdfast.__file__).parent
KERNELS = HERE / "numerics" / "backends" / "c"
REAL_FILES = ("models/decoder.py", "numerics/backends/triton/attention.py", "worker/sampler.py")

# Constructs whose trees differ between Python versions, or whose text is easily mistaken.
SAMPLE = '''
"""A module's docstring."""
from __future__ import annotations
import asyncio, os.path as path
from . import sibling
from ..other import (one as uno, two,)

LIMITS = 1_000_000_007 ** 3, 0x7fffffffffffffffffffffff, 1e308, 1e-320, 5e-324, 1e400, 0.1, 2.5j, -0.0
TEXTS = "a\\u00e9\\U0001f600\\ud800", b"\\x00\\xff", r"\\d", u"old", "im" 'plicit' """ join""", ""
NOTHING = None, True, False, ..., (), [], {}, {*()}, {**{}, "a": 1}
big = 10 ** 5 + 0b1010 - 0o17 // 3 % 2 @ two << 1 >> 2 & 3 | 4 ^ ~5

def decorated(first, /, second: int = 3, *rest: "str", keyed: float = .5, needed, **more) -> list[int] | None:
    """A docstring."""
    nonlocal_ = 1
    def inner(a=lambda x, *y, z=1, **w: (x, y, z, w), *, b=(yield)):
        nonlocal nonlocal_
        global big
        return a if (n := len(rest)) > 1 < 3 != n else not b
    assert second, f"no {second!r:>{keyed}} {{literal}} {first=} {inner()=!s:.3f}"
    del rest[1:2, ..., ::3], more
    return [i for i in range(3) if i if not i for _ in ()] or {k: v for k, v in more} and {*rest, first}

@path.wraps(decorated)
@decorated
class Shape(dict, metaclass=type):
    size: int
    width: tl.constexpr = 64
    __slots__ = ("a",)
    async def run(self, *, until=None):
        async with self as (a, [b, *c]), other: await asyncio.sleep(0)
        async for x in self: yield x; continue
        else: return
        return
    def plain(self): ...
    def empty(self):
        "Only a docstring."

def control(value):
    match value:
        case None | True: pass
        case {"kind": str(kind), **rest} if kind: raise ValueError(kind) from None
        case [1, -2.5, *_, Shape(size=3, width=w)] as whole: return w, whole
        case path.sep: ...
        case _: value += 1; value @= 2; value: int; value: (int) = 3
    try:
        while value and value is not None: break
        else: value = yield from ()
    except* (OSError, ValueError) as error: raise
    finally: print(*value, sep="", **{})
    for (a, b), *c in value: pass
    print(f"{value}" "tail" f"{'nested'}{value:{a}.{b}}" f'{{}}', f"", f"{a}{b}", rf"\\{a:%H:%M}")
    return value[a:b, ...], not a in b, -a ** -b, a if b else c, (yield), (a, b)[0], lambda: (yield)
'''
# On every Python version. Another value here means that every recorded digest has changed too.
SAMPLE_DIGEST = "df111ff99276a35f2ee85c81314d7cd3c055c7bb10b26332a08e00f54efbdca8"


def digest_of(source: str | bytes) -> str:
    content = source if isinstance(source, bytes) else source.encode("utf-8")
    return hashlib.sha256(canonical_python(content)).hexdigest()


def test_sample_has_the_same_digest_on_every_python_version() -> None:
    assert digest_of(SAMPLE) == SAMPLE_DIGEST


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1\n", "# a comment\n\n\nx = 1  # another\n"),
        ("x = 1\n", '"""A docstring."""\nx = 1\n"""A text as a comment."""\n'),
        ("def f():\n    return 1\n", 'def f():\n  """Doc."""\n  return 1\n'),
        ("class A:\n    x = 1\n", 'class A:\n    "Doc."\n\n    x = 1\n'),
        ("async def f():\n    return 1\n", 'async def f():\n    """Doc."""\n    return 1\n'),
        ("x = f(a, b)\n", "x = (\n    f(\n        a,  # one\n        b,\n    )\n)\n"),
        ("x = 'a' + \"b\"\n", "x = \"a\" + 'b'\n"),
        ("x = 1000\n", "x = 1_000; \n"),
        ("x = 'ab'\n", "x = ('a'\n     'b')\n"),
        ("x = f'{a}bc'\n", "x = f'{a}' 'b' f'c'\n"),
        ("x = a + b * c\n", "x = (a + (b * c))\n"),
        ("if a:\n    b()\n", "if a: b()\n"),
        ("x = 1\n", "x = 1\r\n"),
        ("x = u'a'\n", "x = 'a'\n"),
    ],
)
def test_what_cannot_decide_a_bit_changes_nothing(before: str, after: str) -> None:
    assert before != after
    assert digest_of(before) == digest_of(after)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = a + b", "x = b + a"),
        ("x = (a + b) + c", "x = a + (b + c)"),
        ("x = 1", "x = 1.0"),
        ("x = 1", "x = True"),
        ("x = 1", "x = '1'"),
        ("x = 'a'", "x = b'a'"),
        ("x = 0.1", "x = 0.10000000000000002"),
        ("x = None", "x = ..."),
        ("x = 2.5j", "x = 2.5"),
        ("x = ()", "x = []"),
        ("x: int = 1", "x = 1"),
        ("def f(a: constexpr): g(a)", "def f(a): g(a)"),
        ("def f(a, /, b): g(a)", "def f(a, b): g(a)"),
        ("def f(a, *, b): g(a)", "def f(a, b): g(a)"),
        ("def f(a, b=1): g(a)", "def f(a=1, b=1): g(a)"),
        ("def f(*, a=1, b): g(a)", "def f(*, a, b=1): g(a)"),
        ("a < b < c", "a < b and b < c"),
        ("f'{a}'", "f'{a!r}'"),
        ("f'{a}b'", "f'{a}', 'b'"),
        ("f'{a:>3}'", "f'{a:>4}'"),
        ("f'a{b}'", "f'{b}a'"),
        ("{'a': 1, **b}", "{**b, 'a': 1}"),
        ("f(*a, b)", "f(b, *a)"),
        ("a()\nb()", "b()\na()"),
        ("@a\n@b\ndef f(): g()", "@b\n@a\ndef f(): g()"),
        ("if a: b()\nelse: c()", "if a: c()\nelse: b()"),
        ("return_ = yield_", "return_ = (yield_,)"),
        ("import a.b", "import a.c"),
        ("from . import a", "from .. import a"),
        ("x = 'a)(b'", "x = 'a', 'b'"),
        ("while a: b()\nelse: c()", "while a: b()\nc()"),
    ],
)
def test_what_could_decide_a_bit_changes_the_digest(before: str, after: str) -> None:
    assert digest_of(before) != digest_of(after)


OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.FloorDiv,
    ast.FloorDiv: ast.Mod,
    ast.Mod: ast.Mult,
    ast.MatMult: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitXor,
    ast.BitXor: ast.BitAnd,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.USub: ast.UAdd,
    ast.Not: ast.USub,
    ast.Invert: ast.USub,
}
NAMES = ("id", "attr", "arg", "name", "asname", "module")


def other_constant(value: object) -> object:
    match value:
        case bool():
            return not value
        case str():
            return value + "x"
        case bytes():
            return value + b"x"
        case int() | float() | complex():
            return value * 3 + 1 if abs(value) < 1e9 else 7
        case _:
            return 0


def changes(tree: ast.AST) -> Iterator[tuple[ast.AST, str, object]]:
    """(node, field, another value): another constant, name or operator, two elements swapped, the
    last left out."""
    for node in ast.walk(tree):
        for name, value in ast.iter_fields(node):
            if isinstance(node, ast.Constant) and name == "value":
                yield node, name, other_constant(value)
            elif name in NAMES and isinstance(value, str):
                yield node, name, f"{value}_x"
            elif type(value) in OPERATORS:
                yield node, name, OPERATORS[type(value)]()
            elif isinstance(value, list) and len(value) > 1:
                yield node, name, [value[1], value[0], *value[2:]]
                yield node, name, value[:-1]


def without_docstrings(tree: ast.Module) -> ast.Module:
    """Texts used as comments are replaced by `pass`, so that no change is one of them."""

    class Replace(ast.NodeTransformer):
        def visit_Expr(self, node: ast.Expr) -> ast.stmt:
            return ast.Pass() if isinstance(node.value, ast.Constant) else node

    return ast.fix_missing_locations(Replace().visit(tree))


def changed_sources(source: str, limit: int) -> Iterator[str]:
    """The source after single changes, some of them if there are more than `limit`; without those
    that are no program or the same."""
    tree = without_docstrings(ast.parse(source))
    before = ast.dump(ast.parse(ast.unparse(tree)))
    found = list(changes(tree))
    for node, name, changed in random.Random(18).sample(found, min(limit, len(found))):
        original = getattr(node, name)
        setattr(node, name, changed)
        try:
            text = ast.unparse(tree)
            if ast.dump(ast.parse(text)) != before:
                yield text
        except (ValueError, SyntaxError):
            continue
        finally:
            setattr(node, name, original)


def check_changes(source: str, limit: int, *, at_least: int) -> None:
    before = digest_of(ast.unparse(without_docstrings(ast.parse(source))))
    found = list(changed_sources(source, limit))
    missed = [text for text in found if digest_of(text) == before]
    assert len(found) >= at_least
    assert not missed


def test_changes_of_the_sample_change_its_digest() -> None:
    check_changes(SAMPLE, 120, at_least=90)


@pytest.mark.parametrize("path", REAL_FILES)
def test_changes_of_real_files_change_their_digests(path: str) -> None:
    check_changes((HERE / path).read_text(), 6, at_least=4)


@pytest.mark.long
def test_all_changes_of_the_sample_and_of_a_real_file_change_the_digest() -> None:
    twice = SAMPLE + SAMPLE[SAMPLE.index("LIMITS") :]  # a change beside an unchanged copy, too
    check_changes(twice, 10_000, at_least=600)
    check_changes((HERE / "worker/sampler.py").read_text(), 10_000, at_least=400)


@pytest.mark.parametrize("path", REAL_FILES)
def test_reformatted_file_has_the_same_digest(path: str) -> None:
    source = (HERE / path).read_text()
    assert ast.unparse(ast.parse(source)) != source
    assert digest_of(ast.unparse(ast.parse(source))) == digest_of(source)


C_SAMPLE = b"""
/* A header. // not another comment */
#define DOUBLE(x) \\
    ((x) + (x)) // twice
#if VL == 4 /* the
   rest */ && 1
static const char *text = "a // b \\" /* c */", c = '"', d = '\\'';
#endif
float f(float a, float b) { return a+++b - -1.5e-3f * (a >= b ? a->x : b << 2); }
"""


def test_c_without_comments_and_formatting() -> None:
    other = b"""
#define DOUBLE(x)     ((x)   +    (x))
#if VL == 4 && 1
static const char
  *text = "a // b \\" /* c */",   // two
  c='"',
  d='\\'';
#endif
float f(float a, float b) {
    return a++ + b - - 1.5e-3f*(a>=b?a->x:b<<2);   /* one */
}
"""
    assert canonical_c(other) == canonical_c(C_SAMPLE)
    assert b"comment" not in canonical_c(C_SAMPLE) and b'"a // b \\" /* c */"' in canonical_c(C_SAMPLE)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"#define F(x) x", b"#define F (x) x"),
        (b"#if A\nint b;\n#endif", b"#if A int b;\n#endif"),
        (b"a = b - -c;", b"a = b --c;"),
        (b"a = b + ++c;", b"a = b++ + c;"),
        (b"int ab;", b"int a b;"),
        (b"x = 1.0f;", b"x = 1.0;"),
        (b'x = "a  b";', b'x = "a b";'),
        (b"x = ' ';", b"x = '\\t';"),
        (b"x = a / *b;", b"x = a /*b;*/;"),
        (b"x = 1e-3;", b"x = 1e - 3;"),
        (b"#pragma omp parallel\nx;", b"x;"),
    ],
)
def test_c_changes_that_count(before: bytes, after: bytes) -> None:
    assert canonical_c(before) != canonical_c(after)


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*.[ch]")), ids=lambda path: path.name)
def test_changed_token_of_a_kernel_changes_its_digest(path: Path) -> None:
    source = path.read_text()
    before = canonical_c(source.encode())
    code = re.sub(r"/\*.*?\*/|//[^\n]*", lambda found: " " * len(found[0]), source, flags=re.DOTALL)
    tokens = [found.span() for found in re.finditer(r"\w+|[-+*/%<>=!&|^]", code)]
    assert len(tokens) > 50
    for start, end in random.Random(18).sample(tokens, 6):
        for text in ("", "~", source[start:end] + " 1"):
            assert canonical_c((source[:start] + text + source[end:]).encode()) != before, source[
                start - 20 : end
            ]


@pytest.mark.parametrize("path", sorted(KERNELS.glob("*.[ch]")), ids=lambda path: path.name)
def test_reformatted_kernel_has_the_same_digest(path: Path) -> None:
    source = path.read_text()
    inside = re.sub(r"/\*.*?\*/", "/* another\n   comment */", source, flags=re.DOTALL)
    spread = re.sub(r"(?<!\\\n)^([^#\n]*);$", r"\1\n  ;  // more", inside, flags=re.MULTILINE)
    assert len({source, inside, spread}) == 3
    assert canonical_c(spread.encode()) == canonical_c(inside.encode()) == canonical_c(source.encode())
