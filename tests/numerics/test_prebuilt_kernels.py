"""Prebuilt kernels: chosen by the CPU's instructions, used only if they are built from these sources."""

import json
import platform
from pathlib import Path

import pytest

from holdfast.errors import ConfigError
from holdfast.numerics.backends.c import build as building
from holdfast.numerics.backends.c import kernels, prebuilt
from holdfast.numerics.backends.c.prebuilt import TARGETS, Target, build_all, find_prebuilt

HERE = platform.machine()
PLAIN = Target("plain", HERE, (), frozenset())
BETTER = Target("better", HERE, (), frozenset({"wings"}))
UNKNOWN = Target("unknown", HERE, ("-mno-such-instructions",), frozenset())
ELSEWHERE = Target("elsewhere", "pdp11", (), frozenset())


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Libraries of one small unit, on a system that is called Linux and sets no CC."""
    monkeypatch.setattr(prebuilt.sys, "platform", "linux")
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(building, "_UNITS", ("entry.c",))
    monkeypatch.setattr(prebuilt, "TARGETS", (BETTER, PLAIN, UNKNOWN, ELSEWHERE))
    monkeypatch.setattr(prebuilt, "supported_targets", _supported)
    assert build_all(tmp_path / "made", [BETTER, PLAIN, UNKNOWN]) == ["better", "plain"]
    return tmp_path / "made"


def _supported() -> list[Target]:
    features = prebuilt._cpu_features()
    return [one for one in prebuilt.TARGETS if one.machine == HERE and one.features <= features]


@pytest.fixture
def plain_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prebuilt, "cpu_flags", lambda: "flags : legs tail\nmodel name : wings")


def test_first_target_that_the_cpu_can_run_is_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for flags, name in (("flags : legs", "plain.so"), ("Features\t: legs wings", "better.so")):
        monkeypatch.setattr(prebuilt, "cpu_flags", lambda flags=flags: flags)
        found = find_prebuilt(folder)
        assert found is not None and found.path == folder / name
        assert found.compiler == building.find_compiler()[1]


def test_library_of_other_sources_or_flags_is_not_used(
    folder: Path, plain_cpu: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_prebuilt(folder) is not None
    with monkeypatch.context() as patch:
        patch.setattr(building, "FLAGS", (*building.FLAGS, "-O2"))
        assert find_prebuilt(folder) is None
    with monkeypatch.context() as patch:
        patch.setattr(building, "_UNITS", ("entry.c", "layer.c"))
        assert find_prebuilt(folder) is None
    with monkeypatch.context() as patch:
        patch.setenv("CC", "gcc")  # a compiler that was asked for
        assert find_prebuilt(folder) is None


def test_damaged_library_is_not_used_nor_one_for_older_cpus(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(prebuilt, "cpu_flags", lambda: "flags : legs wings")
    whole = (folder / "better.so").read_bytes()
    for content in (b"", whole[:-1], bytes(len(whole)), None):
        (folder / "better.so").unlink() if content is None else (folder / "better.so").write_bytes(content)
        caplog.clear()
        assert find_prebuilt(folder) is None
        assert len(caplog.records) == 1 and "better.so" in caplog.text


@pytest.mark.parametrize("content", [None, "", "[]", '{"sources": 3}', "\0", "another machine"])
def test_manifest_that_does_not_fit_is_ignored(folder: Path, plain_cpu: None, content: str | None) -> None:
    manifest = folder / "manifest.json"
    if content == "another machine":
        content = json.dumps({**json.loads(manifest.read_text()), "machine": "pdp11"})
    manifest.unlink() if content is None else manifest.write_text(content)
    assert find_prebuilt(folder) is None


def test_missing_compiler_is_an_error_of_the_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(ConfigError, match="no C compiler"):
        build_all(tmp_path)


def test_every_architecture_ends_with_a_target_for_all_its_cpus() -> None:
    last = {one.machine: one for one in TARGETS}
    assert {name: one.name for name, one in last.items()} == {"x86_64": "avx2", "aarch64": "neon"}
    for machine, one in last.items():
        assert all(one.features <= other.features for other in TARGETS if other.machine == machine)


@pytest.mark.long
def test_prebuilt_library_has_the_variant_of_a_native_build(tmp_path: Path) -> None:
    """All targets that this CPU runs load, and the best has the vector width of -march=native."""
    targets = prebuilt.supported_targets()
    build_all(tmp_path, targets)
    variants = [
        kernels.bind_kernels(building.Built(tmp_path / f"{one.name}.so", "")).variant for one in targets
    ]
    assert variants[0] == kernels.bind_kernels(building.build()).variant
