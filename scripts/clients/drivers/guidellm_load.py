"""guidellm: a load of concurrent streams."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from checks import MAX_TOKENS, PROMPTS, Target

CLIENT = "guidellm"
COMMAND = Path(sys.executable).with_name("guidellm")
REQUESTS = 12


def _run(target: Target, route: str) -> list[dict[str, Any]]:
    """The successful requests of one run."""
    backend = f"kind=openai_http,target={target.url},model={target.model},request_format={route}"
    with tempfile.TemporaryDirectory() as folder:
        data, report = Path(folder, "prompts.jsonl"), Path(folder, "report.json")
        rows = [{"prompt": PROMPTS[number % len(PROMPTS)]} for number in range(REQUESTS)]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        done = subprocess.run(
            [
                COMMAND,
                "run",
                "--backend",
                f"{backend},max_tokens={MAX_TOKENS}",
                "--profile",
                "kind=concurrent,streams=4",
                "--constraint",
                f"kind=max_requests,count={REQUESTS}",
                "--data",
                f"kind=json_file,path={data}",
                "--output",
                f"kind=json,path={report}",
                "--disable-console",
            ],
            env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": folder},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        (benchmark,) = json.loads(report.read_text())["benchmarks"]
    assert not benchmark["requests"]["errored"], benchmark["requests"]["errored"]
    return list(benchmark["requests"]["successful"])


def _check(target: Target, route: str) -> None:
    requests = _run(target, route)
    assert len(requests) == REQUESTS
    answers = {(one["request_args"], one["output"]) for one in requests}
    assert len(answers) == len(PROMPTS), f"{len(answers)} answers to {len(PROMPTS)} prompts: {answers}"


def check_chat(target: Target) -> None:
    """4 streams of chat completions: one answer per prompt"""
    _check(target, "/v1/chat/completions")


def check_completions(target: Target) -> None:
    """4 streams of completions: one answer per prompt"""
    _check(target, "/v1/completions")
