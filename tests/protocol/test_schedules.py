"""Random schedules over a scripted model: whatever happens, a deterministic answer is the reference's."""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted import EOS, VOCAB, ScriptedRunner, reference, reference_scores

from holdfast.core.events import CertificateChecked, Event, PromptScored, RequestEnded, TokensCommitted
from holdfast.core.request import Prepared, Request
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.shares import Share
from holdfast.core.step_plan import PassKind, PassResult, StepPlan, TokenLogprob
from holdfast.kv_cache.page_pool import PagePool
from holdfast.scheduler.policy import SchedulerConfig
from holdfast.scheduler.scheduler import Scheduler
from support.examples import examples

PAGE_SIZE = 4
ROWS = 8


class NoText:
    def push(self, token_id: int) -> bool:
        return False


class AnyForm:
    """A grammar that allows everything, and checks that it gets every committed token exactly once."""

    problem = None

    def __init__(self) -> None:
        self.committed: list[int] = []

    def commit(self, token_id: int) -> None:
        self.committed.append(token_id)

    def restart(self) -> None:
        self.committed = []

    def count_valid(self, token_ids: Sequence[int]) -> int:
        return len(token_ids)

    def masks(self, candidates: Sequence[int], num_masks: int) -> list[bytes | None]:
        raise AssertionError("the scripted model asks for no masks")


@dataclass(frozen=True)
class Client:
    prompt: tuple[int, ...]
    params: SamplingParams
    arrives: int
    aborts: int | None
    mid_pass: bool
    score_from: int | None = None
    n: int = 1  # so many clients in a row share this prompt
    has_grammar: bool = False
    tenant: str = ""
    max_running: int | None = None
    salt: str = ""


@dataclass(frozen=True)
class World:
    clients: tuple[Client, ...]
    config: SchedulerConfig
    num_pages: int
    error_rate: float
    seed: int
    corrupt_from: int | None = None
    fails_at: int | None = None  # the step whose plan raises


COMMON = ((1, 2, 3), (2, 2, 1, 3, 1))
_SHARED = tuple(n * n % 3 + 1 for n in range(30))
_ENDLESS = SamplingParams(max_tokens=25, ignore_eos=True, temperature=0)


def _continued(prompt: tuple[int, ...], length: int) -> tuple[int, ...]:
    return prompt + reference(prompt, _ENDLESS)[:length]


def clients() -> st.SearchStrategy[Client]:
    short = st.lists(st.integers(1, 3), min_size=1, max_size=30).map(tuple)
    # A prompt may go on as another client's answer does, so that what was generated is looked up as a prefix.
    prompts = st.one_of(
        short, st.builds(_continued, st.sampled_from(COMMON), st.integers(0, 25)), st.sampled_from(COMMON)
    )
    params = st.builds(
        lambda longest, shortest, deterministic, ignore, needs_history: SamplingParams(
            max_tokens=longest,
            min_tokens=min(shortest, longest),
            deterministic=deterministic,
            ignore_eos=ignore,
            temperature=0,
            prompt_logprobs=0,  # only scored where score_from says so
            presence_penalty=float(
                needs_history
            ),  # which the scripted model ignores, but asks for what it needs
        ),
        st.integers(0, 40),
        st.sampled_from([0, 0, 5]),
        st.booleans(),
        st.booleans(),
        st.sampled_from([False] * 4 + [True]),
    )
    aborts = st.one_of(st.none(), st.none(), st.integers(0, 30))
    scores = st.one_of(st.none(), st.none(), st.integers(1, 30))
    return st.builds(
        Client,
        prompts,
        params,
        st.integers(0, 20),
        aborts,
        st.booleans(),
        scores,
        st.sampled_from([1, 1, 1, 3]),
        st.sampled_from([False] * 9 + [True]),
        st.sampled_from(["", "", "b", "c"]),
        st.sampled_from([None, None, None, 1]),
    )


def configs() -> st.SearchStrategy[SchedulerConfig]:
    sizes = st.sampled_from([(), (1, 2, 4, 8, 16), (16,), (8, 24), tuple(range(1, 65))])
    return st.builds(
        lambda seqs, rows, mode, certified, cache, speculation, rate, ahead: SchedulerConfig(
            seqs, max(rows, seqs), ROWS, mode, certified, cache, speculation, rate, ahead
        ),
        st.integers(1, 6),
        st.sampled_from([16, 17, 24, 64]),
        st.sampled_from(["auto", "verify"]),
        sizes,
        st.booleans(),
        st.sampled_from(["off", "ngram", "ngram"]),
        st.sampled_from([0.0, 0.1, 1.0]),
        st.sampled_from([False, True, True]),
    )


