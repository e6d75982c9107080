"""What a user sees of the package: its names, and no torch before it is needed."""

import subprocess
import sys

import pytest

import holdfast


def test_dir_shows_the_public_names() -> None:
    assert set(holdfast.__all__) <= set(dir(holdfast))
    assert not [name for name in dir(holdfast) if not name.startswith("__") and name not in holdfast.__all__]
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'llm'"):
        holdfast.llm  # noqa: B018


def test_listing_the_names_imports_no_torch() -> None:
    program = "import sys, holdfast; dir(holdfast); holdfast.SamplingParams(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
