"""A script ends with Python's status, however it leaves its engine."""

from pathlib import Path

import pytest

from support.endings import model_folder, run_scripts


@pytest.mark.parametrize(
    "endings",
    [("interrupt", "open_stream"), pytest.param(("async",), marks=pytest.mark.long)],
    ids=",".join,
)
def test_scripts_end_with_the_status_of_python(tmp_path: Path, endings: tuple[str, ...]) -> None:
    """While an engine computes; the other endings are tried on a GPU."""
    folder = model_folder(tmp_path / "model", num_hidden_layers=1)
    options = {"model": str(folder), "device": "cpu", "kv_memory": "8MiB", "num_threads": 1}
    found = run_scripts(endings, options, at_once=2, seconds=120)
    assert [one for one in found if not one.is_right] == []
    errors = {one.ending: one.errors for one in found}
    assert "interrupt" not in errors or "KeyboardInterrupt" in errors.pop("interrupt")
    assert {*errors.values()} == {""}
