"""How a server starts and ends: signals, exit codes, what running requests get. The engine has no model."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError, ModelError
from holdfast.server.config import ModelConfig, ServerConfig
from holdfast.server.main import run
from holdfast.text.chat_template import text_parts
from holdfast.text.tokenizer import open_tokenizer
from support.fake_engine import Prompt
from support.serving import Server, serving
from support.streams import PATIENCE, Client

FAKE = "fake_engine.py"


def stream(server: Server) -> Client:
    """A stream that continues until the engine completes it."""
    return Client(server, prompt=[Prompt.STREAM], stream=True).wait_first()


@pytest.fixture
def server(request: pytest.FixtureRequest, tiny_llama: Path) -> Iterator[Server]:
    with serving(tiny_llama, *getattr(request, "param", ()), engine=FAKE) as server:
        yield server


def test_sigterm_refuses_new_requests_and_finishes_running_ones(server: Server) -> None:
    streaming, waiting = stream(server), Client(server, prompt=[Prompt.STREAM])
    engine = server.engine_pid
    while server.metric("holdfast_num_requests_running") < 2:
        pass
    server.process.send_signal(signal.SIGTERM)
    server.wait_for("draining: 2 requests")
    refused = server.post("/v1/completions", {"prompt": [Prompt.ANSWER]})
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "shutting_down"
    assert int(refused.headers["retry-after"]) > 0 and refused.headers["connection"] == "close"
    health = server.get("/health")
    assert health.status_code == 503 and health.json() == {"status": "draining"}
    assert not streaming.is_over and not waiting.is_over
    os.kill(engine, signal.SIGUSR1)
    assert streaming.wait().is_done and not streaming.error and streaming.text.endswith("yes")
    assert waiting.wait().status == 200 and waiting.text.endswith("yes")
    assert server.process.wait(PATIENCE) == 0
    assert not psutil.pid_exists(engine)
    server.wait_for("Stopped.")
    server.wait_for("status=200 .*engine_ids=.*1")  # the access log names the request in the engine
    assert "Traceback" not in server.text


@pytest.mark.parametrize("server", [("--drain-timeout", "0.2")], indirect=True)
def test_drain_timeout_ends_requests_with_an_error(server: Server) -> None:
    streaming, waiting = stream(server), Client(server, prompt=[Prompt.STREAM])
    while server.metric("holdfast_num_requests_running") < 2:
        pass
    assert server.stop(signal.SIGINT) == 0
    assert streaming.wait().error["code"] == "shutting_down" and streaming.is_done
    assert waiting.wait().status == 503 and waiting.error["code"] == "shutting_down"
    assert "Traceback" not in server.text


@pytest.mark.parametrize("server", [("--drain-timeout", "600")], indirect=True)
def test_second_signal_ends_at_once(server: Server) -> None:
    """Even if the engine hangs."""
    streaming = stream(server)
    engine = server.engine_pid
    os.kill(engine, signal.SIGSTOP)
    server.process.send_signal(signal.SIGTERM)
    server.wait_for("draining: 1 request")
    assert server.stop() == 0
    assert streaming.wait().error["code"] == "shutting_down"
    assert not psutil.pid_exists(engine)


def test_signals_and_probes_while_the_engine_loads(tiny_llama: Path) -> None:
    """SIGHUP without a key file changes nothing, and the log does not name probes."""
    with serving(tiny_llama, engine=FAKE, engine_settings={"start": "loads"}, ready=False) as server:
        server.wait_listening()
        refused = server.post("/v1/completions", {"prompt": [Prompt.ANSWER]})
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "engine_not_ready"
        assert server.get("/health").json()["status"] == "starting"
        server.process.send_signal(signal.SIGHUP)
        server.wait_for("warning .*SIGHUP is ignored")
        assert server.get("/version").status_code == 200
        server.wait_for("route=/version")
        assert "/health" not in server.text
        engine = server.engine_pid
        assert server.stop() == 0
        assert not psutil.pid_exists(engine) and "Traceback" not in server.text


def test_engine_that_keeps_dying_ends_the_server(tiny_llama: Path) -> None:
    with serving(tiny_llama, engine=FAKE, engine_settings={"start": "dies"}, ready=False) as server:
        assert server.process.wait(PATIENCE) == 1
        server.wait_for("exit code 3.*, the 5th time within 120 seconds; giving up")
        assert server.text.count("starting it again") == 4 and "Traceback" not in server.text


def test_refused_configuration_ends_the_server(tiny_llama: Path) -> None:
    with serving(tiny_llama, engine=FAKE, engine_settings={"start": "fails"}, ready=False) as server:
        assert server.process.wait(PATIENCE) == 2
        server.wait_for("this cannot be loaded")
        assert "starting it again" not in server.text and "Traceback" not in server.text


def test_engine_with_another_tokenizer_answers_nothing(tiny_llama: Path) -> None:
    """As after a folder was replaced while it was served, and the engine was started again."""
    parts = {**text_parts(open_tokenizer(tiny_llama)), "tokenizer": "another"}
    with serving(tiny_llama, engine=FAKE, engine_settings={"parts": parts}) as server:
        server.wait_for("the engine has another tokenizer than this server read; restart the server")
        refused = server.post("/v1/completions", {"prompt": [Prompt.ANSWER]})
        assert refused.status_code == 503 and "another tokenizer" in refused.json()["error"]["message"]


def test_bad_address_fails_before_loading(
    tmp_path: Path, tiny_llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.main.configure_logging", lambda *_, **__: None)
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        run(ServerConfig(port=0), [ModelConfig(EngineConfig(model=str(tmp_path)))])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}"):
            run(ServerConfig(port=port), [ModelConfig(EngineConfig(model=str(tiny_llama)))])


def listening_port(pid: int) -> int | None:
    """The port on which a process listens, for one that cannot say it."""
    connections = psutil.Process(pid).net_connections("tcp")
    return next((one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN), None)


def test_unwritable_stdout_does_not_end_the_server(tiny_llama: Path) -> None:
    """As on a full disk or after the terminal closed."""
    program = [sys.executable, str(Path(__file__).parents[1] / "support" / "serve_with.py")]
    engine = str(Path(__file__).parents[1] / "support" / FAKE)
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            [*program, engine, str(tiny_llama), "--port", "0"], stdout=full, stderr=full
        )
    try:
        for _ in range(int(PATIENCE / 0.05)):
            assert process.poll() is None
            port = listening_port(process.pid)
            if port is not None and httpx.get(f"http://127.0.0.1:{port}/health").status_code == 200:
                break
            signal.sigtimedwait((), 0.05)
        body = {"prompt": [Prompt.ANSWER]}
        assert httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body).status_code == 200
        process.terminate()
        assert process.wait(PATIENCE) in (0, 120)  # Python's own, where stderr cannot be flushed
    finally:
        process.kill()
        process.wait()


def test_sighup_reads_keys_and_limits_again(tiny_llama: Path, tmp_path: Path) -> None:
    keys, config = tmp_path / "keys.toml", tmp_path / "server.yaml"

    def write(text: str, answer: str) -> None:
        keys.write_text(text)
        server.process.send_signal(signal.SIGHUP)
        server.wait_for(answer)

    def status(key: str) -> int:
        return server.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).status_code

    def with_two_stops() -> int:
        body = {"prompt": [Prompt.ANSWER], "stop": ["a", "b"]}
        return server.post("/v1/completions", body, headers={"X-Api-Key": "secret-a"}).status_code

    keys.write_text("[[tenant]]\nname = 'alice'\nkey = 'secret-a'")
    config.write_text(f"max-stops: 1\nkey-file: {keys}")
    with serving(tiny_llama, "--config", str(config), engine=FAKE) as server:
        assert with_two_stops() == 400
        config.write_text(f"max-stops: 2\nkey-file: {keys}\nmax-prompts: none")
        write(keys.read_text(), "keys and limits stay as they are: .*line 3")
        assert with_two_stops() == 400
        config.write_text(f"max-stops: 2\nkey-file: {keys}\nport: 1")
        write(keys.read_text(), "read the keys again: 1 tenants")
        server.wait_for("read at the next start only: port")
        assert with_two_stops() == 200
        config.unlink()
        os.mkfifo(config)
        write(keys.read_text(), "is a pipe, which is read only once")
        config.unlink()
        config.write_text(f"max-stops: 2\nkey-file: {keys}")
        write(
            "[[tenant]]\nname = 'bob'\nkey = secret-b",
            "keys and limits stay as they are: .*keys.toml.*line 3",
        )
        assert (status("secret-a"), status("secret-b")) == (200, 401)
        write("[[tenant]]\nname = 'bob'\nkey = 'secret-b'", "read the keys again: 1 tenants")
        server.wait_for("read the keys again", times=2)
        assert (status("secret-a"), status("secret-b")) == (401, 200)
        server.wait_for("status=200 .*tenant=bob")
        assert "secret-" not in server.text
