"""Model files that are made to hang the server: refused, or served within limits."""

import time
from pathlib import Path

import httpx
import pytest

from abuse.hostile_models import HOSTILE_MODELS
from support.serving import Server, serving

LOAD_SECONDS, ANSWER_SECONDS = 40.0, 15.0
PROMPTS = ("a" * 60, "x" * 40, "the dog")


@pytest.mark.long
@pytest.mark.parametrize("name", HOSTILE_MODELS)
def test_hostile_model_does_not_hang_the_server(name: str, tmp_path: Path) -> None:
    with serving(HOSTILE_MODELS[name](tmp_path), ready=False) as server:
        is_ready = wait(server)
        if not is_ready:
            assert server.process.returncode == 2 and "Traceback" not in server.text
            return
        for prompt in PROMPTS:
            response = httpx.post(
                f"{server.url}/v1/completions",
                json={"prompt": prompt, "max_tokens": 2},
                timeout=ANSWER_SECONDS,
            )
            assert response.status_code in (200, 400), response.text
            assert response.status_code == 200 or set(response.json()["error"]) == {
                "message",
                "type",
                "param",
                "code",
            }
        assert "panic" not in server.text and "Traceback" not in server.text


def wait(server: Server) -> bool:
    """Wait until the server is ready or has refused the model."""
    until = time.monotonic() + LOAD_SECONDS
    while server.process.poll() is None:
        if "Ready after" in server.text:
            server.wait_listening()
            return True
        assert time.monotonic() < until, f"neither ready nor refused:\n{server.text}"
        time.sleep(0.05)
    return False
