"""Random schedules over a scripted model that thinks: a deterministic answer and its thoughts are the reference's."""

from dataclasses import dataclass, field, replace
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_thinker import ScriptedThinker, Told, reference, reference_scores
from test_schedules import (
    PAGE_SIZE,
    ROWS,
    AnyForm,
    Client,
    NoText,
    World,
    bursts,
    prepared,
    requests_of,
    worlds,
)

from holdfast.core.events import CertificateChecked, Event, ExtraCommitted, PromptScored, RequestEnded
from holdfast.core.request import Request
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import PassKind, StepPlan, TokenLogprob
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
        st.sampled_from([0.0, 0.3, 1.0]),
        st.sampled_from([0, 1, MAX_GUESSES, MAX_GUESSES]),
    )


def _thinking(
    world: World,
    how: list[tuple[bool, dict[int, tuple[int, ...]]]],
    chunk: int,
    while_answering: bool,
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
        new_extension=ThoughtLogs(chunk, while_answering, max_guesses=max_guesses),
    )
    return ThinkingWorld(replace(world, clients=clients, config=config), thought_error_rate)


@dataclass
class Played:
    requests: list[tuple[Client, Request]]
    config: SchedulerConfig
    runner: ScriptedThinker
    scheduler: Scheduler
    answers: dict[int, list[int]] = field(default_factory=dict)
    scores: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    thoughts: dict[int, Told] = field(default_factory=dict)
    ended: dict[int, RequestEnded] = field(default_factory=dict)
    grammars: dict[int, AnyForm | None] = field(default_factory=dict)
    checks: list[CertificateChecked] = field(default_factory=list)

    def note(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, CertificateChecked):
                self.checks.append(event)
                continue
            assert event.request_id not in self.ended
            if isinstance(event, ExtraCommitted):
                self.thoughts[event.request_id].extend(cast(Told, event.items))
            elif isinstance(event, PromptScored):
                self.scores[event.request_id].extend(event.logprobs)
            elif isinstance(event, RequestEnded):
                self.ended[event.request_id] = event
            else:
                self.answers[event.request_id].extend(sample.token_id for sample in event.samples)
                self._check_order(self.requests[event.request_id][1])

    def _check_order(self, request: Request) -> None:
        """A token comes after all thoughts that led to it."""
        rule = rule_of(request, self.config)
        read = request.prompt_len + len(self.answers[request.request_id]) - 1
        chunk = logs_of(self.config).chunk_len
        due = [one for one in range(read // chunk) if rule.thinks(one, chunk)]
        assert [number for number, _ in self.thoughts[request.request_id]] == due


def logs_of(config: SchedulerConfig) -> ThoughtLogs:
    assert isinstance(config.new_extension, ThoughtLogs)
    return config.new_extension


def rule_of(request: Request, config: SchedulerConfig) -> ThinkRule:
    """Which chunks shall be thought about."""
    params = request.params
    if not params.think:
        return ThinkRule(0)
    until = request.prompt_len if request.read_len is None else request.read_len
    return ThinkRule(None if logs_of(config).while_answering else until, params.forced)


def play(thinking: ThinkingWorld) -> Played:
    world = thinking.world
    requests = [
        (client, replace(request, read_len=request.score_from if request.params.max_tokens == 0 else None))
        for client, request in requests_of(world)
    ]
    step = 0

    def abort(mid_pass: bool) -> None:
        for client, request in requests:
            if client.aborts == step and client.mid_pass is mid_pass and request.request_id in played.answers:
                played.note(scheduler.abort(request.request_id))

    scheduler = Scheduler(world.config, PagePool(world.num_pages, PAGE_SIZE))
    runner = ScriptedThinker(
        PAGE_SIZE,
        world.error_rate,
        world.seed,
        logs_of(world.config).chunk_len,
        thought_error_rate=thinking.thought_error_rate,
        forgets_from=thinking.forgets_from,
        corrupt_from=world.corrupt_from,
        during=lambda: abort(True),
    )
    played = Played(requests, world.config, runner, scheduler)
    limit = 100 + sum(8 * (len(c.prompt) + c.params.max_tokens) for c, _ in requests) * len(requests)
    while scheduler.has_work or step <= 20:
        for client, request in requests:
            if client.arrives == step:
                number = request.request_id
                played.answers[number], played.scores[number], played.thoughts[number] = [], [], []
                grammar = played.grammars[number] = AnyForm() if client.has_grammar else None
                scheduler.submit(prepared(request, grammar), NoText())
        abort(False)
        plan = scheduler.plan()
        scheduler.check()
        assert plan or not scheduler.has_work, "work, but an empty plan"
        _absorb(played, plan)
        scheduler.check()
        step += 1
        assert step < limit, "the schedule does not end"
    assert scheduler.pool.num_held == 0, "a page leaked"
    for number, form in played.grammars.items():
        if form is not None and scheduler.config.certified_sizes == world.config.certified_sizes:
            assert form.committed == played.answers[number]
    return played


def _absorb(played: Played, plan: StepPlan) -> None:
    """Every request of a canonical pass made progress: valid positions, or tokens."""
    scheduler = played.scheduler
    if not plan:
        return
    results = played.runner.run(plan)
    deciding = {
        span.request_id
        for one in plan.passes
        for span in one.spans
        if one.kind is PassKind.CANONICAL
        or (one.kind is PassKind.FAST and not span.sampling.params.deterministic)
    }
    before = {
        seq.request_id: (
            seq.tokens.committed_len,
            seq.next_start if not seq.in_flight.spans else seq.in_flight.spans[0].start,
        )
        for seq in scheduler.requests
        if seq.request_id in deciding
    }
    sizes = scheduler.config.certified_sizes
    played.note(scheduler.update(plan, results))
    if scheduler.config.certified_sizes != sizes:
        return  # all start over
    for seq in scheduler.requests:
        if seq.request_id in before:
            assert (seq.tokens.committed_len, seq.next_start) > before[seq.request_id], (
                "a pass without progress"
            )


def check_answer(played: Played, client: Client, request: Request) -> None:
    number, rule, chunk = (
        request.request_id,
        rule_of(request, played.config),
        logs_of(played.config).chunk_len,
    )
    answer, ended, told = tuple(played.answers[number]), played.ended[number], played.thoughts[number]
    truth, thoughts = reference(client.prompt, client.params, chunk, rule)
    scores: list[TokenLogprob] = []
    if request.score_from is not None:
        scores = reference_scores(client.prompt, request.score_from, chunk, rule)
    if ended.reason == "abort":
        assert client.aborts is not None
        truth, thoughts, scores = (
            truth[: len(answer)],
            thoughts[: len(told)],
            scores[: len(played.scores[number])],
        )
    else:
        assert ended.reason in ("stop", "length")
    assert (answer, told, played.scores[number]) == (truth, thoughts, scores)


@settings(max_examples=examples(200))
@given(thinkers())
def test_deterministic_answer_and_thoughts_equal_the_reference(thinking: ThinkingWorld) -> None:
    played = play(thinking)
    for client, request in played.requests:
        number = request.request_id
        stats = played.ended[number].stats
        assert stats.candidates == stats.accepted + stats.rolled_back
        assert len(played.answers[number]) == stats.accepted + stats.canonical_tokens
        assert 0 <= stats.guessed_right <= stats.guessed
        if client.params.deterministic:
            check_answer(played, client, request)
    assert all(check.mismatch is None for check in played.checks)


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
