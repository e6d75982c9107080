"""Random schedules of a model with recurrent state, over a scripted model that notices a stale one."""

from dataclasses import replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted_recurrent import KERNEL, RecurrentRunner
from test_schedules import (
    PAGE_SIZE,
    Client,
    Meanwhile,
    Played,
    World,
    bursts,
    check_answer,
    check_right,
    play_as,
    requests_of,
    worlds,
)

from holdfast.core.sampling_params import SamplingParams
from holdfast.scheduler.policy import SchedulerConfig
from support.examples import examples


def recurrent(world: World, num_more: int, num_pages: int, max_window: int | None) -> World:
    config = replace(
        world.config,
        num_states=world.config.max_num_seqs + num_more,
        state_interval=num_pages * PAGE_SIZE,
        max_window=max_window,
    )
    return replace(world, config=config)


def of(base: st.SearchStrategy[World]) -> st.SearchStrategy[World]:
    more, pages = st.sampled_from([0, 1, 2, 5, 40]), st.sampled_from([1, 1, 2, 5])
    return st.builds(recurrent, base, more, pages, st.sampled_from([None, 1, 3]))


def scripted(world: World, during: Meanwhile) -> RecurrentRunner:
    log_len = world.config.num_uncertain + KERNEL
    return RecurrentRunner(
        PAGE_SIZE, world.error_rate, world.seed, during, world.corrupt_from, log_len=log_len
    )


def play(world: World) -> Played:
    return play_as(Played, world, requests_of(world), scripted)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(of(st.one_of(worlds(), bursts())))
def test_deterministic_answer_equals_the_reference(world: World) -> None:
    check_right(play(world))


@settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(of(worlds()), st.integers(0, 60))
def test_after_a_wrong_certificate_no_state_of_before_is_used(world: World, since: int) -> None:
    sizes = tuple(range(1, 65))
    config = replace(world.config, determinism="auto", certified_sizes=sizes, spot_check_rate=1.0)
    played = play(replace(world, config=config, corrupt_from=since))
    for client, request in played.requests:
        ended = played.ended[request.request_id]
        if client.params.deterministic and ended.determinism == "verified" and ended.reason != "error":
            check_answer(played, client, request)


def _together(prompts: list[tuple[int, ...]], arrivals: list[int], **config: object) -> Played:
    params = SamplingParams(max_tokens=3, deterministic=True, ignore_eos=True, temperature=0)
    clients = tuple(
        Client(prompt, params, at, None, False) for prompt, at in zip(prompts, arrivals, strict=True)
    )
    limits = SchedulerConfig(
        8, 64, 8, "verify", num_states=40, state_interval=4 * PAGE_SIZE, speculation="off", **config
    )  # type: ignore[arg-type]
    return play(World(clients, limits, 200, 0.0, 3))


def _num_computed(played: Played) -> int:
    stats = [played.ended[request.request_id].stats for _, request in played.requests]
    return sum(len(c.prompt) for c, _ in played.requests) - sum(one.cached_tokens for one in stats)


def test_requests_sent_at_once_compute_what_they_share_once() -> None:
    """They tell the one that computes it where they go on in another way."""
    shared = tuple(n * n % 3 + 1 for n in range(27))
    prompts = [(*shared, 1 + number, *([2] * 3)) for number in range(6)]
    played = _together(prompts, [0] * 6)
    rest = len(prompts[0]) - 24  # after the last full page that they share
    assert _num_computed(played) == len(prompts[0]) + 5 * rest


def test_requests_sent_later_start_at_a_kept_state() -> None:
    shared = tuple(n * n % 3 + 1 for n in range(27))
    prompts = [(*shared, 1 + number, *([2] * 3)) for number in range(4)]
    played = _together(prompts, [0, 9, 9, 18])
    of_request = [len(prompts[0]) - played.ended[n].stats.cached_tokens for n in range(4)]
    assert of_request[0] == len(prompts[0])
    assert of_request[1] == len(prompts[0]) - 16  # the interval's last state
    assert of_request[3] == len(prompts[0]) - 24  # where the second one left what was cached
    assert isinstance(played.runner, RecurrentRunner) and played.runner.num_loads == 3
