"""The documentation's clients ask a server with a tiny model: a page's blocks, one after the other."""

import time
from pathlib import Path
from typing import Any

import pytest

from support.documents import ROOT, SERVER_PAGES, blocks_of, is_python_run_elsewhere
from support.serving import Server


@pytest.mark.parametrize("page", SERVER_PAGES)
def test_code_blocks_run(
    page: str,
    deterministic_server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda seconds: sleep(seconds / 20))
    monkeypatch.chdir(tmp_path)
    if page == "docs/batches.md":
        Path("in.jsonl").write_text(blocks_of(ROOT / page, "json")[0].text)
    names: dict[str, Any] = {"__name__": "document"}
    for block in blocks_of(ROOT / page, "python"):
        if not is_python_run_elsewhere(block):
            text = block.text.replace("http://127.0.0.1:8000", deterministic_server.url)
            text = text.replace('"smollm2"', '"tiny"')
            exec(compile("\n" * block.line + text, page, "exec"), names)
    printed = capsys.readouterr().out
    assert {"docs/batches.md": '"custom_id":"q1"', "docs/http-api.md": "certified"}.get(page, "") in printed
    close = getattr(names.get("client"), "close", None)
    assert close is not None
    close()
