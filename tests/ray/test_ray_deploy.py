"""The documented application works with `serve deploy`, behind Ray's own proxy."""

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
import yaml
from openai import OpenAI

from support.ray_cluster import ROOT, end

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("ray")]
pytest.importorskip("ray", reason="Ray is not installed: pip install 'holdfast[ray]'")
PORT, HEAD, DASHBOARD = 28000, 27379, 28265
PATIENCE = 120.0


def documented(tiny_llama: Path, folder: Path) -> Path:
    """The documented file, with another model and port."""
    text = (ROOT / "docs" / "holdfast-ray.yaml").read_text()
    config = yaml.safe_load(text)
    config["http_options"]["port"] = PORT
    (application,) = config["applications"]
    application["args"].update(model=str(tiny_llama), served_model_name="tiny", num_threads=1)
    path = folder / "application.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def wait_ready(url: str) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        assert time.monotonic() < until, "the application does not answer"
        time.sleep(0.5)


def test_documented_file_is_deployed(tiny_llama: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    ray = (sys.executable, "-m", "ray.scripts.scripts")
    head = subprocess.Popen(
        [
            *(*ray, "start", "--head", "--block", f"--port={HEAD}", "--num-cpus=8", "--num-gpus=0"),
            *(f"--dashboard-port={DASHBOARD}", "--object-store-memory=80000000", "--disable-usage-stats"),
        ],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=tmp_path,
    )  # fmt: skip
    try:
        assert head.stdout is not None and any("runtime started" in line for line in head.stdout)
        address = ("--address", f"http://127.0.0.1:{DASHBOARD}")
        path = documented(tiny_llama, tmp_path)
        deployed = subprocess.run(
            [sys.executable, "-c", "from ray.serve.scripts import cli; cli()", "deploy", str(path), *address],
            env=environment, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert deployed.returncode == 0, deployed.stderr
        url = f"http://127.0.0.1:{PORT}"
        wait_ready(url)
        client = OpenAI(base_url=f"{url}/v1", api_key="unused")
        asked = {"model": "tiny", "prompt": "hello", "max_tokens": 8, "seed": 3, "temperature": 1.0}
        answers = {
            client.completions.create(**asked, extra_body={"deterministic": True}).choices[0].text
            for _ in range(10)
        }
        streamed = client.completions.create(**asked, stream=True, extra_body={"deterministic": True})
        assert answers == {"".join(chunk.choices[0].text for chunk in streamed if chunk.choices)}
        assert len(httpx.get(f"{url}/health").json()["replicas"]) == 2
    finally:
        end(head)