def worlds() -> st.SearchStrategy[World]:
    return st.builds(
        World,
        st.lists(clients(), min_size=1, max_size=6).map(tuple),
        configs(),
        st.integers(18, 60),  # 70 positions need 18 pages
        st.sampled_from([0.0, 0.1, 0.5, 1.0]),
        st.integers(0, 1000),
    )


def bursts() -> st.SearchStrategy[World]:
    """Many requests at once whose prompts begin alike and then differ, so that they wait for each other. Some
    leaders are aborted, preempted, or fail."""
    begun = st.builds(
        lambda length, tail: _SHARED[:length] + tail,
        st.sampled_from([9, 13, 22, 22, 25, 30]),
        st.lists(st.integers(1, 2), max_size=3).map(tuple),
    )
    one = st.tuples(
        begun,
        st.sampled_from([0, 0, 0, 1, 2, 3]),
        st.sampled_from([None, None, None, 1, 2, 3, 5]),
        st.sampled_from(["", "", "", "s"]),
        st.sampled_from(["", "", "", "b"]),
        st.sampled_from([1, 1, 2]),
    )
    limits = st.tuples(st.integers(2, 6), st.sampled_from([16, 17, 24, 64]))
    fails = st.sampled_from([None, None, None, 0, 1, 2, 4])
    return st.builds(_burst, worlds(), st.lists(one, min_size=6, max_size=6), limits, fails)


def _burst(
    world: World,
    how: list[tuple[tuple[int, ...], int, int | None, str, str, int]],
    limits: tuple[int, int],
    fails_at: int | None,
) -> World:
    some = [*world.clients * 6][:6]
    clients = tuple(
        replace(client, prompt=prompt, arrives=arrives, aborts=aborts, salt=salt, tenant=tenant, n=n)
        for client, (prompt, arrives, aborts, salt, tenant, n) in zip(some, how, strict=True)
    )
    config = replace(world.config, max_num_seqs=limits[0], max_pass_tokens=max(limits), prefix_cache=True)
    num_pages = max(world.num_pages, 19)  # 73 positions
    return replace(world, clients=clients, config=config, num_pages=num_pages, fails_at=fails_at)


@dataclass
class Played:
    """What became of a world. Requests are numbered in the order of their clients, n in a row for each."""

    world: World
    requests: list[tuple[Client, Request]]
    runner: ScriptedRunner
    scheduler: Scheduler
    answers: dict[int, list[int]] = field(default_factory=dict)
    scores: defaultdict[int, list[TokenLogprob]] = field(default_factory=lambda: defaultdict(list))
    ended: dict[int, RequestEnded] = field(default_factory=dict)
    checks: list[CertificateChecked] = field(default_factory=list)
    grammars: dict[int, AnyForm | None] = field(default_factory=dict)
    revoked_at: int | None = None  # passes there were by then

    def note(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, CertificateChecked):
                self.checks.append(event)
                if event.mismatch is not None:
                    self.revoked_at = len(self.runner.passes)
            else:
                assert event.request_id not in self.ended
                self.note_of_request(event)

    def note_of_request(self, event: Event) -> None:
        if isinstance(event, TokensCommitted):
            self.answers[event.request_id].extend(sample.token_id for sample in event.samples)
        elif isinstance(event, PromptScored):
            self.scores[event.request_id].extend(event.logprobs)
        else:
            assert isinstance(event, RequestEnded)
            self.ended[event.request_id] = event

    def update(self, plan: StepPlan, results: list[PassResult]) -> None:
        self.note(self.scheduler.update(plan, results))

    def outcome(self, number: int) -> tuple[Sequence[object], ...]:
        return self.answers[number], self.scores[number]

    def truth(self, client: Client, request: Request) -> tuple[Sequence[object], ...]:
        scores: list[TokenLogprob] = []
        if request.score_from is not None:
            scores = reference_scores(client.prompt, request.score_from)
        return [*reference(client.prompt, client.params)], scores


