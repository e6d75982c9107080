"""`make dist`: the bytes of an sdist depend on its contents alone, and the bill of materials names what is shipped."""

import io
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def dist(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import dist

    # What is under test needs no repository.
    monkeypatch.setattr(dist, "_run", lambda *command, **settings: "1700000000\n")
    return dist


def test_sdist_has_one_form(dist: Any, tmp_path: Path) -> None:
    made = []
    for number, names in enumerate((("a", "b"), ("b", "a"))):
        path = tmp_path / f"{number}.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            for name in names:
                member = tarfile.TarInfo(name)
                member.size, member.mtime, member.uid, member.mode = (
                    1,
                    number,
                    os.getpid() + number,
                    0o600 + number,
                )
                archive.addfile(member, io.BytesIO(name.encode()))
        dist._normalise(path)
        made.append(path.read_bytes())
    assert made[0] == made[1]
    with tarfile.open(tmp_path / "1.tar.gz") as archive:
        assert [(one.name, one.mtime, one.mode) for one in archive] == [
            ("a", 1700000000, 0o644),
            ("b", 1700000000, 0o644),
        ]


def test_bill_of_materials_names_what_is_shipped_and_needed(dist: Any, tmp_path: Path) -> None:
    path = tmp_path / "holdfast-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        metadata = "Name: holdfast\nVersion: 1.0.0\nLicense-Expression: Apache-2.0\nRequires-Dist: numpy\n"
        archive.writestr("holdfast-1.0.0.dist-info/METADATA", metadata)
        archive.writestr("holdfast/c_prebuilt/libgomp.so.1", "")
    component = dist._component(path)
    assert [one["name"] for one in component["components"]] == ["libgomp.so.1", "numpy"]
    assert "GCC-exception" in component["components"][0]["licenses"][0]["expression"]


@pytest.mark.long
def test_everything_is_built_twice_with_the_same_bytes_and_installs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import dist

    monkeypatch.setattr("sys.argv", ["dist.py", "--twice"])
    dist.main()
    assert len(list(dist.DIST.glob("*.whl"))) >= 3


@pytest.mark.long
def test_what_was_built_is_used_without_a_compiler() -> None:
    subprocess.run([sys.executable, ROOT / "scripts" / "try_dist.py"], check=True)
