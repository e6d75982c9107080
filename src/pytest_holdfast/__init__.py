"""A pytest plugin: a deterministic model in a test run, and its answers as snapshots.

    pytest --holdfast                     start one server; compare its answers with the recorded ones
    pytest --holdfast --holdfast-update   record them anew

Without the option nothing else is imported, and tests that take the fixture are skipped.
"""

from collections.abc import Iterator
from typing import Any

import pytest

_SESSION = "holdfast-session"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("holdfast", "a deterministic model in tests")
    group.addoption(
        "--holdfast", action="store_true", help="start a Holdfast server for the tests that need one"
    )
    group.addoption("--holdfast-update", action="store_true", help="record the answers of these tests anew")
    parser.addini(
        "holdfast_args", "what `holdfast serve` is started with: a model, options", type="args", default=[]
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--holdfast"):
        from pytest_holdfast.session import Session

        config.pluginmanager.register(Session(config), _SESSION)


@pytest.fixture
def holdfast(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Give the address of a model, `base_url`, and an OpenAI `client` of it. What it answers in this test is
    compared with what it answered when the test was recorded."""
    session = request.config.pluginmanager.get_plugin(_SESSION)
    if session is None:
        pytest.skip("run pytest with --holdfast")
    with session.recording(request.node) as recording:
        yield recording
