"""Random schedules over a scripted model that thinks: a deterministic answer and its thoughts are the reference's."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_thinker import ScriptedThinker, Told, reference, reference_scores
from test_schedules import (
    PAGE_SIZE,
    ROWS,
    Client,
    Meanwhile,
    NoText,
    Played,
    World,
    bursts,
    check_answer,
    check_counts,
    play_as,
    prepared,
    requests_of,
    worlds,
)

from holdfast.core.events import Event, ExtraCommitted, TokensCommitted
from holdfast.core.request import Request
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import PassKind, PassResult, StepPlan, TokenLogprob
from holdfast.kv_cache.page_pool import PagePool
from holdfast.scheduler.policy import SchedulerConfig
from holdfast.scheduler.scheduler import Scheduler
from holdfast.thinking.log import MAX_GUESSES, ThinkRule, ThoughtLogs
from support.examples import examples

EVERY_SIZE = tuple(range(1, 65))


@dataclass(frozen=True)
class ThinkingWorld:
    world: World
    thought_error_rate: float = 0.0
    forgets_from: int | None = None


def thinkers() -> st.SearchStrategy[ThinkingWorld]:
    forced = st.dictionaries(st.integers(0, 12), st.sampled_from([(), (4,), (5, 6)]), max_size=3)
    how = st.tuples(
        st.sampled_from([True, True, True, False]), st.one_of(st.just({}), st.just({}), st.just({}), forced)
    )
    return st.builds(
        _thinking,
        st.one_of(worlds(), bursts()),
        st.lists(how, min_size=6, max_size=6),
        st.sampled_from([1, 2, 4]),
        st.booleans(),
        st.booleans(),
        st.sampled_from([0.0, 0.3, 1.0]),
        st.sampled_from([0, 1, MAX_GUESSES, MAX_GUESSES]),
    )


def _thinking(
    world: World,
    how: list[tuple[bool, dict[int, tuple[int, ...]]]],
    chunk: int,
    while_answering: bool,
    settle: bool,
    thought_error_rate: float,
    max_guesses: int,
) -> ThinkingWorld:
    clients = tuple(
        replace(client, params=replace(client.params, think=thinks, forced_thoughts=forced if thinks else ()))
        for client, (thinks, forced) in zip(world.clients, how, strict=False)
    )
    config = replace(
        world.config,
        async_scheduling=False,
        new_extension=ThoughtLogs(chunk, while_answering, settle=settle, max_guesses=max_guesses),
    )
    return ThinkingWorld(replace(world, clients=clients, config=config, fails_at=None), thought_error_rate)


@dataclass
class PlayedThinking(Played):
    thoughts: defaultdict[int, Told] = field(default_factory=lambda: defaultdict(list))

    def note_of_request(self, event: Event) -> None:
        if isinstance(event, ExtraCommitted):
            self.thoughts[event.request_id].extend(cast(Told, event.items))
            return
        super().note_of_request(event)
        if isinstance(event, TokensCommitted):
            self._check_order(self.requests[event.request_id][1])

    def _check_order(self, request: Request) -> None:
        """A token comes after all thoughts that led to it."""
        rule, chunk = rule_of(request, self.world.config), logs_of(self.world.config).chunk_len
        read = request.prompt_len + len(self.answers[request.request_id]) - 1
        num_closed = read // chunk
        if rule.settled is not None:
            num_closed = max(num_closed, rule.settled // chunk + 1)
        due = [one for one in range(num_closed) if rule.thinks(one, chunk)]
        assert [number for number, _ in self.thoughts[request.request_id]] == due

    def update(self, plan: StepPlan, results: list[PassResult]) -> None:
        """Every request of a canonical pass made progress: valid positions, or tokens."""
        deciding = {
            span.request_id
            for one in plan.passes
            for span in one.spans
            if one.kind is PassKind.CANONICAL
            or (one.kind is PassKind.FAST and not span.sampling.params.deterministic)
        }
        before = {
            state.request_id: (
                state.tokens.committed_len,
                state.in_flight.spans[0].start if state.in_flight.spans else state.next_start,
            )
            for state in self.scheduler.requests
            if state.request_id in deciding
        }
        sizes = self.scheduler.config.certified_sizes
        super().update(plan, results)
        if self.scheduler.config.certified_sizes != sizes:
            return  # all start over
        for state in self.scheduler.requests:
            if state.request_id in before:
                progress = (state.tokens.committed_len, state.next_start)
                assert progress > before[state.request_id], "a pass without progress"

    def outcome(self, number: int) -> tuple[Sequence[object], ...]:
        return self.answers[number], self.thoughts[number], self.scores[number]

    def truth(self, client: Client, request: Request) -> tuple[Sequence[object], ...]:
        how = logs_of(self.world.config).chunk_len, rule_of(request, self.world.config)
        answer, thoughts = reference(client.prompt, client.params, *how)
        scores: list[TokenLogprob] = []
        if request.score_from is not None:
            scores = reference_scores(client.prompt, request.score_from, *how)
        return [*answer], thoughts, scores


def logs_of(config: SchedulerConfig) -> ThoughtLogs:
    assert isinstance(config.new_extension, ThoughtLogs)
    return config.new_extension


def rule_of(request: Request, config: SchedulerConfig) -> ThinkRule:
    """Which chunks shall be thought about."""
    params = request.params
    if not params.think:
        return ThinkRule(0)
    logs = logs_of(config)
    until = request.prompt_len if request.read_len is None else request.read_len
    last, chunk = until - 1, logs.chunk_len
    settled = last if logs.settle and last > chunk and last % chunk else None
    return ThinkRule(None if logs.while_answering else until, params.forced, settled=settled)


def play(thinking: ThinkingWorld) -> PlayedThinking:
    def new_runner(world: World, during: Meanwhile) -> ScriptedThinker:
        return ScriptedThinker(
            PAGE_SIZE,
            world.error_rate,
            world.seed,
            logs_of(world.config).chunk_len,
            thought_error_rate=thinking.thought_error_rate,
            forgets_from=thinking.forgets_from,
            corrupt_from=world.corrupt_from,
            during=during,
        )

    requests = [
        (client, replace(request, read_len=request.score_from if request.params.max_tokens == 0 else None))
        for client, request in requests_of(thinking.world)
    ]
    return play_as(PlayedThinking, thinking.world, requests, new_runner)


@settings(max_examples=examples(200))
@given(thinkers())
def test_deterministic_answer_and_thoughts_equal_the_reference(thinking: ThinkingWorld) -> None:
    played = play(thinking)
    check_counts(played)
    for client, request in played.requests:
        if client.params.deterministic:
            check_answer(played, client, request)


@settings(max_examples=examples(100))
@given(thinkers(), st.integers(0, 40), st.booleans())
def test_wrong_certificate_is_revoked_by_its_thoughts(
    thinking: ThinkingWorld, since: int, only_thoughts: bool
) -> None:
    config = replace(
        thinking.world.config, determinism="auto", certified_sizes=EVERY_SIZE, spot_check_rate=1.0
    )
    world = replace(thinking.world, config=config, corrupt_from=None if only_thoughts else since)
    played = play(replace(thinking, world=world, forgets_from=since if only_thoughts else None))
    mismatches = [check for check in played.checks if check.mismatch is not None]
    assert len(mismatches) == (not played.scheduler.config.certified_sizes)
    lost = [each for each in played.ended.values() if each.error_code == "guarantee_lost"]
    assert bool(mismatches) == bool(played.runner.num_mismatches or lost)
    for client, request in played.requests:
        ended = played.ended[request.request_id]
        if not client.params.deterministic or ended.determinism == "certified":
            continue  # nothing was promised, or it ended before the check
        if ended.determinism == "none" and ended.reason == "abort":
            assert mismatches  # given up before what it had been sent was confirmed; it says so
        elif ended.determinism == "none":  # lost: by a check, or because thoughts came out otherwise
            assert ended.reason == "error" and ended.error_code == "guarantee_lost"
            assert mismatches
        else:
            check_answer(played, client, request)


def _one(max_tokens: int, prompt_len: int, **config: object) -> ThinkingWorld:
    params = SamplingParams(max_tokens=max_tokens, deterministic=True, ignore_eos=True, temperature=0)
    how = SchedulerConfig(4, 64, ROWS, **{"determinism": "verify", "new_extension": ThoughtLogs(2), **config})  # type: ignore[arg-type]
    prompt = tuple(1 + at * at % 3 for at in range(prompt_len))
    return ThinkingWorld(World((Client(prompt, params, 0, None, False),), how, 60, 0.0, 7))


def test_a_lost_guarantee_revokes_the_certificate_without_a_check() -> None:
    """Too few pages, so that answers are computed again; from some pass on, certified passes forget to think."""
    params = SamplingParams(max_tokens=40, deterministic=True, ignore_eos=True, temperature=0)
    prompts = tuple(tuple(1 + (at * at + one) % 3 for at in range(9)) for one in range(4))
    clients = tuple(Client(prompt, params, 0, None, False) for prompt in prompts)
    config = SchedulerConfig(
        4, 64, ROWS, certified_sizes=EVERY_SIZE, prefix_cache=False, new_extension=ThoughtLogs(2)
    )
    world = World(clients, config, 24, 0.0, 7)
    num_lost = 0
    for since in range(60):
        played = play(ThinkingWorld(world, forgets_from=since))
        lost = [each for each in played.ended.values() if each.reason == "error"]
        assert all(each.error_code == "guarantee_lost" for each in lost)
        assert [check.num_tokens for check in played.checks] == [0] * bool(lost)
        assert bool(played.scheduler.config.certified_sizes) == (not lost)
        num_lost += len(lost)
    assert num_lost


def test_wrong_thought_costs_only_a_rollback() -> None:
    honest, lied = play(_one(60, 9)), play(replace(_one(60, 9), thought_error_rate=1.0))
    assert lied.answers == honest.answers and lied.thoughts == honest.thoughts
    assert honest.ended[0].stats.rolled_back == 0
    assert lied.ended[0].stats.rolled_back > 0
    assert lied.ended[0].stats.guessed_right < lied.ended[0].stats.guessed


def test_a_prompt_is_read_in_fewer_passes_than_it_has_chunks() -> None:
    played = play(_one(1, 60))
    stats = played.ended[0].stats
    assert stats.prefill_passes < 30
    assert 0 < stats.guessed_right < stats.guessed


def test_spans_of_a_plain_model_have_no_extra() -> None:
    thinking = _one(20, 20, new_extension=None)
    scheduler = Scheduler(thinking.world.config, PagePool(40, PAGE_SIZE))
    ((_, request),) = requests_of(thinking.world)
    scheduler.submit(prepared(request), NoText())
    ((one,),) = [scheduler.plan().passes]
    assert all(span.extra is None for span in one.spans)
