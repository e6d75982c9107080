"""`holdfast doctor`: its checks, and what it says about missing parts."""

import json
from importlib import metadata

import pytest

from holdfast.errors import ConfigError


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")


def test_doctor_shows_versions_device_and_kernels(holdfast):
    result = holdfast("doctor")
    for word in (
        "python",
        "torch",
        "holdfast",
        "device",
        "gpu",
        "threads",
        "kernels",
        "cache",
        "default model",
        "certificate",
        "llguidance",
    ):
        assert word in result.stdout


@pytest.mark.usefixtures("no_default_model")
def test_doctor_accepts_a_missing_compiler_model_and_cache(holdfast, monkeypatch, tmp_path):
    def no_compiler():
        raise ConfigError("no C compiler")

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path / "file" / "below"))
    monkeypatch.setattr("holdfast.numerics.backends.c.kernels.load_kernels", no_compiler)
    result = holdfast("doctor")
    for words in ("no C compiler", "cannot be written", "fetches it (98 MB)"):
        assert words in result.stdout


@pytest.fixture
def uninstall(monkeypatch):
    """`uninstall("tokenizers")`, as far as the doctor can see."""
    version = metadata.version

    def hide(missing):
        def look(name):
            if name == missing:
                raise metadata.PackageNotFoundError(name)
            return version(name)

        monkeypatch.setattr("holdfast.cli.commands.doctor.metadata.version", look)

    return hide


def test_missing_package_exits_with_1(holdfast, uninstall):
    uninstall("tokenizers")
    result = holdfast("doctor", code=1)
    assert "Not usable yet: tokenizers" in result.stdout


def test_missing_torch_says_how_to_install_it(holdfast, uninstall):
    uninstall("torch")
    result = holdfast("doctor")
    assert "pip install 'holdfast[torch]'" in result.stdout


def test_doctor_shows_the_fingerprint_of_a_model(holdfast, model):
    answer = json.loads(holdfast("generate", "the dog", "-m", model, "-n", "2", "--json").stdout)
    result = holdfast("doctor", model)
    assert f"fingerprint {answer['fingerprint']}" in result.stdout


def test_missing_model_is_reported(holdfast):
    result = holdfast("doctor", "/no/such/folder", code=1)
    assert "/no/such/folder" in result.stdout
    assert "Not usable yet: model" in result.stdout


def test_check_that_raises_is_reported(holdfast, monkeypatch):
    def broken():
        raise RuntimeError("the machine is on fire")

    monkeypatch.setattr("holdfast.worker.device.cpu_name", broken)
    result = holdfast("doctor", code=1)
    assert "the machine is on fire" in result.stdout
