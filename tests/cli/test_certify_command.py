"""`holdfast certify`: table, JSON, --fresh, refusal."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

SMALL = ("--max-pass-tokens", "64")  # few batch sizes to certify


@pytest.fixture(autouse=True)
def wide(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(autouse=True)
def own_certificates(monkeypatch, cache_dir: Path, tmp_path: Path):
    """Certificates of this test alone; the built kernels are shared."""
    (cache_dir / "kernels").mkdir(exist_ok=True)
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "kernels").symlink_to(cache_dir / "kernels")
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path / "cache"))


def test_table_has_every_kind_of_operation_and_the_kernels_seen(holdfast, model, monkeypatch):
    from holdfast.engine.start import builder

    result = holdfast("certify", model, *SMALL)
    for word in ("qkv", "down", "head", "attention", "rms_norm", "logsumexp", "comparisons"):
        assert word in result.stdout
    assert "certified batch sizes" in result.stdout
    load = builder.load_certificate
    monkeypatch.setattr(
        builder, "load_certificate", lambda key: replace(load(key), kernels=("nvjet_a", "_attend_tiles"))
    )
    shown = holdfast("certify", model, *SMALL).stdout
    assert "kernels seen" in shown and "nvjet_a" in shown and "_attend_tiles" in shown


def test_fresh_certificate_equals_the_stored_one(holdfast, model, monkeypatch):
    from holdfast.certification import certificate

    kept = json.loads(holdfast("certify", model, *SMALL, "--json").stdout)
    fresh = json.loads(holdfast("certify", model, *SMALL, "--json", "--fresh").stdout)
    assert "now" in holdfast("certify", model, *SMALL, "--fresh").stdout
    assert fresh["sizes"] == kept["sizes"]
    assert fresh["key"] == kept["key"]
    monkeypatch.setattr(certificate, "delete_certificate", lambda key: None)  # it cannot be deleted
    result = holdfast("certify", model, *SMALL, "--fresh")
    assert "stored earlier" in result.stdout


def test_refusal_is_shown_and_exits_with_1(holdfast, model, monkeypatch):
    from holdfast.certification import certification as certifying
    from holdfast.engine.start import builder

    certify = certifying.certify
    monkeypatch.setattr(builder, "load_certificate", lambda key: None)
    monkeypatch.setattr(certifying, "save_certificate", lambda made: None)
    monkeypatch.setattr(
        certifying,
        "certify",
        lambda *given, **more: replace(
            certify(*given, **more), sizes=(), refusal="the reference does not repeat"
        ),
    )
    result = holdfast("certify", model, *SMALL, code=1)
    assert "the reference does not repeat" in result.stdout
    refused = holdfast("generate", "the dog", "-m", model, "-d", "--certification", "startup", code=2)
    assert "the reference does not repeat" in refused.stderr


def test_shapes_need_a_gpu(holdfast):
    result = holdfast("certify", "--shapes", "llama-3.1-8b", "--device", "cpu", code=2)
    assert "tests the GEMMs of a GPU" in result.stderr


def test_gemm_recipes_as_table_and_json(holdfast, monkeypatch):
    from holdfast.certification.gemm.recipes import GemmRecipe
    from holdfast.engine.start import builder as build

    costs = ((1, 0.96), (4096, 1.04))
    found = (
        GemmRecipe("down", 4096, 14336, 2, (1, 2, 3), 3, 4, costs),
        GemmRecipe("qkv", 6144, 4096, 0, (1, 2), 3, 1, ()),
        GemmRecipe(
            "gate_up", 28672, 4096, 0, (1, 2, 3), 3, 1, (), tuple((rows, 16128) for rows in range(77))
        ),
    )
    asked = []
    monkeypatch.setattr(
        build, "gemm_recipes", lambda config, show=None, *, anew=False: asked.append((config, anew)) or found
    )
    result = holdfast("certify", "--shapes", "llama-3.1-8b", "--fresh")
    for words in ("14336", "3 of 3", "2 of 3", "plain", "1: 0.96, 4096: 1.04", "not measured", " 77 "):
        assert words in result.stdout
    ((config, anew),) = asked
    assert (config.model, config.load_format, anew) == ("llama-3.1-8b", "dummy", True)
    listed = json.loads(holdfast("certify", "--shapes", "llama-3.1-8b", "--json").stdout)
    assert [one["slices"] for one in listed] == [2, 0, 0]
    assert listed[2]["cuts"][0] == [0, 16128]
