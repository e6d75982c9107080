"""Wrong settings, grammars, devices and models are refused before torch is imported.

All commands run in one child process, which reports after each whether torch is imported. That is
the reason why the answer is fast, and unlike a time it does not depend on the machine.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_CHILD = """
import json, sys
from typer.testing import CliRunner
from holdfast.cli.main import app

results = []
for arguments in json.load(sys.stdin):
    result = CliRunner().invoke(app, arguments, input="")
    results.append([result.exit_code, result.output, repr(result.exception), "torch" in sys.modules])
print(json.dumps(results))
"""

NO_MODEL = "there is no folder or .gguf file"
NO_GPU = "device is cuda, but"


def _cases(folder: Path) -> list[tuple[list[str], str]]:
    """Arguments, and a part of the message."""
    unknown = folder / "unknown"
    unknown.mkdir()
    unknown.joinpath("config.json").write_text('{"model_type": "gpt_neox"}')
    receipt = folder / "receipt.json"
    receipt.write_text('{"format": 1}')
    missing = str(folder / "missing")
    return [
        (["generate", "-t", "-1", "Hi"], "temperature must be"),
        (["generate", "--dtype", "int3", "Hi"], "dtype must be"),
        (["generate", "--device", "cuda", "Hi"], NO_GPU),
        (["generate", "--device", "cuda", "--kernels", "c", "Hi"], "kernels c are for a CPU"),
        (["generate", "--regex", "(", "Hi"], "the regular expression cannot be used: unclosed group"),
        (["generate", "-m", missing, "Hi"], NO_MODEL),
        (["generate", "-m", str(unknown), "Hi"], "the model's architecture is gpt_neox"),
        (["generate", "-m", "coin", "--max-model-len", "9999999", "Hi"], "max_model_len is 9999999"),
        (
            ["generate", "-m", "coin", "-n", "9999999", "Hi", "--chat"],
            "max_tokens is 9999999, and the context",
        ),
        (["generate", "-m", "coin", "--stop-token-id", "629000", "Hi"], "token id 629000 is not in"),
        (["generate", "-m", "coin", "-d", "--determinism", "off", "Hi"], "with determinism off"),
        (["generate", "-m", "coin", "--receipt-key", missing, "Hi"], missing),
        (["generate", "-m", "gpt-9", "--load-format", "dummy", "Hi"], "gpt-9"),
        (["chat", missing], NO_MODEL),
        (["serve", missing], NO_MODEL),
        (["serve", "--port", "99999"], "port must be"),
        (["score", "a", "b", "-m", missing], NO_MODEL),
        (["replay", missing], "there is no receipt"),
        (["replay", str(receipt)], "receipt"),
        (["certify", missing], NO_MODEL),
        (["certify", "--shapes", "gpt-9"], "gpt-9"),
        (["eval", "thinking", missing], "there is no model folder"),
        (["eval", "thinking", "coin", "--task", "chess"], "there is no task 'chess'"),
        (["eval", "thinking", "coin", "--device", "cuda"], NO_GPU),
        (["bench", "determinism", missing], NO_MODEL),
    ]


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[list[str], str, list[object]]]:
    cases = _cases(tmp_path_factory.mktemp("feedback"))
    done = subprocess.run(
        [sys.executable, "-c", _CHILD],
        input=json.dumps([arguments for arguments, _ in cases]),
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "400"},
        capture_output=True,
        text=True,
        check=True,
    )
    results = json.loads(done.stdout)
    return [(*case, result) for case, result in zip(cases, results, strict=True)]


def test_wrong_settings_are_refused_with_code_2_and_the_reason(refusals):
    wrong = [
        (arguments, code, output, exception)
        for arguments, message, (code, output, exception, _) in refusals
        if code != 2 or message not in " ".join(output.split())
    ]
    assert wrong == []


def test_refusals_import_no_torch(refusals):
    assert [arguments for arguments, _, result in refusals if result[3]] == []
