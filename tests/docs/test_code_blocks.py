"""Every code block of the documentation says what it is, and is read: data is parsed, names and options exist.

`engine/llm/test_documented_python.py` and `server/test_documented_clients.py` run Python, `test_commands.py` commands.
"""

import ast
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml
from typer.main import get_command

from holdfast.cli.main import app
from holdfast.core.options import option_fields
from holdfast.engine.config import EngineConfig
from holdfast.ray.config import ReplicasConfig
from holdfast.server.config import ServerConfig
from holdfast.server.telemetry.metrics import Metrics, ServerMetrics
from holdfast.server.tenants.directory import read_key_file
from holdfast.server.tenants.tenant import UNKNOWN_TENANT
from support.documents import (
    ENGINE_PAGES,
    INDENTED,
    OTHER_PYTHON,
    PAGES,
    ROOT,
    SERVER_PAGES,
    Block,
    blocks_of,
    commands_of,
    is_python_run_elsewhere,
    lines_of,
)

Check = Callable[[list[str]], None]
OPTIONS = {
    one.name for config in (ServerConfig, EngineConfig, ReplicasConfig) for one in option_fields(config)
} | {"model"}


def check_holdfast(words: list[str]) -> None:
    """Read a command line as `holdfast` does, and run nothing."""
    program: Any = get_command(app)
    command = program
    while words and hasattr(command, "get_command"):
        found = command.get_command(None, words[0])
        if found is None:
            break
        command, words = found, words[1:]
    context = command.context_class(command)
    given, left, _ = command.make_parser(context).parse_args(words)
    assert not left, left
    if command is not program:  # its own options, such as --install-completion, would be carried out
        for param in command.params:
            param.process_value(context, given.get(param.name))


def check_python(words: list[str]) -> None:
    """Find the script or the module, and in its text the options."""
    name, *arguments = words[1:] if words[0] == "-m" else words
    if name == "pytest":
        return check_pytest(arguments)
    script = Path("tests", *name.split(".")) if words[0] == "-m" else Path(name)
    files = [ROOT / one for one in (script, script.with_suffix(".py"), script / "__main__.py")]
    if name != "pile.py":  # another block of its page
        text = next(one for one in files if one.is_file()).read_text(encoding="utf-8")
        assert all(f'"{one}"' in text for one in arguments if one.startswith("--")), arguments
    return None


def check_pytest(words: list[str]) -> None:
    plugin = (ROOT / "src" / "pytest_holdfast" / "__init__.py").read_text(encoding="utf-8")
    for one in words:
        assert "/" not in one or (ROOT / one).exists(), one
        assert not one.startswith("--") or f'"{one}"' in plugin, one


def check_make(words: list[str]) -> None:
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {one for one in words if "=" not in one} <= {*targets}


