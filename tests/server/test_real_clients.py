"""The short form of `scripts/clients/run.py`: clients that are installed for development, against a
server whose requests are all deterministic. The drivers are those of the script."""

import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from support.serving import Server

SCRIPTS = Path(__file__).parents[2] / "scripts" / "clients"
DRIVERS = ("openai_sdk", "anthropic_sdk")
NEED_LONGER_CONTEXT = {"check_tools", "check_responses_structured_and_tools"}


@pytest.fixture(scope="module")
def checks() -> Iterator[ModuleType]:
    """The module that runs drivers, with its folder importable."""
    sys.path.insert(0, str(SCRIPTS))
    try:
        import checks

        yield checks
    finally:
        sys.path.remove(str(SCRIPTS))
        for name in [name for name in sys.modules if name == "checks" or name.split(".")[0] == "drivers"]:
            del sys.modules[name]


@pytest.mark.parametrize("name", DRIVERS)
def test_client_passes_its_checks(checks: ModuleType, deterministic_server: Server, name: str) -> None:
    target = checks.Target(deterministic_server.url, "tiny")
    found = [one for one in checks.checks_of(checks.load(name)) if one.name not in NEED_LONGER_CONTEXT]
    assert len(found) >= 5
    for one in found:
        one.run(target)


def test_clients_at_once_get_one_answer_per_prompt_and_seed(
    checks: ModuleType, deterministic_server: Server
) -> None:
    target = checks.Target(deterministic_server.url, "tiny")
    drivers = [checks.load(name) for name in DRIVERS]
    with ThreadPoolExecutor(2 * len(drivers)) as pool:
        several = pool.map(lambda driver: list(checks.answers_of(driver, target)), 2 * drivers)
        answers: dict[tuple[str, int], set[str]] = defaultdict(set)
        ways: set[str] = set()
        for answer in (one for some in several for one in some):
            answers[answer["prompt"], answer["seed"]].add(answer["text"])
            ways.add(answer["way"])
    assert len(answers) == len(checks.PROMPTS) * len(checks.SEEDS) and len(ways) == 3
    assert all(len(texts) == 1 for texts in answers.values()), answers
    assert len({text for texts in answers.values() for text in texts}) > 1


def test_a_failed_check_is_reported(checks: ModuleType) -> None:
    driver = ModuleType("driver")

    def check_nothing(target: object) -> None:
        """always wrong"""
        raise AssertionError("wrong")

    driver.CLIENT, driver.check_nothing = "pytest", check_nothing  # type: ignore[attr-defined]
    head, row = checks.run_checks(driver, checks.Target("http://127.0.0.1:1", "tiny"))
    assert head["client"] == "pytest" and head["version"]
    assert row["error"] == "AssertionError: wrong" and row["says"] == "always wrong"
