"""The commands in docs/receipts.md that check a receipt without Holdfast."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import SamplingParams
from holdfast.receipts.receipt import redact
from holdfast.receipts.signing import SigningKey
from support.documents import ROOT, blocks_of
from support.receipts import receipt_of, resealed

DOCUMENT = ROOT / "docs" / "receipts.md"
KEY = SigningKey.generate()
PARAMS = SamplingParams(
    deterministic=True,
    temperature=0.7,
    top_p=1e-5,
    min_p=1e-7,
    repetition_penalty=1.1,
    stop=["dög\n", "\u20ac"],
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "public-key.pem").write_text(KEY.public_key.pem)
    (tmp_path / "check.py").write_text(block("python"))
    return tmp_path


def block(language: str) -> str:
    """The last block in this language."""
    return blocks_of(DOCUMENT, language)[-1].text


def run(folder: Path, receipt: dict[str, Any], *command: str) -> "subprocess.CompletedProcess[str]":
    (folder / "receipt.json").write_text(json.dumps(receipt, indent=1))
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


def test_script_accepts_and_refuses_what_holdfast_does(folder: Path) -> None:
    script = (sys.executable, "check.py", "receipt.json", "public-key.pem")
    whole = receipt_of(PARAMS, key=KEY)
    for good in (whole, redact(whole)):
        done = run(folder, good, *script)
        assert done.stdout == "sealed and signed\n", done.stderr
    assert "AssertionError" in run(folder, {**whole, "seed": "12"}, *script).stderr
    assert "InvalidSignature" in run(folder, resealed(whole, seed="12"), *script).stderr


@pytest.mark.skipif(
    not (shutil.which("openssl") and shutil.which("jq")), reason="openssl or jq is not installed"
)
def test_signature_is_checked_with_openssl(folder: Path) -> None:
    if not re.match(r"OpenSSL [3-9]", run(folder, {}, "openssl", "version").stdout):
        pytest.skip("this openssl is older than 3")
    whole = receipt_of(PARAMS, key=KEY)
    done = run(folder, whole, "sh", "-ec", block("sh"))
    assert (done.returncode, done.stdout.strip()) == (0, "Signature Verified Successfully"), done.stderr
    assert run(folder, resealed(whole, seed="12"), "sh", "-ec", block("sh")).returncode != 0