def check_pip(words: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = re.findall(r"^\.\[(.*)\]$", "\n".join(words), re.MULTILINE)
    assert words[0] == "install" and {*extras} <= {*project["optional-dependencies"]}


def check_curl(words: list[str]) -> None:
    (route,) = re.findall(r"(?:localhost|127\.0\.0\.1):8000(/\S*)", " ".join(words))
    assert any(f'"{route}"' in path.read_text() for path in ROOT.glob("src/holdfast/server/**/*.py")), route


def check_podman(words: list[str]) -> None:
    assert words[0] in ("build", "run")
    assert all((ROOT / one).is_file() for one in words if one.startswith("deploy/"))
    variables = [one.partition("=")[0] for one in words if re.match(r"[A-Z_]+=", one)]
    assert {one.removeprefix("HOLDFAST_").lower() for one in variables} <= OPTIONS


def check_ray_serve(words: list[str]) -> None:
    """`serve run MODULE:NAME OPTION=VALUE ...`, or `serve deploy FILE`, which has the same."""
    command, target, *arguments = words
    options = dict(one.split("=") for one in arguments)
    if command == "deploy":
        (application,) = yaml.safe_load((ROOT / target).read_text(encoding="utf-8"))["applications"]
        target, options = application["import_path"], application["args"]
    assert target == "holdfast.ray:build" and {*options} <= OPTIONS


def check_program(words: list[str]) -> None:
    """A program of others. `make clients` and `make demo` drive these clients at their current versions."""


CHECKS: dict[str, Check] = {
    "holdfast": check_holdfast,
    "python": check_python,
    ".venv/bin/python": check_python,
    "pytest": check_pytest,
    "$PYTEST": check_pytest,
    "make": check_make,
    "pip": check_pip,
    "curl": check_curl,
    "podman": check_podman,
    "serve": check_ray_serve,
    "docs/build-llama-cpp.sh": check_program,
    **dict.fromkeys(("lm-eval", "inspect", "npx", "llm", "guidellm"), check_program),
    **dict.fromkeys(("echo", "printf", "cd", "diff", "jq", "base64", "openssl"), check_program),
}


def blocks(*languages: str) -> list[Block]:
    return [one for page in PAGES for one in blocks_of(page, *languages)]


def json_values(text: str) -> Iterator[Any]:
    while text := text.lstrip():
        value, end = json.JSONDecoder().raw_decode(text)
        text = text[end:]
        yield value


def test_every_block_is_of_a_known_kind() -> None:
    known = {"python", "console", "sh", "json", "yaml", "toml", "promql", "text"}
    assert [one for one in blocks() if one.language not in known] == [], (
        "name the language after ```, or `text`"
    )
    assert len(blocks()) > 100
    assert {*INDENTED} <= {one.text.partition("\n")[0] for one in blocks()}


def test_commands_have_programs_files_and_options_that_exist() -> None:
    checked = 0
    for block in blocks("console", "sh"):
        for line, _ in lines_of(block):
            for program, *words in commands_of(line):
                assert program in CHECKS, f"{block}: what is {program}?"
                try:
                    CHECKS[program](words)
                except Exception as error:
                    raise AssertionError(f"{block}: {line}") from error
                checked += 1
    assert checked > 150


def test_data_is_well_formed(tmp_path: Path) -> None:
    for block in blocks("json"):
        assert list(json_values(block.text))
    for block in blocks("yaml"):
        assert yaml.safe_load(block.text)
    (configuration,) = (one for one in blocks("yaml") if one.page == "docs/operations.md")
    assert {one.replace("-", "_") for one in yaml.safe_load(configuration.text)} <= OPTIONS
    for block in blocks("toml"):
        path = tmp_path / "keys.toml"
        path.write_text(block.text)
        path.chmod(0o600)
        assert len(read_key_file(path)) == 2


def test_queries_name_metrics_that_exist() -> None:
    text, _ = ServerMetrics({"m": Metrics()}).render("", UNKNOWN_TENANT)
    families = set(re.findall(r"^# TYPE (\S+)", text.decode(), re.MULTILINE))
    for block in blocks("promql"):
        for name in re.findall(r"holdfast_[a-z_]+", block.text):
            assert {name, name.removesuffix("_bucket")} & families, name


def test_python_runs_or_is_listed() -> None:
    found = blocks("python")
    for block in found:
        assert is_python_run_elsewhere(block) or block.page in ENGINE_PAGES + SERVER_PAGES, block
        if block.page != "docs/adding-a-family.md":
            ast.parse(block.text)
    assert all(any(part in one.text for one in found) for part in OTHER_PYTHON)


def test_example_of_a_family_is_in_the_source() -> None:
    """The page shows it in parts: its data and its function."""
    models = ROOT / "src/holdfast/models"
    (data,) = (one for one in blocks("json") if one.page == "docs/adding-a-family.md")
    (function,) = (one for one in blocks("python") if one.page == "docs/adding-a-family.md")
    families = json.loads((models / "families.json").read_text(encoding="utf-8"))
    assert json.loads(data.text).items() <= families.items()
    source = "".join((models / "families.py").read_text(encoding="utf-8").split())
    assert "".join(function.text.split()) in source
