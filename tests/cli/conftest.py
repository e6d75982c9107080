"""A tiny model for the command line, and the command line as a function."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdfast.cli.main import app
from support.tiny import tiny_model

Holdfast = Callable[..., Result]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_model(tmp_path_factory.mktemp("models") / "tiny", "llama"))


@pytest.fixture
def holdfast() -> Holdfast:
    """`holdfast("generate", "Hello")`, in this process."""

    def call(*arguments: str | Path, stdin: str | None = None) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)

    return call
