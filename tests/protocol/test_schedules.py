"""Random schedules over a scripted model: whatever happens, a deterministic answer is the reference's."""

from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted import EOS, VOCAB, ScriptedRunner, reference

from holdfast.core.events import RequestEnded, TokensCommitted
from holdfast.core.params import SamplingParams
from holdfast.core.request import Request
from holdfast.kv.pool import PagePool
from holdfast.schedule.policy import SchedulerConfig
from holdfast.schedule.scheduler import Scheduler

PAGE_SIZE = 4
ROWS = 8


class NoText:
    def push(self, token_id: int) -> bool:
        return False


@dataclass(frozen=True)
class Client:
    prompt: tuple[int, ...]
    params: SamplingParams
    arrives: int
    aborts: int | None
    mid_pass: bool


@dataclass(frozen=True)
class World:
    clients: tuple[Client, ...]
    config: SchedulerConfig
    num_pages: int
    lie: float
    seed: int


COMMON = ((1, 2, 3), (2, 2, 1, 3, 1))
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
        lambda longest, shortest, deterministic, ignore: SamplingParams(
            max_tokens=longest,
            min_tokens=min(shortest, longest),
            deterministic=deterministic,
            ignore_eos=ignore,
            temperature=0,
        ),
        st.integers(1, 40),
        st.sampled_from([0, 0, 5]),
        st.booleans(),
        st.booleans(),
    )
    aborts = st.one_of(st.none(), st.none(), st.integers(0, 30))
    return st.builds(Client, prompts, params, st.integers(0, 20), aborts, st.booleans())


def configs() -> st.SearchStrategy[SchedulerConfig]:
    sizes = st.sampled_from([(), (1, 2, 4, 8, 16), (16,), (8, 24), tuple(range(1, 65))])
    return st.builds(
        lambda seqs, rows, mode, certified, cache: SchedulerConfig(
            seqs, max(rows, seqs), ROWS, mode, certified, cache
        ),
        st.integers(1, 6),
        st.sampled_from([16, 17, 24, 64]),
        st.sampled_from(["auto", "verify"]),
        sizes,
        st.booleans(),
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


def play(world: World) -> tuple[dict[int, list[int]], dict[int, RequestEnded], ScriptedRunner, Scheduler]:
    scheduler = Scheduler(world.config, PagePool(world.num_pages, PAGE_SIZE))
    answers: dict[int, list[int]] = {}
    ended: dict[int, RequestEnded] = {}
    step = 0

    def note(events: list) -> None:
        for event in events:
            if isinstance(event, TokensCommitted):
                assert event.request_id not in ended
                answers[event.request_id].extend(sample.token_id for sample in event.samples)
            else:
                assert event.request_id not in ended
                ended[event.request_id] = event

    def abort(mid_pass: bool) -> None:
        for number, client in enumerate(world.clients):
            if client.aborts == step and client.mid_pass is mid_pass and number in answers:
                note(scheduler.abort(number))

    runner = ScriptedRunner(PAGE_SIZE, world.lie, world.seed, during=lambda: abort(True))
    limit = 60 + sum(4 * (len(c.prompt) + c.params.max_tokens) for c in world.clients) * len(world.clients)
    while scheduler.has_work or step <= 20:
        for number, client in enumerate(world.clients):
            if client.arrives == step:
                answers[number] = []
                request = Request(number, client.prompt, client.params, 0, frozenset({EOS}))
                scheduler.submit(request, NoText())
        abort(False)
        plan = scheduler.plan()
        scheduler.check()
        assert plan or not scheduler.has_work, "work, but an empty plan"
        note(scheduler.absorb(plan, runner.run(plan)))
        scheduler.check()
        step += 1
        assert step < limit, "the schedule does not end"
    assert scheduler.pool.num_held == 0, "a page leaked"
    return answers, ended, runner, scheduler


@settings(max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_a_deterministic_answer_is_the_references(world: World) -> None:
    answers, ended, _, _ = play(world)
    for number, client in enumerate(world.clients):
        truth = reference(client.prompt, client.params)
        stats = ended[number].stats
        assert stats.candidates == stats.accepted + stats.rolled_back
        assert len(answers[number]) == stats.accepted + stats.canonical_tokens
        if ended[number].reason == "abort":
            assert client.aborts is not None
            if client.params.deterministic:
                assert tuple(answers[number]) == truth[: len(answers[number])]
        elif client.params.deterministic:
            assert tuple(answers[number]) == truth
        else:
            assert all(0 <= token_id < VOCAB for token_id in answers[number])


@settings(max_examples=300, deadline=None)
@given(worlds())
def test_every_canonical_window_commits_and_no_sequence_is_in_two_passes(world: World) -> None:
    _, ended, runner, _ = play(world)
    for event in ended.values():
        assert event.stats.canonical_passes >= event.stats.windows >= event.stats.rollbacks
    for one in runner.passes:
        ids = [span.request_id for span in one.spans]
        assert len(ids) == len(set(ids))
        assert one.num_rows <= world.config.max_pass_rows


def one_request(max_tokens: int, lie: float, **config: object) -> World:
    params = SamplingParams(max_tokens=max_tokens, deterministic=True, ignore_eos=True, temperature=0)
    settings_ = SchedulerConfig(4, 64, ROWS, "verify", (), **config)  # type: ignore[arg-type]
    return World((Client((1, 2, 3), params, 0, None, False),), settings_, 40, lie, 7)


def test_true_candidates_are_all_accepted_and_each_window_adds_a_bonus() -> None:
    _, ended, runner, _ = play(one_request(40, 0.0))
    stats = ended[0].stats
    assert stats.rolled_back == stats.rollbacks == 0
    assert stats.candidates == stats.accepted > 0
    assert stats.canonical_tokens == stats.windows + 1  # one from the prefill, then one bonus a window
    assert ended[0].determinism == "verified"
    assert (
        max(span.num_rows for one in runner.passes for span in one.spans) == ROWS
    )  # the window grew to its limit


def test_lies_are_rolled_back_and_nothing_else() -> None:
    world = one_request(40, 1.0)
    answers, ended, _, _ = play(world)
    stats = ended[0].stats
    assert tuple(answers[0]) == reference(world.clients[0].prompt, world.clients[0].params)
    assert stats.accepted == 0
    assert stats.rolled_back == stats.candidates > 0
    assert stats.canonical_tokens == 40


def test_a_certified_step_commits_at_once() -> None:
    world = one_request(20, 1.0)
    world = World(world.clients, SchedulerConfig(4, 64, ROWS, "auto", tuple(range(1, 65))), 40, 1.0, 7)
    _, ended, runner, _ = play(world)
    assert ended[0].stats.candidates == 0
    assert ended[0].determinism == "certified"
    assert all(one.certified for one in runner.passes)


def test_windows_of_several_sequences_share_a_pass() -> None:
    params = SamplingParams(max_tokens=30, deterministic=True, ignore_eos=True, temperature=0)
    many = tuple(Client((1, 2, n % 3 + 1), params, 0, None, False) for n in range(6))
    world = World(many, SchedulerConfig(6, 64, ROWS, "verify"), 100, 0.1, 3)
    _, _, runner, _ = play(world)
    canonical = [one for one in runner.passes if one.kind.value == "canonical"]
    shared = [one for one in canonical if len(one.spans) > 1]
    assert len(shared) > len(canonical) / 2
