"""The load on a server: what counts as a problem, and how times are read."""

import asyncio
from dataclasses import replace

import pytest

from holdfast.bench.serve import Answer, ServeLoad, ServeRun, connect, percentiles, run_load
from holdfast.errors import EngineStopped
from support.fake_server import FakeServer, repeatable_deltas

LOAD = ServeLoad(clients=3, seconds=0.3, prompt_words=6, output_tokens=5, deterministic=2, prompts=2)


def run(server: FakeServer, load: ServeLoad = LOAD, **options: str) -> ServeRun:
    async def measure() -> ServeRun:
        async with connect(server.url, (), **options) as client:
            return await run_load(client, load)

    return asyncio.run(measure())


def test_same_answers_are_no_problem() -> None:
    with FakeServer(api_key="secret") as server:
        found = run(server, api_key="secret")
        bodies = [one.body for one in server.completions()]
    assert found.problems == [] and found.distinct == {0: 1, 1: 1}
    assert len(found.alone) == 2 and set(found.modes) == {"certified"}
    assert found.speed > 0 and len(found.latencies(deterministic=False)["first text"]) > 0
    prompts = {body["prompt"] for body in bodies if body.get("deterministic")}
    assert len(prompts) == 2
    assert all(body["max_tokens"] in range(3, 8) and body["model"] == "fake" for body in bodies)


def test_other_answer_to_one_prompt_is_a_problem() -> None:
    numbers = iter(range(10**6))
    with FakeServer(deltas=lambda body: [*repeatable_deltas(body)[:-1], str(next(numbers))]) as server:
        found = run(server)
    assert all(count > 1 for count in found.distinct.values())
    assert any("prompt 0 has" in one for one in found.problems)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ({"break_after": 1}, "broken stream"),
        ({"status": 503}, "HTTP 503"),
        ({"error": {"message": "no pages"}}, "no pages"),
    ],
)
def test_failed_requests_are_problems(fault: dict[str, object], said: str) -> None:
    with FakeServer(**fault) as server:  # type: ignore[arg-type]
        found = run(server, replace(LOAD, deterministic=0))
    assert said in found.problems[0]


def test_prompts_of_their_own_are_not_compared() -> None:
    with FakeServer() as server:
        found = run(server, replace(LOAD, prompts=0))
    assert found.problems == [] and found.distinct == {}
    assert found.modes.total() > 0


def test_tokens_after_the_end_do_not_count() -> None:
    late = Answer(None, 0.0, [1.0, 2.0, 12.0, 13.0], "x", "length", num_tokens=40)
    found = ServeRun((), [late], 0.0, 10.0)
    assert found.speed == 2.0
    assert found.latencies(deterministic=False)["between texts"] == [1.0]


def test_percentiles_are_interpolated() -> None:
    assert percentiles(range(101)) == {"p50": 50, "p90": 90, "p99": 99}
    assert percentiles([1.0]) == {}


def test_server_that_cannot_start_says_why() -> None:
    async def start() -> None:
        async with connect(None, ["/nowhere/model"]):
            pytest.fail("it started")

    with pytest.raises(EngineStopped, match="nowhere"):
        asyncio.run(start())
