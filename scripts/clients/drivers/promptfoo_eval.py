"""promptfoo, a Node program: `promptfoo eval` with a local configuration."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from checks import MAX_TOKENS, PROMPTS, TEMPERATURE, Target

CLIENT = "promptfoo"
FOLDER = Path(os.environ.get("PROMPTFOO_FOLDER", "."))  # where `npm install promptfoo` was run
OFFLINE = {
    "PROMPTFOO_DISABLE_TELEMETRY": "1",
    "PROMPTFOO_DISABLE_UPDATE": "1",
    "PROMPTFOO_DISABLE_REMOTE_GENERATION": "1",
}


def version() -> str:
    package = FOLDER / "node_modules" / "promptfoo" / "package.json"
    return str(json.loads(package.read_text())["version"])


def _configuration(target: Target, prompts: list[str], **settings: Any) -> dict[str, Any]:
    config = {"apiBaseUrl": target.base_url, "apiKey": "unused", **settings}
    return {
        "prompts": ["{{question}}"],
        "providers": [{"id": f"openai:chat:{target.model}", "config": config}],
        "tests": [{"vars": {"question": prompt}} for prompt in prompts],
    }


def _evaluate(configuration: dict[str, Any], *flags: str) -> list[str]:
    """The answers, in the order of the tests."""
    with tempfile.TemporaryDirectory() as folder:
        config, report = Path(folder, "promptfooconfig.json"), Path(folder, "report.json")
        config.write_text(json.dumps(configuration))
        done = subprocess.run(
            [
                FOLDER / "node_modules" / ".bin" / "promptfoo",
                "eval",
                "-c",
                config,
                "-o",
                report,
                "--no-cache",
                "--no-progress-bar",
                "--no-table",
                *flags,
            ],
            env={**os.environ, **OFFLINE, "PROMPTFOO_CONFIG_DIR": folder},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert report.exists(), (done.stdout + done.stderr)[-2000:]
        results = json.loads(report.read_text())["results"]["results"]
    assert not any(one.get("error") for one in results), results
    ordered = sorted(results, key=lambda one: (one["testIdx"], one["promptIdx"]))
    return [one["response"]["output"] for one in ordered]


def check_eval(target: Target) -> None:
    """promptfoo eval, repeated: one answer per prompt, one by one and four at once"""
    settings = {"temperature": TEMPERATURE, "max_tokens": 8, "seed": 7}
    configuration = _configuration(target, list(PROMPTS), **settings)
    alone = _evaluate(configuration, "--max-concurrency", "1")
    several = _evaluate(configuration, "--max-concurrency", "4", "--repeat", "2")
    assert len(alone) == len(PROMPTS) and len(several) == 2 * len(PROMPTS)
    assert set(several) == set(alone)


def ask(target: Target, prompt: str, seed: int) -> str:
    settings = {"temperature": TEMPERATURE, "max_tokens": MAX_TOKENS, "seed": seed}
    return _evaluate(_configuration(target, [prompt], **settings))[0]
