"""Say which sources that decide bits changed since they were recorded, or record them as they are.

    python scripts/sources.py             which changed; exit status 1 if any did
    python scripts/sources.py --record    write tests/numerics/sources.txt

The fingerprint names our code by the numbers in src/holdfast/numerics/versions.py. They are only worth
something if nobody forgets to raise one, so a test holds a digest of every file that could change a bit.
Comments, docstrings, formatting, the path of a file and imports of our own modules are not in its digest:
a file that moves needs nothing. After any other change, ask `python scripts/compare_bits.py main`:

- if no bit changes, record the sources;
- if a bit changes, raise the component's number, record the sources, and say so in CHANGELOG.md.
  Fingerprints, receipts and certificates made before no longer match.

Raise the number too if compare_bits.py cannot tell: kernels of another CPU or GPU, a feature that it
does not ask for.
"""

import ast
import hashlib
import json
import re
import sys
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "holdfast"
RECORD = ROOT / "tests" / "numerics" / "sources.txt"

LOOKED_AT = ("models", "numerics", "structured", "text", "thinking", "worker")  # every file in them
SUFFIXES = (".py", ".c", ".h", ".json")
AND_FILES = ("core/stop_rules.py", "scheduler/verification.py")
DECIDES_NOTHING = {
    "models/adapter.py": "finds files, which have digests",
    "models/dummy.py": "makes random weights, which have a digest",
    "models/locate.py": "finds files, which have digests",
    "models/model_files.py": "names files, and sees whether they change",
    "models/pinned_file.py": "fetches a file, which has a digest",
    "models/published.json": "sizes of random weights, which have a digest",
    "models/shapes.py": "sizes of GEMMs, which are in the recipe",
    "numerics/cache_dir.py": "where files are kept",
    "numerics/backends/c_prebuilt/manifest.json": "names libraries built of our sources",
    "numerics/backends/select_backend.py": "chooses the backend, which the recipe names",
    "numerics/versions.py": "names versions",
    "thinking/predictor.py": "proposes candidates, which are verified",
    "worker/device.py": "describes the device for the fingerprint",
    "worker/extension.py": "names the hooks of a pass",
    "worker/spot_check.py": "compares",
}
COMPONENT_OF = {  # the first pattern that fits
    "numerics/backends/c/*": "kernels/c",
    "numerics/backends/torch/*": "kernels/torch",
    "numerics/backends/triton/*": "kernels/triton",
    "numerics/sampling.py": "sampling",
    "worker/head*": "sampling",
    "worker/log*": "sampling",
    "worker/sampl*": "sampling",
    "core/*": "sampling",
    "scheduler/*": "sampling",
    "structured/*": "text",
    "text/*": "text",
    "thinking/*": "thinking",
    "*": "model",
}


def component(path: str) -> str | None:
    """The component of a file. None if it decides no bit."""
    if path in DECIDES_NOTHING:
        return None
    return next(name for pattern, name in COMPONENT_OF.items() if fnmatch(path, pattern))


def find_sources(package: Path = PACKAGE) -> list[str]:
    """The paths of all files that are looked at."""
    found = [path for folder in LOOKED_AT for path in (package / folder).rglob("*.*")]
    names = {path.relative_to(package).as_posix() for path in found if path.suffix in SUFFIXES}
    return sorted({*names, *AND_FILES})


def digest(path: str, source: bytes) -> str:
    """A digest of what could decide a bit."""
    content = canonical_python(source) if path.endswith(".py") else canonical_c(source)  # also of data
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def canonical_python(source: bytes) -> str:
    """The syntax tree as text, the same in every version of Python."""
    return json.dumps(_shape(ast.parse(source)))


def _shape(node: object) -> object:
    if isinstance(node, ast.JoinedStr):  # versions of Python cut its text in different places
        runs = groupby(node.values, lambda value: isinstance(value, ast.Constant))
        return ["f", *("".join(one.value for one in run) if text else _shape([*run]) for text, run in runs)]
    if isinstance(node, ast.AST):
        fields = {name: value for name, value in ast.iter_fields(node) if value not in (None, [])}
        kept = [[name, _shape(fields[name])] for name in sorted(fields) if name not in ("ctx", "kind")]
        return [type(node).__name__, kept]
    if isinstance(node, list):
        return [_shape(each) for each in node if not _is_left_out(each)]
    return node.hex() if isinstance(node, float) else repr(node)


def _is_left_out(node: object) -> bool:
    """Whether a statement is a docstring, or imports a module of ours."""
    if isinstance(node, ast.ImportFrom):
        return node.level > 0 or str(node.module).partition(".")[0] == "holdfast"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def canonical_c(source: bytes) -> str:
    """The lines without comments and indentation."""
    comments = r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/'
    text = re.sub(comments, lambda found: found[1] or " ", source.decode(), flags=re.DOTALL)
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())


def now(package: Path = PACKAGE) -> dict[str, tuple[str, str]]:
    """Component and digest of each source as it is, by path. A file without code has none."""
    found = {}
    for path in find_sources(package):
        name, one = component(path), digest(path, (package / path).read_bytes())
        if name is not None and one != digest(path, b""):
            found[path] = (name, one)
    return found


def changed(found: dict[str, tuple[str, str]], recorded: str) -> list[str]:
    """The paths of which no version of this content is recorded in this component."""
    known = {tuple(line.split()[:2]) for line in recorded.splitlines()}
    return [path for path, one in found.items() if one not in known]


def main() -> int:
    found, record = now(), "--record" in sys.argv
    files = changed(found, RECORD.read_text() if RECORD.exists() else "")
    for path in files:
        print(f"{path} changed, of {found[path][0]}")
    if record:
        RECORD.write_text("".join(f"{name} {one} {path}\n" for path, (name, one) in found.items()))
    return 1 if files and not record else 0


if __name__ == "__main__":
    sys.exit(main())
