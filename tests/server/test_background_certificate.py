"""A server without a certificate answers at once, verified, and shows when it is certified."""

import time
from pathlib import Path

import pytest

from support.serving import serving


@pytest.mark.long
def test_health_shows_the_switch_and_answers_keep_their_bits(tiny_llama: Path, tmp_path: Path) -> None:
    environment = {"HOLDFAST_CACHE_DIR": str(tmp_path), "HOLDFAST_CERTIFICATION": "background"}
    body = {"prompt": "the dog", "max_tokens": 12, "temperature": 0, "logprobs": 1, "deterministic": True}
    states: list[str] = []
    with serving(tiny_llama, "--dtype", "fp32", environment=environment) as server:
        first = server.post("/v1/completions", body).json()["choices"][0]
        until = time.monotonic() + 120
        while time.monotonic() < until and states[-1:] != ["certified"]:
            states.append(server.get("/health").json()["certificate"]["state"])
            time.sleep(0.02)
        last = server.post("/v1/completions", body).json()["choices"][0]
        certificate = server.get("/v1/certificate").json()
    assert states[0] == "certifying" and states[-1] == "certified"
    assert (first["text"], first["logprobs"]) == (last["text"], last["logprobs"])
    assert certificate["certificate"]["sizes"] and certificate["state"]["state"] == "certified"
