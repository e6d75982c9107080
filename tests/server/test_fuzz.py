"""Fuzzes the server against its own OpenAPI document: every request, valid or not, gets a
documented response.

schemathesis generates the cases: first the boundary values of every field, then random ones, valid
and invalid. HOLDFAST_FUZZ_CASES sets the number of random cases for each operation. The
long form repeats the random cases with other seeds until there were HOLDFAST_FUZZ_TOTAL: generating
a case takes longer the more there were of the same seed. CONTRIBUTING.md says how to run it. A failure
prints the case as a curl command.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.serving import Server

TESTS = Path(__file__).parents[1]
IS_SHORT = "HOLDFAST_FUZZ_CASES" not in os.environ
CASES = os.environ.get("HOLDFAST_FUZZ_CASES", "4")
TOTAL = int(os.environ.get("HOLDFAST_FUZZ_TOTAL", "20000"))  # cases of the long form
ROUND_CASES = 60  # of each operation and seed of the long form
SEED = int(os.environ.get("HOLDFAST_FUZZ_SEED", "1"))
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance"),
    *("response_headers_conformance", "response_schema_conformance", "negative_data_rejection"),
    *("unsupported_method", "allow_header_conformance", "valid_response"),
)


# The chat routes share most fields with completions, and those of the other APIs become chat
# completions; a short run tests boundary values of completions only.
CHAT = """
[[operations]]
include-path = "/v1/chat/completions"
phases.coverage.enabled = false
"""
TRANSLATED = """
[[operations]]
include-path = "{path}"
phases.coverage.enabled = false
generation.max-examples = 4
"""
APIS = ("/v1/responses", "/v1/responses/input_tokens", "/v1/messages", "/v1/messages/count_tokens")
FILES = [f"/v1/{one}" for one in ("files", "files/{file_id}", "files/{file_id}/content", "batches")]
FILES += ["/v1/batches/{batch_id}", "/v1/batches/{batch_id}/cancel"]
SHORT = CHAT + "".join(TRANSLATED.replace("{path}", path) for path in (*APIS, "/v1/continue", *FILES))


ANSWERED = (
    *("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/score", "/tokenize", "/detokenize"),
    *APIS,
)


def test_every_response_is_documented(tiny_server: Server, tmp_path: Path) -> None:
    check(tiny_server, tmp_path, int(CASES), is_short=IS_SHORT)


@pytest.mark.long
def test_every_response_of_a_long_run_is_documented(tiny_server: Server, tmp_path: Path) -> None:
    num_cases = check(tiny_server, tmp_path, ROUND_CASES, is_short=False)
    seed = SEED
    while num_cases < TOTAL:
        seed += 1
        num_cases += check(tiny_server, tmp_path, ROUND_CASES, is_short=False, seed=seed, phases="fuzzing")
        print(f"{num_cases} cases in all")


def check(
    server: Server,
    folder: Path,
    num_examples: int,
    *,
    is_short: bool,
    seed: int = SEED,
    phases: str = "coverage,fuzzing",
) -> int:
    """Fuzz the server. Returns the number of cases."""
    report, said = fuzz(server.url, folder, num_examples, is_short=is_short, seed=seed, phases=phases)
    cases = report["test_cases"]
    print(f"{cases['generated']} cases in {report['running_time']:.0f} s")
    assert report["complete"] and report["operations"]["tested"] == report["operations"]["total"] >= 12, said
    assert not report["failures"] and not report["errors"] and report["exit_code"] == 0, said
    assert cases["generated"] >= 5 * num_examples
    for operation in ANSWERED:
        rates = report["valid_rates"][f"POST {operation}"].values()
        assert sum(rate["accepted"] for rate in rates), f"no case of {operation} was ever answered"
    assert server.get("/health").status_code == 200
    server.wait_idle()
    assert "Traceback" not in server.text
    return int(cases["generated"])


def fuzz(
    url: str, folder: Path, num_examples: int, *, is_short: bool, seed: int, phases: str
) -> tuple[dict[str, Any], str]:
    """schemathesis' report, and what it said."""
    path, config = folder / f"report{seed}.json", folder / "schemathesis.toml"
    config.write_text(SHORT if is_short else "")
    options = ["--max-examples", str(num_examples), "--seed", str(seed), "--phases", phases]
    options += ["--checks", ",".join(CHECKS), "--request-timeout", "60", "--report-json-path", str(path)]
    ended = subprocess.run(
        [
            sys.executable,
            "-m",
            "schemathesis.cli",
            f"--config-file={config}",
            "run",
            f"{url}/openapi.json",
            *options,
        ],
        cwd=folder,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "support.fuzz_hooks", "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert path.exists(), ended.stdout
    return json.loads(path.read_text()), ended.stdout
