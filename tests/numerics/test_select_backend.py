"""Opening a backend: the build cache, a missing compiler, a failed build, and the recipe."""

import dataclasses
import json
import logging
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError
from holdfast.numerics.backends.c import build as build_module
from holdfast.numerics.backends.c import kernels
from holdfast.numerics.backends.c.backend import CBackend
from holdfast.numerics.backends.c.build import build
from holdfast.numerics.backends.select_backend import open_backend
from holdfast.numerics.backends.torch.backend import TorchBackend
from holdfast.numerics.cache_dir import read_checked
from support.damage import DAMAGES


@pytest.fixture
def forget_kernels() -> object:
    """Load the kernels anew in this test, and again after it."""
    kernels.load_kernels.cache_clear()
    yield
    kernels.load_kernels.cache_clear()


@pytest.fixture
def one_small_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of a fraction of a second.

    These tests are about where it goes, not about its content.
    """
    monkeypatch.setattr(build_module, "_UNITS", ("entry.c",))


def test_auto_falls_back_to_torch_without_a_compiler(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, forget_kernels: object
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with caplog.at_level(logging.WARNING):
        backend = open_backend(torch.bfloat16, num_threads=1)
    assert isinstance(backend, TorchBackend)
    assert len(caplog.records) == 1
    assert "no-such-compiler" in caplog.text
    with pytest.raises(ConfigError, match="no C compiler"):
        open_backend(torch.bfloat16, kernels="c", num_threads=1)


def test_failed_build_reports_the_compiler_output(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, forget_kernels: object, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "cc"
    broken.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo broken 1.0 && exit 0\necho "this is why" >&2\nexit 1\n'
    )
    broken.chmod(0o755)
    monkeypatch.setenv("CC", str(broken))
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(ConfigError, match="this is why"):
        open_backend(torch.float32, kernels="c", num_threads=1)
    with caplog.at_level(logging.WARNING):
        assert open_backend(torch.float32, num_threads=1).recipe.path == "torch"


def test_build_is_cached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, one_small_unit: None) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path))
    first = build()
    assert first.path.parent == tmp_path / "kernels"
    made = first.path.stat().st_mtime_ns
    assert build() == first
    assert first.path.stat().st_mtime_ns == made
    assert [path.name for path in first.path.parent.iterdir()] == [first.path.name]


@pytest.mark.parametrize("damage", ["cut in half", "zeroed in the middle"])
def test_damaged_library_is_built_again(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    one_small_unit: None,
    damage: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path))
    first = build()
    DAMAGES[damage](first.path)
    assert build() == first
    assert read_checked(first.path) is not None and len(caplog.records) == 1


def test_simultaneous_builds_compile_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, one_small_unit: None
) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path))
    compile_, compiled = build_module._compile, []

    def compile_slowly(*given: Any) -> Path:
        compiled.append(given)
        time.sleep(0.2)
        return compile_(*given)

    monkeypatch.setattr(build_module, "_compile", compile_slowly)
    with ThreadPoolExecutor(3) as pool:
        paths = {made.result().path for made in [pool.submit(build) for _ in range(3)]}
    assert len(paths) == len(compiled) == 1


_BUILD = """
from holdfast.numerics.backends.c import build as module
module._UNITS = ("entry.c",)
path = module.build().path
print(path.exists(), path)
"""


def test_unwritable_cache_falls_back_to_a_temporary_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is gone after the process."""
    blocked = tmp_path / "file"
    blocked.write_text("a file where the folder should be")
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(blocked))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    said = subprocess.check_output([sys.executable, "-c", _BUILD], text=True)
    assert said.startswith(f"True {tmp_path}/holdfast-")
    assert list(tmp_path.iterdir()) == [blocked]


def test_cache_key_covers_the_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, one_small_unit: None
) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path))
    here = build()
    monkeypatch.setattr(build_module, "cpu_flags", lambda: "another CPU")
    there = build()
    assert there.path != here.path and there.compiler == here.compiler


def test_c_recipe_names_variant_and_version_and_neither_cpu_nor_compiler() -> None:
    backend = open_backend(torch.float32, kernels="c", num_threads=1)
    names = {"path", "rows", "k_slices", "kv_block", "query_tile", "dtype", "variant", "version"}
    assert set(backend.recipe.as_dict()) == names and not backend.recipe.depends_on_device
    assert backend.recipe.variant == "portable"
    assert kernels.load_kernels().built.compiler in backend.build


def test_bf16_with_amx_is_a_recipe_of_its_own() -> None:
    """The weights of this backend are not packed: there may be no AMX here."""
    library = dataclasses.replace(kernels.load_kernels(), has_amx=True)
    variants = [
        CBackend(dtype, library, 1, portable=portable).recipe.variant
        for dtype, portable in ((torch.bfloat16, False), (torch.bfloat16, True), (torch.float32, False))
    ]
    assert variants == ["amx-bf16", "portable", "portable"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"kernels": "torch", "portable": True}, "portable is a recipe of the C kernels"),
        ({"kernels": "triton", "portable": True}, "portable is a recipe of the C kernels"),
        ({"portable": True, "device": torch.device("cuda")}, "use device cpu"),
        ({"num_threads": 0}, "at least 1"),
        ({"kernels": "gpu"}, "unknown kernels"),
        ({"dtype": torch.float64}, "float64"),
    ],
)
def test_settings_that_no_backend_has_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        open_backend(**{"dtype": torch.float32, "num_threads": 1, **settings})


def test_portable_configuration_needs_c_kernels() -> None:
    with pytest.raises(ConfigError, match="use kernels c or auto"):
        EngineConfig(kernels="torch", portable=True)


def test_recipe_is_json_and_independent_of_threads() -> None:
    seen = set()
    for dtype in (torch.float32, torch.bfloat16):
        for name in ("c", "torch"):
            recipe = open_backend(dtype, kernels=name, num_threads=1).recipe
            assert json.loads(json.dumps(recipe.as_dict())) == recipe.as_dict()
            assert recipe == open_backend(dtype, kernels=name, num_threads=2).recipe
            assert recipe.rows == 16 and recipe.depends_on_device == (name == "torch")
            seen.add(recipe.digest())
    assert len(seen) == 4
