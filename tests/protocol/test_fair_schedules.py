"""Shares between tenants over a scripted model: whatever hostile tenants send, another one's requests
are slowed down by a bounded factor.

A pass of n tokens counts as ROWS + n, as `share_policy` assumes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted import ScriptedRunner
from test_schedules import PAGE_SIZE, ROWS, Client, NoText, World, check_answer, play, worlds

from holdfast.core.events import RequestEnded, TokensCommitted
from holdfast.core.request import Prepared, Request
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.shares import Share
from holdfast.kv_cache.page_pool import PagePool
from holdfast.scheduler import share_policy
from holdfast.scheduler.policy import DeterminismMode, SchedulerConfig
from holdfast.scheduler.scheduler import Scheduler
from support.examples import examples

MAX_TOKENS = 64
NUM_SEQS = 8
WARM_UP_STEPS = 25
HONEST = "honest"


@dataclass(frozen=True)
class Load:
    """What one hostile tenant sends: so many requests in progress at all times."""

    num_requests: int
    prompt_len: int
    max_tokens: int
    deterministic: bool
    repeats: bool  # its text repeats itself, so that n-grams match
    is_background: bool = False


@dataclass(frozen=True)
class Ask:
    prompt_len: int
    max_tokens: int
    deterministic: bool


class Engine:
    """A scheduler, the cost of its passes, and tenants that send a new request for each that ends."""

    def __init__(self, mode: DeterminismMode, num_pages: int, loads: Sequence[Load], *, ahead: bool) -> None:
        sizes = tuple(range(1, MAX_TOKENS + 1)) if mode == "auto" else ()
        config = SchedulerConfig(NUM_SEQS, MAX_TOKENS, ROWS, mode, sizes, async_scheduling=ahead)
        self.scheduler = Scheduler(config, PagePool(num_pages, PAGE_SIZE))
        self.runner = ScriptedRunner(PAGE_SIZE, 0.1, seed=1)
        self.loads = loads
        self.cost = 0
        self.num_sent = 0
        self.load_of: dict[int, Load] = {}
        self.tokens: dict[int, int] = {}
        self.ended: set[int] = set()
        self.in_flight: list[object] = []
        for number, load in enumerate(loads):
            for _ in range(load.num_requests):
                self.send_hostile(number)

    def send(
        self,
        tenant: str,
        first: int,
        prompt_len: int,
        max_tokens: int,
        deterministic: bool,
        is_background: bool = False,
    ) -> int:
        number = self.num_sent
        self.num_sent += 1
        prompt = (first, *(1 + (number * 31 + at * 7) % 49 for at in range(prompt_len - 1)))
        params = SamplingParams(
            max_tokens=max_tokens, deterministic=deterministic, ignore_eos=True, temperature=0
        )
        self.tokens[number] = 0
        request = Request(number, prompt, params, 0, share=Share(tenant, is_background=is_background))
        self.scheduler.submit(Prepared(request), NoText())
        return number

    def send_hostile(self, which: int) -> None:
        load = self.loads[which]
        first = 2 if load.repeats else 3 + which
        settings = (first, load.prompt_len, load.max_tokens, load.deterministic, load.is_background)
        number = self.send(f"hostile-{which}", *settings)
        self.load_of[number] = load

    def step(self) -> None:
        plan = self.scheduler.plan()
        if plan:
            self.in_flight.append((plan, self.runner.start(plan)))
        if self.in_flight and (not plan or len(self.in_flight) > self.scheduler.config.async_scheduling):
            oldest, wait = self.in_flight.pop(0)  # type: ignore[misc]
            self.cost += sum(ROWS + one.num_tokens_padded for one in oldest.passes)
            self.note(self.scheduler.update(oldest, wait()))

    def note(self, events: Sequence[object]) -> None:
        for event in events:
            if isinstance(event, TokensCommitted):
                self.tokens[event.request_id] += len(event.samples)
            elif isinstance(event, RequestEnded):
                self.ended.add(event.request_id)
                if event.request_id in self.load_of:
                    self.send_hostile(self.loads.index(self.load_of[event.request_id]))

    def ask(self, ask: Ask) -> tuple[int, int]:
        """The cost until the first token, and until the end."""
        began = self.cost
        number = self.send(HONEST, 40, ask.prompt_len, ask.max_tokens, ask.deterministic)
        first = None
        while number not in self.ended:
            self.step()
            if first is None and self.tokens[number]:
                first = self.cost - began
            assert self.cost - began < 1_000_000, "starved"
        assert first is not None
        return first, self.cost - began


def costs(mode: DeterminismMode, pages: int, loads: Sequence[Load], ask: Ask, ahead: bool) -> tuple[int, int]:
    engine = Engine(mode, pages, loads, ahead=ahead)
    for _ in range(WARM_UP_STEPS if loads else 0):
        engine.step()
    return engine.ask(ask)


LOADS = st.builds(
    Load,
    st.sampled_from([1, 3, 8, 20]),
    st.sampled_from([1, 5, 60, 150]),
    st.sampled_from([1, 4, 40, 100]),
    st.booleans(),
    st.booleans(),
)
ASKS = st.builds(Ask, st.sampled_from([2, 20, 100]), st.sampled_from([1, 5, 40]), st.booleans())


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["auto", "off", "verify"]),
    st.lists(LOADS, min_size=1, max_size=3, unique=True),
    ASKS,
    st.sampled_from([300, 1000]),
    st.booleans(),
)
def test_k_hostile_tenants_slow_another_down_by_a_bounded_factor(
    mode: DeterminismMode, loads: list[Load], ask: Ask, pages: int, ahead: bool
) -> None:
    if mode == "off":
        ask = replace(ask, deterministic=False)
        loads = list({replace(load, deterministic=False): None for load in loads})
    quiet = costs(mode, pages, (), ask, ahead)
    busy = costs(mode, pages, loads, ask, ahead)
    # With two passes in a step, hostile tenants can make another one's single pass into two.
    factor = len(loads) + 1 if mode != "verify" else 2 * len(loads) + 1
    step = 2 * (ROWS + MAX_TOKENS) * (2 if ahead else 1)  # the step that runs when it arrives
    for alone, beside in zip(quiet, busy, strict=True):
        assert beside <= factor * alone + step, (beside / alone, alone, beside)


@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["auto", "off", "verify"]),
    st.lists(LOADS, min_size=1, max_size=3, unique=True),
    ASKS,
    st.sampled_from([70, 1000]),
    st.booleans(),
)
def test_background_requests_hardly_slow_another_down_and_go_on(
    mode: DeterminismMode, loads: list[Load], ask: Ask, pages: int, ahead: bool
) -> None:
    """Also where places and pages are all taken. One step in BACKGROUND_STEPS is theirs too."""
    if mode == "off":
        ask = replace(ask, deterministic=False)
    loads = [replace(load, is_background=True) for load in loads]
    if mode == "off":
        loads = [replace(load, deterministic=False) for load in loads]
    alone, beside = (costs(mode, pages, some, ask, ahead)[1] for some in ((), loads))
    step = 2 * (ROWS + MAX_TOKENS) * (2 if ahead else 1)
    num_own_steps = 1 + (ask.max_tokens + 2) // share_policy.BACKGROUND_STEPS
    assert beside <= alone + step * (1 + num_own_steps), (beside / alone, alone, beside)


@pytest.mark.parametrize("mode", ["auto", "off", "verify"])
def test_background_requests_alone_have_short_steps(
    mode: DeterminismMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_policy, "BACKGROUND_PASSES", 2)
    loads = [Load(6, 150, 20, mode != "off", False, is_background=True)] * 2
    engine = Engine(mode, 1000, loads, ahead=False)
    for _ in range(300):
        before = engine.cost
        engine.step()
        # Of two passes in `verify`, each has its own padding.
        assert engine.cost - before <= (2 * ROWS + 2 * 2 * ROWS if mode == "verify" else ROWS + 2 * ROWS)
    assert len(engine.ended) > 6


def test_background_requests_go_on_beside_others() -> None:
    engine = Engine("auto", 1000, [Load(3, 5, 10, True, False)], ahead=False)
    number = engine.send("batch", 40, 5, 8, True, is_background=True)
    for _ in range(20 * share_policy.BACKGROUND_STEPS):
        engine.step()
    assert number in engine.ended


def test_a_tenant_beside_more_tenants_than_places_gets_its_turn() -> None:
    loads = [Load(1, 5 + number, 150, False, False) for number in range(2 * NUM_SEQS)]
    ask = Ask(5, 20, False)
    (_, alone), (_, beside) = (costs("auto", 1000, some, ask, False) for some in ((), loads))
    assert beside <= (len(loads) + 1) * alone + share_policy.SLICE_STEPS * (ROWS + NUM_SEQS)


def test_a_large_request_is_not_passed_over_for_ever() -> None:
    """It needs more than its share of the pages, which the other tenant fills with small requests."""
    engine = Engine("auto", 24, [Load(8, 10, 30, False, False)], ahead=False)
    for _ in range(WARM_UP_STEPS):
        engine.step()
    engine.ask(Ask(PAGE_SIZE * 16, 8, True))
    assert len(engine.ended) > 8


def test_a_tenant_runs_no_more_requests_than_it_may() -> None:
    engine = Engine("auto", 1000, (), ahead=False)
    params = SamplingParams(max_tokens=8, ignore_eos=True, temperature=0)
    for number in range(6):
        limit = 2 if number < 5 else None
        request = Request(number, (1, 2, number), params, 0, share=Share("a" if number < 5 else "b", limit))
        engine.tokens[number] = 0
        engine.scheduler.submit(Prepared(request), NoText())
    while engine.scheduler.has_work:
        engine.step()
        running = [state.request_id for state in engine.scheduler._queue.running.values()]
        assert sum(number < 5 for number in running) <= 2
    assert len(engine.ended) == 6


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds(), st.lists(st.sampled_from("abc"), min_size=6, max_size=6))
def test_preemption_between_tenants_changes_no_answer(world: World, tenants: list[str]) -> None:
    clients = tuple(
        replace(client, tenant=tenant) for client, tenant in zip(world.clients, tenants, strict=False)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(share_policy, "SLICE_STEPS", 2)
        patch.setattr(share_policy, "PATIENCE_STEPS", 3)
        played = play(replace(world, clients=clients))
    for client, request in played.requests:
        if client.params.deterministic:
            check_answer(played, client, request)


def test_one_tenant_is_not_limited() -> None:
    """The same schedule whatever the tenant is called."""
    params = SamplingParams(max_tokens=30, deterministic=True, ignore_eos=True, temperature=0)
    many = tuple(Client((1, 2, n % 3 + 1) * 8, params, n, None, False) for n in range(6))
    config = SchedulerConfig(4, 32, ROWS, "auto", tuple(range(1, 33)))
    plans = [
        play(World(tuple(replace(one, tenant=name) for one in many), config, 60, 0.1, 3)).runner.passes
        for name in ("", "a")
    ]
    assert plans[0] == plans[1] and max(one.num_tokens for one in plans[0]) > 2 * ROWS
