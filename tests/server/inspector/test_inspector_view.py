"""The events sent to pages: the last tokens of every live request, and rollbacks."""

from dataclasses import replace
from typing import Any

from holdfast.bench.faults import FaultyProposer
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.config import EngineConfig
from holdfast.engine.tracer import Tracer
from holdfast.server.inspector.view import SHOWN_TOKENS, EngineView
from support.step_traces import FIRST, REQUEST, step
from support.tiny import tiny_engine


class Page:
    """Applies events as `state.js` does."""

    def __init__(self) -> None:
        self.tokens: dict[int, tuple[int, list[str]]] = {}
        self.candidates: dict[int, list[str]] = {}

    def apply(self, event: dict[str, Any]) -> None:
        for one in event["requests"]:
            start, known = self.tokens.get(one["id"], (one["from"], []))
            tokens = (known[: one["from"] - start] + one["tokens"])[-SHOWN_TOKENS:]
            self.tokens[one["id"]] = one["committed"] - len(tokens), tokens
            self.candidates[one["id"]] = one["candidates"]
        for request_id, _ in event.get("ended", ()):
            del self.tokens[request_id], self.candidates[request_id]


def test_steps_and_snapshots_agree() -> None:
    config = EngineConfig(dtype="fp32", determinism="verify", max_pass_tokens=64, kv_memory="4MiB")
    engine = tiny_engine(config)
    engine.runner = FaultyProposer(engine.runner, engine.limits.vocab_size, 0.3)
    view, page = EngineView(str), Page()
    for deterministic, length in ((True, 290), (False, 40), (True, 60)):
        params = SamplingParams(
            max_tokens=length, temperature=1.0, seed=1, deterministic=deterministic, ignore_eos=True
        )
        engine.submit(engine.prepare(tuple(range(length // 2)), params))
    engine.tracer = Tracer(engine)
    num_rolled_back = 0
    while engine.has_requests:
        engine.step()
        for trace in engine.tracer.take():
            event = view.update(trace)
            page.apply(event)
            num_rolled_back += sum(len(one.get("rolled_back", ())) for one in event["requests"])
        fresh = Page()
        fresh.apply(view.snapshot())
        assert (fresh.tokens, fresh.candidates) == (page.tokens, page.candidates)
    assert num_rolled_back > 0
    assert page.tokens == {}


def test_only_the_last_tokens_of_a_long_request_are_sent() -> None:
    ids = tuple(range(1000))
    view = EngineView(str)
    long = replace(REQUEST, prompt_len=900, committed_len=1000, committed_ids=ids)
    (sent,) = view.update(replace(FIRST, requests=(long,)))["requests"]
    assert (sent["from"], sent["tokens"]) == (1000 - SHOWN_TOKENS, [str(one) for one in ids[-SHOWN_TOKENS:]])
    view.update(step(2, replace(long, committed_start=1000, committed_len=1001, committed_ids=(5,))))
    (shown,) = view.snapshot()["requests"]
    assert (shown["from"], len(shown["tokens"]), shown["tokens"][-1]) == (
        1001 - SHOWN_TOKENS,
        SHOWN_TOKENS,
        "5",
    )


def test_restarted_request_shows_its_dropped_tokens_as_rolled_back() -> None:
    view = EngineView(str)
    view.update(replace(FIRST, requests=(replace(REQUEST, committed_len=5, committed_ids=(1, 2, 3, 4, 5)),)))
    again = replace(REQUEST, committed_start=2, committed_len=2, committed_ids=(), candidate_ids=())
    (sent,) = view.update(step(2, again))["requests"]
    assert (sent["rolled_back_from"], sent["rolled_back"]) == (2, ["3", "4", "5"])
    assert view.snapshot()["requests"][0]["tokens"] == ["1", "2"]
