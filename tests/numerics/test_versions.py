"""The versions of our code: no source that decides bits changes unnoticed, and what was found with other
code is not used.
"""

import shutil
from pathlib import Path
from types import ModuleType

import pytest

import holdfast
from holdfast.numerics import versions
from holdfast.numerics.versions import VERSIONS, sources_digest
from support.scripts import load_script

HERE = Path(holdfast.__file__).parent


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("sources")


def test_sources_are_as_recorded(script: ModuleType) -> None:
    found = script.now()
    changed = {path: found[path][0] for path in script.changed(found, script.RECORD.read_text())}
    assert not changed, (
        "these decide bits, and changed. If no bit changes: python scripts/sources.py --record. If bits "
        "change, or you cannot tell: raise the component in numerics/versions.py first"
    )
    assert {name for name, _ in found.values()} == {*VERSIONS}


def test_a_changed_file_is_noticed_and_a_moved_one_is_not(script: ModuleType, tmp_path: Path) -> None:
    recorded = script.RECORD.read_text()
    shutil.copytree(HERE, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("server"))
    (tmp_path / "models/rope.py").rename(tmp_path / "models/positions.py")
    with (tmp_path / "worker/sampler.py").open("a") as file:
        file.write("x = 1\n")
    (tmp_path / "text/new.py").write_text("x = 2\n")
    with (tmp_path / "worker/spot_check.py").open("a") as file:
        file.write("x = 1\n")
    assert script.changed(script.now(tmp_path), recorded) == ["text/new.py", "worker/sampler.py"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = 1\n", '"""A docstring."""\n# a comment\n\nx = 1  # another\n'),
        ("def f():\n    return 1\n", 'def f():\n  """Doc."""\n  return 1\n'),
        ("x = f(a, b)\n", "x = (\n    f(\n        a,\n        b,\n    )\n)\n"),
        ("x = 'ab' + f'{a}bc'\n", "x = ('a'\n     \"b\") + f'{a}' 'b' f'c'\n"),
        ("x = 1000\n", "from holdfast.numerics import ops\nfrom .layer import run_layer\nx = 1_000; \n"),
    ],
)
def test_what_cannot_decide_a_bit_changes_no_digest(script: ModuleType, before: str, after: str) -> None:
    assert script.canonical_python(before.encode()) == script.canonical_python(after.encode())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x = (a + b) + c", "x = a + (b + c)"),
        ("x = 1", "x = 1.0"),
        ("x = 0.1", "x = 0.10000000000000002"),
        ("x: int = 1", "x = 1"),
        ("def f(a: constexpr): g(a)", "def f(a): g(a)"),
        ("def f(*, a=1, b): g(a)", "def f(*, a, b=1): g(a)"),
        ("f'{a}b'", "f'{a!r}b'"),
        ("a()\nb()", "b()\na()"),
        ("from torch import exp", "from numpy import exp"),
        ("while a: b()\nelse: c()", "while a: b()\nc()"),
    ],
)
def test_what_could_decide_a_bit_changes_the_digest(script: ModuleType, before: str, after: str) -> None:
    assert script.canonical_python(before.encode()) != script.canonical_python(after.encode())


def test_c_without_comments_and_indentation(script: ModuleType) -> None:
    source = b'#if A /* the\n rest */ && 1\nchar *x = "a // b"; // two\n\n  float y = a / b;\n#endif\n'
    assert script.canonical_c(source) == '#if A && 1\nchar *x = "a // b";\nfloat y = a / b;\n#endif'
    for before, after in ((b"a / b", b"b / a"), (b"// b", b"// c"), (b"#endif", b""), (b"= a", b"= -a")):
        assert script.canonical_c(source.replace(before, after)) != script.canonical_c(source)


def test_edited_sources_are_certified_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in versions._COMPUTING:
        (tmp_path / name / "more").mkdir(parents=True)
        (tmp_path / name / "more" / "kernel.c").write_text("a + b")
    monkeypatch.setattr(versions.resources, "files", lambda name: tmp_path)
    found = [sources_digest.__wrapped__()]
    for name in versions._COMPUTING:
        (tmp_path / name / "more" / "kernel.c").write_text("b + a")
        found.append(sources_digest.__wrapped__())
    (tmp_path / "models" / "weights.bin").write_text("no source")
    assert len({*found}) == len(found) and sources_digest.__wrapped__() == found[-1]