def requests_of(world: World) -> list[tuple[Client, Request]]:
    requests: list[tuple[Client, Request]] = []
    for client in world.clients:
        first = len(requests)
        scores = client.score_from is not None and client.score_from < len(client.prompt)
        for index in range(client.n):
            request = Request(
                first + index,
                client.prompt,
                client.params,
                0,
                read_len=client.score_from if scores and not index else None,
                share=Share(client.tenant, client.max_running, is_background=client.tenant == "c"),
                cache_salt=client.salt,
            )
            requests.append((client, request))
    return requests


def prepared(request: Request, grammar: AnyForm | None = None) -> Prepared:
    return Prepared(request, frozenset({EOS}), grammars=() if grammar is None else (grammar,))


Meanwhile = Callable[[], None]


def scripted(world: World, during: Meanwhile) -> ScriptedRunner:
    return ScriptedRunner(
        PAGE_SIZE, world.error_rate, world.seed, during=during, corrupt_from=world.corrupt_from
    )


P = TypeVar("P", bound=Played)


def play(world: World) -> Played:
    return play_as(Played, world, requests_of(world), scripted)


def play_as(
    kind: type[P],
    world: World,
    requests: list[tuple[Client, Request]],
    new_runner: Callable[[World, Meanwhile], ScriptedRunner],
) -> P:
    step = 0

    def abort(mid_pass: bool) -> None:
        for client, request in requests:
            if client.aborts == step and client.mid_pass is mid_pass and request.request_id in played.answers:
                played.note(scheduler.abort(request.request_id))

    scheduler = Scheduler(world.config, PagePool(world.num_pages, PAGE_SIZE))
    runner = new_runner(world, lambda: abort(True))
    played = kind(world, requests, runner, scheduler)
    in_flight: deque[tuple[StepPlan, Callable[[], list[PassResult]]]] = deque()
    limit = 100 + sum(8 * (len(c.prompt) + c.params.max_tokens) for c, _ in requests) * len(requests)
    while scheduler.has_work or step <= 20:
        for client, request in requests:
            if client.arrives == step:
                played.answers[request.request_id] = []
                grammar = played.grammars[request.request_id] = AnyForm() if client.has_grammar else None
                scheduler.submit(prepared(request, grammar), NoText())
        abort(False)
        plan = scheduler.plan()
        scheduler.check()
        assert plan or in_flight or not scheduler.has_work, "work, but an empty plan"
        if plan:
            in_flight.append((plan, runner.start(plan)))
        if in_flight and step == world.fails_at:
            played.note(scheduler.fail(in_flight[0][0], "the pass broke"))
            in_flight.clear()
            runner.forget_unread()
        elif in_flight and (not plan or len(in_flight) > world.config.async_scheduling):
            oldest, wait = in_flight.popleft()
            played.update(oldest, wait())
            scheduler.check()
        step += 1
        assert step < limit, "the schedule does not end"
    assert not in_flight
    assert scheduler.pool.num_held == 0, "a page leaked"
    for number, grammar in played.grammars.items():
        if grammar is not None and scheduler.config.certified_sizes == world.config.certified_sizes:
            assert grammar.committed == played.answers[number]
    return played


def check_answer(played: Played, client: Client, request: Request) -> None:
    """A deterministic answer is the reference's, or a beginning of it where it was aborted or its pass failed."""
    number = request.request_id
    ended, found, truth = played.ended[number], played.outcome(number), played.truth(client, request)
    if ended.reason in ("abort", "error"):
        assert client.aborts is not None if ended.reason == "abort" else ended.error_code == "pass_failed"
        truth = tuple(whole[: len(part)] for whole, part in zip(truth, found, strict=True))
    else:
        assert ended.reason in ("stop", "length")
    assert found == truth


def check_counts(played: Played) -> None:
    for _, request in played.requests:
        number = request.request_id
        stats = played.ended[number].stats
        assert stats.candidates == stats.accepted + stats.rolled_back
        assert len(played.answers[number]) == stats.accepted + stats.canonical_tokens
        assert 0 <= stats.guessed_right <= stats.guessed
    assert all(check.mismatch is None for check in played.checks)


def check_passes(played: Played) -> None:
    """Every canonical window commits, and no request is in a pass twice."""
    for event in played.ended.values():
        num_passes = event.stats.canonical_passes + event.stats.fast_passes
        assert num_passes >= event.stats.windows >= event.stats.rollbacks
    for one in played.runner.passes:
        ids = [span.request_id for span in one.spans]
        assert len(ids) == len(set(ids))
        assert one.num_tokens <= played.world.config.max_pass_tokens


