"""The `llm` command, with a model in extra-openai-models.yaml."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from checks import MAX_TOKENS, TEMPERATURE, Target

CLIENT = "llm"
COMMAND = Path(sys.executable).with_name("llm")


@contextmanager
def _folder(target: Target) -> Iterator[dict[str, str]]:
    """An environment whose llm knows the server's model as `holdfast`."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "extra-openai-models.yaml").write_text(
            f"- model_id: holdfast\n  model_name: {target.model}\n  api_base: {target.base_url}\n"
            "  supports_schema: true\n  supports_tools: true\n"
        )
        yield {**os.environ, "LLM_USER_PATH": folder}


def _llm(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [COMMAND, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_prompt(target: Target) -> None:
    """llm -m: streamed, not streamed, with a system prompt"""
    settings = ["-m", "holdfast", "-o", "max_tokens", "8", "-s", "Be brief."]
    with _folder(target) as environment:
        streamed = _llm(environment, "Name three rivers of Europe.", *settings)
        assert streamed == _llm(environment, "Name three rivers of Europe.", "--no-stream", *settings)


def check_schema(target: Target) -> None:
    """llm --schema"""
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "is_port": {"type": "boolean"}},
        "required": ["name", "is_port"],
    }
    with _folder(target) as environment:
        text = _llm(environment, "-m", "holdfast", "--schema", json.dumps(schema), "Describe Genoa.")
    assert set(json.loads(text)) == {"name", "is_port"}


def check_tools(target: Target) -> None:
    """llm --functions"""
    code = "def get_weather(city: str) -> str:\n    'The weather in a city.'\n    return 'rain'\n"
    with _folder(target) as environment:
        settings = ["-m", "holdfast", "-o", "max_tokens", "16"]
        assert _llm(environment, *settings, "--functions", code, "How is the weather in Genoa?").strip()


def ask(target: Target, prompt: str, seed: int) -> str:
    options = {"temperature": TEMPERATURE, "max_tokens": MAX_TOKENS, "seed": seed}
    flags = [part for name, value in options.items() for part in ("-o", name, str(value))]
    with _folder(target) as environment:
        return _llm(environment, "-m", "holdfast", *flags, prompt).removesuffix("\n")
