"""One test run: the server, and for each test the answers it got beside those that were recorded.

    tests/test_app.py
    tests/__holdfast__/test_app/test_greeting.json     requests, texts and receipts, in order

Under pytest-xdist the controller runs the server, and every worker has a proxy.
"""

import json
import os
import re
import warnings
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import httpx
import pytest

from pytest_holdfast.compare import describe_differences
from pytest_holdfast.server import Exchange, Proxy, ServerProcess


class Recording:
    """The model as one test sees it, and what it answered."""

    def __init__(self, port: int, file: Path) -> None:
        self.base_url = f"http://127.0.0.1:{port}/v1"
        self.file = file
        self.exchanges: list[Exchange] = []

    @cached_property
    def client(self) -> Any:
        """An `openai.OpenAI` of this model."""
        from openai import OpenAI

        return OpenAI(base_url=self.base_url, api_key="none", max_retries=0)

    def token_text(self, token_id: int) -> str:
        answer = httpx.post(self.base_url.replace("/v1", "/detokenize"), json={"tokens": [token_id]})
        return str(answer.json()["prompt"])

    def save(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        self.file.write_text(json.dumps(self.exchanges, indent=1, ensure_ascii=False) + "\n")

    def compare(self) -> str:
        """Return what differs from the recorded answers, "" if nothing does."""
        if not self.file.exists():
            return f"no answers are recorded in {self.file}: run pytest --holdfast --holdfast-update" * bool(
                self.exchanges
            )
        lines, notes = describe_differences(
            json.loads(self.file.read_text()), self.exchanges, self.token_text
        )
        for note in notes:
            warnings.warn(pytest.PytestWarning(note), stacklevel=1)
        if lines:
            lines.append(f"If all is as it should be, record it: --holdfast-update writes {self.file}")
        return "\n".join(lines)


class Session:
    """The hooks of a run with `--holdfast`."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._recordings: dict[str, Recording] = {}
        self._current: Recording | None = None
        given: dict[str, str] = getattr(config, "workerinput", {})  # of a worker of pytest-xdist
        self._server = None if given else ServerProcess(config.getini("holdfast_args"))
        self._url = given["holdfast_url"] if self._server is None else self._server.url

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Tell a worker of pytest-xdist where the server is."""
        assert self._server is not None
        self._server.wait_ready()
        node.workerinput["holdfast_url"] = self._url

    def pytest_unconfigure(self) -> None:
        if self._server is not None:
            self._server.stop()

    @cached_property
    def _proxy(self) -> Proxy:
        if self._server is not None:
            self._server.wait_ready()
        return Proxy(self._url, self._keep)

    def _keep(self, exchange: Exchange) -> None:
        if self._current is not None:  # else a thread of a test that has ended asked
            self._current.exchanges.append(exchange)

    @contextmanager
    def recording(self, item: pytest.Item) -> Iterator[Recording]:
        names = [item.path.stem, *(one.name for one in item.listchain() if isinstance(one, pytest.Class))]
        name = re.sub(r"[^\w.,=+-]", "_", item.name)
        file = item.path.parent.joinpath("__holdfast__", *names, f"{name}.json")
        self._current = self._recordings[item.nodeid] = Recording(self._proxy.server_port, file)
        yield self._current
        self._current = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        """Compare the answers after the test. If it failed, its report shows the differences, too."""
        try:
            result = yield
        except BaseException:
            recording = self._recordings.pop(item.nodeid, None)
            if recording is not None and (differences := recording.compare()):
                item.add_report_section("call", "holdfast", differences)
            raise
        recording = self._recordings.pop(item.nodeid, None)
        if recording is None:
            return result
        is_new = not recording.file.exists() and not os.environ.get("CI")
        if self._config.getoption("--holdfast-update") or is_new:
            recording.save()
        elif differences := recording.compare():
            pytest.fail(differences, pytrace=False)
        return result
