"""Several models in one server: how requests find theirs, and what one that loads or fails does to the others."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError, EngineStopped
from holdfast.server.app import make_app
from holdfast.server.config import ModelConfig, ServerConfig
from holdfast.server.ipc import engine_process
from holdfast.server.ipc.engine_port import EngineCallbacks
from holdfast.server.ipc.engine_process import EngineProcess
from holdfast.server.ipc.requests import RequestTable
from holdfast.server.served_models import ServedModels
from holdfast.server.tenants.directory import TenantDirectory
from support.fake_engine import Prompt

ENGINE = Path(__file__).parent.parent / "support" / "fake_engine.py"
ANSWER = {"prompt": [int(Prompt.ANSWER)]}
PATIENCE = 30.0

pytestmark = pytest.mark.anyio


def models_of(
    folder: Path, keys: tuple[str, ...] = (), files: Path | None = None, **starts: str
) -> ServedModels:
    """Models by name. files: where files and batches are kept. starts: what the engine process of each does."""
    config = ServerConfig(api_keys=keys, files_dir=None if files is None else str(files))
    commands = iter([(sys.executable, str(ENGINE), start) for start in starts.values()])

    def connect(server: ServerConfig, engine: EngineConfig, callbacks: EngineCallbacks) -> EngineProcess[Any]:
        requests = RequestTable(callbacks=callbacks)
        return EngineProcess(engine, callbacks, command=next(commands), requests=requests)

    models = [ModelConfig(EngineConfig(str(folder)), (name,)) for name in starts]
    return ServedModels(config, models, TenantDirectory(config), connect)


@asynccontextmanager
async def running(models: ServedModels) -> AsyncIterator[tuple[httpx.AsyncClient, "asyncio.Task[None]"]]:
    """A client, and the task that runs the engines, once the first model is ready."""
    task = asyncio.create_task(models.run())
    transport = httpx.ASGITransport(make_app(models))
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            async with asyncio.timeout(PATIENCE):
                while not models.frontends[0].engines.is_ready and not task.done():
                    await asyncio.sleep(0.01)
            yield client, task
    finally:
        await models.stop()
        with suppress(ConfigError, EngineStopped):
            await task
        models.close()


async def run_batch(client: httpx.AsyncClient, *bodies: dict[str, Any]) -> dict[str, Any]:
    """Return a batch of completions once it is completed."""
    url = "/v1/completions"
    lines = [
        {"custom_id": str(at), "method": "POST", "url": url, "body": one} for at, one in enumerate(bodies)
    ]
    content = "\n".join(map(json.dumps, lines))
    file = await client.post("/v1/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"})
    asked = {"input_file_id": file.json()["id"], "endpoint": url, "completion_window": "24h"}
    batch = (await client.post("/v1/batches", json=asked)).json()
    async with asyncio.timeout(PATIENCE):
        while batch["status"] != "completed":
            await asyncio.sleep(0.02)
            batch = (await client.get(f"/v1/batches/{batch['id']}")).json()
    return cast(dict[str, Any], batch)


def error_of(response: httpx.Response) -> dict[str, Any]:
    return cast(dict[str, Any], response.json()["error"])


async def test_request_goes_to_the_model_that_it_names(tiny_llama: Path) -> None:
    async with running(models_of(tiny_llama, a="ready", b="loads")) as (client, _):
        answer = await client.post("/v1/completions", json={**ANSWER, "model": "a"})
        assert answer.json()["model"] == "a" and answer.json()["choices"][0]["text"] == "yes"
        loading = await client.post("/v1/completions", json={**ANSWER, "model": "b"})
        assert loading.status_code == 503 and int(loading.headers["Retry-After"]) > 0
        assert error_of(loading)["message"] == "the model `b` is not ready yet; ask again"
        missing = await client.post("/v1/completions", json={**ANSWER, "model": "c"})
        assert missing.status_code == 404 and error_of(missing)["code"] == "model_not_found"
        assert "this server serves a, b" in error_of(missing)["message"]
        unnamed = await client.post("/v1/completions", json=ANSWER)
        assert unnamed.status_code == 400 and "serves a, b" in error_of(unnamed)["message"]
        listed = await client.get("/v1/models")
        assert [one["id"] for one in listed.json()["data"]] == ["a", "b"]
        assert (await client.get("/v1/models/b")).json()["root"] == "b"


async def test_server_is_healthy_while_one_model_answers(tiny_llama: Path) -> None:
    async with running(models_of(tiny_llama, a="ready", b="loads")) as (client, _):
        health = await client.get("/health")
        assert health.status_code == 200 and health.json()["status"] == "degraded"
        assert {name: one["status"] for name, one in health.json()["models"].items()} == {
            "a": "ok",
            "b": "starting",
        }
        assert (await client.get("/health?model=a")).json()["status"] == "ok"
        loading = await client.get("/health?model=b")
        assert loading.status_code == 503 and loading.json()["status"] == "starting"
        assert "Retry-After" in loading.headers


async def test_names_need_a_key_if_the_server_has_one(tiny_llama: Path) -> None:
    async with running(models_of(tiny_llama, ("key",), a="ready", bee="loads")) as (client, _):
        assert (await client.get("/health")).json() == {"status": "degraded"}
        assert (await client.get("/health?model=bee")).status_code == 503
        unknown = await client.get("/health?model=c")
        assert unknown.status_code == 404 and "bee" not in unknown.text
        assert (await client.get("/load?model=c")).status_code == 401


async def test_metrics_and_load_are_of_each_model(tiny_llama: Path) -> None:
    async with running(models_of(tiny_llama, a="ready", b="ready")) as (client, _):
        await client.post("/v1/completions", json={**ANSWER, "model": "a"})
        await client.post("/v1/completions", json={**ANSWER, "model": "c"})
        text = (await client.get("/metrics")).text
        name = "holdfast_generation_tokens_total"
        assert f'{name}{{deterministic="false",model="a"}} 1.0' in text
        assert f'{name}{{deterministic="false",model="b"}} 0.0' in text
        assert 'code="model_not_found",deterministic="unknown",model="unknown"} 1.0' in text
        assert text.count(f"# TYPE {name} counter") == 1
        assert 'holdfast_tenant_requests_total{tenant="anonymous"} 2.0' in text
        assert (await client.get("/load")).json() == {"server_load": 0}
        assert (await client.get("/load?model=b")).json() == {"server_load": 0}
        assert (await client.get("/load?model=c")).status_code == 404


async def test_model_that_dies_too_often_leaves_the_others_served(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(engine_process, "MAX_DEATHS", 1)
    models = models_of(tiny_llama, files=tmp_path, a="ready", b="dies")
    async with running(models) as (client, task):
        async with asyncio.timeout(PATIENCE):
            while not models.find("b").is_given_up:
                await asyncio.sleep(0.01)
        assert "the other models are served on" in caplog.text
        failed = await client.post("/v1/completions", json={**ANSWER, "model": "b"})
        assert failed.status_code == 503 and failed.headers["Retry-After"] == "60"
        assert error_of(failed)["message"].startswith("the model `b` failed too often")
        answer = await client.post("/v1/completions", json={**ANSWER, "model": "a"})
        assert answer.status_code == 200
        assert (await client.get("/health?model=b")).json()["status"] == "failed"
        batch = await run_batch(client, {**ANSWER, "model": "a"}, {**ANSWER, "model": "b"})
        assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
        cast(EngineProcess[Any], models.find("a").engines).port.kill()
        with pytest.raises(EngineStopped):  # none is left
            await asyncio.wait_for(task, PATIENCE)


async def test_model_that_cannot_be_started_is_named(tiny_llama: Path) -> None:
    async with running(models_of(tiny_llama, a="ready", b="fails")) as (_, task):
        with pytest.raises(ConfigError, match="the model `b`: "):
            await asyncio.wait_for(task, PATIENCE)


def test_single_model_needs_no_name(tiny_llama: Path) -> None:
    models = models_of(tiny_llama, a="ready")
    assert models.find(None) is models.find("a") is models.frontends[0]
    models.close()
