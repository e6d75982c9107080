"""Step an engine until nothing is left to do."""

from collections.abc import Iterable
from typing import Any

from holdfast.core.request import Prepared
from holdfast.core.results import Result
from holdfast.core.step_plan import StepPlan
from holdfast.engine.engine import Engine


class Broken:
    """A runner whose passes all raise."""

    def run(self, plan: StepPlan) -> Any:
        raise RuntimeError("a cosmic ray")


def finish(engine: Engine) -> dict[int, Result]:
    """Return the results by request id. Nothing may be wrong, and no page held, after the last step."""
    results: dict[int, Result] = {}
    while engine.has_work:
        for update in engine.step():
            if update.result is not None:
                results[update.request_id] = update.result
    engine.check()
    assert not engine.scheduler._in_flight and engine.scheduler.pool.num_held == 0, "something is left"
    return results


def answer(engine: Engine, requests: Iterable[Prepared]) -> list[Result]:
    """Run all requests together to the end, and the spot checks after them."""
    asked = list(requests)
    for request in asked:
        engine.submit(request)
    results = finish(engine)
    return [results[request.request_id] for request in asked]
