"""Two real models in one server, from the command line: answers, batches, and the death of one engine process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from support.serving import Server, serving
from support.tiny import tiny_model

ASKED: dict[str, Any] = {"prompt": "the quick fox", "max_tokens": 6, "temperature": 0}
LONG: dict[str, Any] = {"prompt": "the dog", "max_tokens": 150, "stream": True, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    other = tiny_model(tmp_path_factory.mktemp("other") / "qwen3", "qwen3")
    models = ("--model", f"a={tiny_llama}", "--model", f"b={other}")
    files = ("--files-dir", str(tmp_path_factory.mktemp("files")))
    with serving(None, *models, *files, "--max-num-seqs", "4", "--max-pass-tokens", "64") as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0, timeout=60) as client:
        yield client


def engine_of(server: Server, number: int) -> psutil.Process:
    """The engine process of a model, in the order in which they were started."""
    engines = [
        one
        for one in psutil.Process(server.pid).children()
        if any("host_main" in part for part in one.cmdline())
    ]
    return sorted(engines, key=lambda one: one.create_time())[number]


def test_memory_is_planned_and_said(server: Server) -> None:
    assert server.wait_for("2 models take .* GiB of weights and .* GiB of KV")
    assert server.wait_for("The model b is ready after")


def test_each_model_answers_and_its_receipt_replays(server: Server, client: openai.OpenAI) -> None:
    prints, receipts = [], {}
    for name in ("a", "b"):
        extra = {"deterministic": True, "return_receipt": True}
        answer = client.completions.create(model=name, **ASKED, extra_body=extra).model_dump()
        assert answer["model"] == name
        prints.append(answer["system_fingerprint"])
        receipts[name] = answer["holdfast"]["receipt"]
    assert prints[0] != prints[1]
    assert server.post("/v1/replay", {"model": "b", "receipt": receipts["b"]}).json()["same"]
    other = server.post("/v1/replay", {"model": "a", "receipt": receipts["b"]}).json()
    assert not other["compared"] and other["fingerprint_differences"]


def test_death_of_one_engine_leaves_the_other_serving(server: Server, client: openai.OpenAI) -> None:
    before = client.completions.create(model="b", **ASKED).choices[0].text
    with httpx.stream(
        "POST", f"{server.url}/v1/completions", json={**LONG, "model": "a"}, timeout=60
    ) as stream:
        lines = stream.iter_lines()
        next(lines)
        engine_of(server, 1).kill()
        server.wait_for("the engine process died .*model=b")
        assert client.completions.create(model="a", **ASKED).model == "a"
        assert server.get("/health").json()["models"]["b"]["status"] == "restarting"
        rest = [one for one in lines if one]
    assert rest[-1] == "data: [DONE]" and not any('"error"' in one for one in rest)
    assert client.completions.create(model="b", **ASKED).choices[0].text == before
    health = server.get("/health").json()
    assert health["status"] == "ok" and health["models"]["b"]["restarts"] == 1
    assert "restarts" not in health["models"]["a"]