def check_right(played: Played) -> None:
    """The answers of a run with a right certificate. An ordinary answer is the reference's as well if no fast token is
    wrong."""
    check_counts(played)
    for client, request in played.requests:
        if client.params.deterministic or played.world.error_rate == 0:
            check_answer(played, client, request)
        else:
            assert all(0 <= token_id < VOCAB for token_id in played.answers[request.request_id])
    check_passes(played)


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_deterministic_answer_equals_the_reference(world: World) -> None:
    check_right(play(world))


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(bursts())
def test_requests_that_wait_for_each_others_pages_answer_as_the_reference(world: World) -> None:
    check_right(play(world))


@settings(max_examples=examples(250), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(worlds(), bursts().map(lambda world: replace(world, fails_at=None))), st.integers(0, 60))
def test_wrong_certificate_is_revoked_and_answers_are_right_afterwards(world: World, since: int) -> None:
    sizes = tuple(range(1, 65))
    config = replace(world.config, determinism="auto", certified_sizes=sizes, spot_check_rate=1.0)
    played = play(replace(world, config=config, corrupt_from=since))
    mismatches = [check for check in played.checks if check.mismatch is not None]
    assert len(mismatches) <= 1
    revoked = bool(mismatches)
    assert revoked == (played.runner.num_mismatches > 0)
    assert revoked == (not played.scheduler.config.certified_sizes)
    for client, request in played.requests:
        ended = played.ended[request.request_id]
        if not client.params.deterministic or ended.determinism == "certified":
            continue  # nothing was promised, or it ended before the check
        if ended.reason == "abort" and ended.determinism == "none":
            continue  # given up before what it had been sent was confirmed, and it says so
        if ended.reason == "error":
            assert revoked and ended.error_code == "guarantee_lost"
            assert ended.determinism == "none"
        else:
            check_answer(played, client, request)
    if revoked:  # nothing is trusted by certificate any more
        assert played.revoked_at is not None
        later = played.runner.passes[played.revoked_at :]
        assert not any(one.certified or one.kind is PassKind.CHECK for one in later)


def one_request(max_tokens: int, error_rate: float, **config: object) -> World:
    params = SamplingParams(max_tokens=max_tokens, deterministic=True, ignore_eos=True, temperature=0)
    settings_ = SchedulerConfig(4, 64, ROWS, "verify", (), **config)  # type: ignore[arg-type]
    return World((Client((1, 2, 3), params, 0, None, False),), settings_, 40, error_rate, 7)


def test_right_candidates_are_accepted_and_each_window_adds_a_bonus_token() -> None:
    played = play(one_request(40, 0.0))
    stats = played.ended[0].stats
    assert stats.rolled_back == stats.rollbacks == 0
    assert stats.candidates == stats.accepted > 0
    assert stats.canonical_tokens == stats.windows + 1  # one from the prefill, then one bonus a window
    assert played.ended[0].determinism == "verified"
    assert (
        max(span.num_tokens for one in played.runner.passes for span in one.spans) == ROWS
    )  # the window grew to its limit


def test_only_wrong_candidates_are_rolled_back() -> None:
    world = one_request(40, 1.0)
    played = play(world)
    stats = played.ended[0].stats
    check_answer(played, *played.requests[0])
    assert stats.accepted == 0
    assert stats.rolled_back == stats.candidates > 0
    assert stats.canonical_tokens == 40


def test_a_certified_step_commits_at_once() -> None:
    world = one_request(20, 1.0)
    world = World(world.clients, SchedulerConfig(4, 64, ROWS, "auto", tuple(range(1, 65))), 40, 1.0, 7)
    played = play(world)
    assert played.ended[0].stats.candidates == 0
    assert played.ended[0].determinism == "certified"
    assert all(one.certified for one in played.runner.passes)


def test_windows_of_several_requests_share_a_pass() -> None:
    params = SamplingParams(max_tokens=30, deterministic=True, ignore_eos=True, temperature=0)
    many = tuple(Client((1, 2, n % 3 + 1), params, 0, None, False) for n in range(6))
    world = World(many, SchedulerConfig(6, 64, ROWS, "verify"), 100, 0.1, 3)
    played = play(world)
    canonical = [one for one in played.runner.passes if one.kind.value == "canonical"]
    shared = [one for one in canonical if len(one.spans) > 1]
    assert len(shared) > len(canonical) / 2
