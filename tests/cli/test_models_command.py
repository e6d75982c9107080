"""`holdfast models`: what is built in, what is in the cache, and what of it can be served."""

import json
import re
from types import SimpleNamespace

import pytest

from holdfast.cli.commands import models as command
from holdfast.cli.options import engine as o
from holdfast.errors import ConfigError
from holdfast.models.locate import locate
from support.serving import serving
from support.tiny import tiny_model


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A Hugging Face cache with a model that can be served, one that cannot, and a broken one."""
    folder = tmp_path / "hub"
    tiny_model(_snapshot(folder, "models--org--tiny"), "llama")
    other = _snapshot(folder, "models--org--other")
    other.mkdir()
    other.joinpath("config.json").write_text(
        '{"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox"}'
    )
    _snapshot(folder, "models--org--empty").mkdir()
    _snapshot(folder, "datasets--org--data").mkdir()
    (folder / "notes.txt").write_text("not a repository")
    monkeypatch.setattr(command, "cache_folder", lambda: folder)
    return folder


def _snapshot(folder, name):
    revision = "0" * 40
    (folder / name / "refs").mkdir(parents=True)
    (folder / name / "blobs").mkdir()
    (folder / name / "refs" / "main").write_text(revision)
    (folder / name / "snapshots").mkdir()
    return folder / name / "snapshots" / revision


def test_models_of_the_cache_are_opened(holdfast, cache):
    result = holdfast("models", "--json")
    content = json.loads(result.stdout)
    found = {one["name"]: one for one in content["models"]}
    assert content["cache"] == str(cache)
    assert list(found) == ["smollm2", "coin", "smollm2-coin", "org/empty", "org/other", "org/tiny"]
    tiny = found["org/tiny"]
    assert (tiny["architecture"], tiny["reason"]) == ("LlamaForCausalLM", None)
    assert tiny["dtype"] and tiny["size_bytes"] > 0 and tiny["num_parameters"] > 0
    assert tiny["path"].startswith(str(cache))
    assert found["org/other"]["architecture"] == "GPTNeoXForCausalLM"
    assert "architecture is" in found["org/other"]["reason"]
    assert "config.json" in found["org/empty"]["reason"]
    assert found["smollm2"]["is_default"] and found["coin"]["architecture"] == "MistralForCausalLM"


def test_models_are_listed_as_text(holdfast, cache):
    lines = holdfast("models").stdout.splitlines()
    at = next(
        at for at, line in enumerate(lines) if line.startswith("org/tiny  in the cache · LlamaForCausalLM")
    )
    assert lines[at + 1].strip().startswith(str(cache))
    assert any(line.strip().startswith("cannot be served: ") for line in lines)


@pytest.mark.usefixtures("no_default_model")
def test_missing_cache_and_missing_models_are_no_errors(holdfast, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "cache_folder", lambda: tmp_path / "missing")
    result = holdfast("models")
    assert "smollm2  default · fetched on first use\n" in result.stdout
    for name in ("coin", "smollm2-coin"):
        assert f"cannot be served: {name} is not installed" in result.stdout
    assert "no models in the cache" in result.stderr


def test_several_gguf_files_are_listed_by_path(tmp_path):
    files = [tmp_path / name for name in ("a.gguf", "b.gguf")]
    for file in files:
        file.write_bytes(b"GGUF" + bytes(40))
    revision = SimpleNamespace(last_modified=0, snapshot_path=tmp_path)
    repo = SimpleNamespace(revisions=[revision], repo_id="org/name")
    found = list(command._in_repo(repo))
    assert [one.name for one in found] == [str(file) for file in files]
    assert all("GGUF" in one.reason for one in found)


def test_format_of_a_gguf_file_is_its_dtype():
    path = locate(None).path
    assert command._describe("smollm2", "builtin", path).dtype == "Q4_1"


@pytest.mark.parametrize(
    "command", [("generate", "-m", "coin", "Hi"), ("chat", "coin")], ids=["generate", "chat"]
)
def test_coin_says_what_it_understands(holdfast, monkeypatch, command):
    def refuse(*given, **options):
        raise ConfigError("not opened")

    monkeypatch.setattr(o, "open_llm", refuse)
    assert holdfast(*command, code=2).stderr.splitlines() == [locate("coin").about, "error: not opened"]


@pytest.mark.long
def test_coin_answers_its_own_examples(holdfast):
    examples = re.findall('"([^"]+A:)"', locate("coin").about or "")
    answers = [holdfast("generate", "-m", "coin", "-t", "0", one).stdout.strip() for one in examples]
    assert answers == ["No, tails.", "8."]


@pytest.mark.long
def test_server_says_what_to_expect_of_a_demo_model():
    with serving("coin", ready=False) as server:
        assert server.wait_for("^coin is a demo").string.strip() == locate("coin").about
