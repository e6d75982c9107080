"""The requests of a load: their seed, shares, lengths and arrival times."""

import random
from itertools import islice, pairwise

import pytest

from holdfast.bench.serve.workload import (
    TokenRange,
    Workload,
    WorkloadConfig,
    corpus,
    draw_disconnect,
    poisson_arrivals,
)
from holdfast.errors import ConfigError

CORPUS = range(1000, 1500)


def config(**changes):
    return WorkloadConfig(
        **{"prompt_tokens": TokenRange(5, 9), "output_tokens": TokenRange(3, 7), "deterministic_share": 0.5}
        | changes
    )


def draw(count, *, seed="", **changes):
    workload = Workload(config(**changes), CORPUS, seed)
    return [workload.draw() for _ in range(count)]


def test_same_seed_gives_the_same_requests():
    assert draw(50, disconnect_share=0.3) == draw(50, disconnect_share=0.3)
    assert draw(50) != draw(50, seed=1)
    assert Workload(config(seed=1), CORPUS).pool != Workload(config(), CORPUS).pool


def test_second_seed_keeps_the_pool_and_changes_prompts():
    first, second = (Workload(config(), CORPUS, number) for number in (1, 2))
    assert first.pool == second.pool
    prompts = [{requests.draw(False).prompt_ids for _ in range(100)} for requests in (first, second)]
    assert not prompts[0] & prompts[1]


def test_ordinary_prompts_share_no_prefix():
    begins = {request.prompt_ids[:3] for request in draw(200, deterministic_share=0.0)}
    assert len(begins) == 200


def test_shares_are_met():
    requests = draw(4000, deterministic_share=0.33, disconnect_share=0.1)
    assert abs(sum(request.deterministic for request in requests) / 4000 - 0.33) < 0.03
    assert abs(sum(request.disconnect is not None for request in requests) / 4000 - 0.1) < 0.02
    assert not any(request.deterministic for request in draw(100, deterministic_share=0.0))
    assert all(request.deterministic for request in draw(100, deterministic_share=1.0))


def test_lengths_cover_their_ranges():
    requests = draw(400, deterministic_share=0.0)
    assert {len(request.prompt_ids) for request in requests} == set(range(5, 10))
    assert {request.max_tokens for request in requests} == set(range(3, 8))


def test_prompt_may_exceed_the_corpus_or_be_one_token():
    assert len(draw(1, prompt_tokens=TokenRange(1200, 1200))[0].prompt_ids) == 1200
    assert len(draw(1, prompt_tokens=TokenRange(1, 1))[0].prompt_ids) == 1


def test_pool_prompt_has_fixed_settings():
    requests = draw(500, pool_len=3, deterministic_share=1.0)
    assert {request.pool_number for request in requests} == {0, 1, 2}
    assert len(set(requests)) == 3
    assert {request.temperature for request in requests} == {0.0, 0.8}


def test_deterministic_requests_without_a_pool_have_their_own_prompts():
    requests = draw(200, pool_len=0)
    assert all(request.pool_number is None for request in requests)
    assert 60 < sum(request.deterministic for request in requests) < 140
    assert len({request.prompt_ids for request in requests}) == 200


def test_body_has_deterministic_only_where_set():
    ordinary, deterministic = (Workload(config(), CORPUS).draw(kind) for kind in (False, True))
    assert "deterministic" not in ordinary.body("m")
    body = deterministic.body("m")
    assert body["deterministic"] is True
    assert body["prompt"] == deterministic.prompt_ids
    assert (body["stream"], body["ignore_eos"], body["model"]) == (True, True, "m")


def test_disconnects_cover_the_answer_and_the_time_before_it():
    rng = random.Random(0)
    moments = [draw_disconnect(rng, 40) for _ in range(4000)]
    assert {one.after_deltas for one in moments} == set(range(40))
    early = sum(one.after_deltas == 0 for one in moments) / 4000
    assert 0.18 < early < 0.27
    assert draw_disconnect(rng, 1).after_deltas == 0


def test_poisson_arrivals_have_exponential_gaps():
    moments = list(islice(poisson_arrivals(random.Random(0), 5.0), 20_000))
    gaps = [later - sooner for sooner, later in pairwise([0.0, *moments])]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert abs(mean - 0.2) < 0.005
    assert abs(deviation / mean - 1) < 0.03  # of an exponential distribution: equal to the mean
    assert all(gap > 0 for gap in gaps)
    assert moments == list(islice(poisson_arrivals(random.Random(0), 5.0), 20_000))


@pytest.mark.parametrize(("text", "parsed"), [("64", TokenRange(64, 64)), ("32-128", TokenRange(32, 128))])
def test_token_range_is_parsed(text, parsed):
    assert TokenRange.parse(text, "x") == parsed
    assert str(parsed) == text


@pytest.mark.parametrize("text", ["0", "a", "9-3", "-4", "1-2-3", ""])
def test_invalid_token_range_is_refused(text):
    with pytest.raises(ConfigError, match="--prompt-tokens"):
        TokenRange.parse(text, "--prompt-tokens")


@pytest.mark.parametrize(
    "wrong", [{"deterministic_share": 1.1}, {"disconnect_share": -0.1}, {"pool_len": -1}]
)
def test_invalid_workload_config_is_refused(wrong):
    with pytest.raises(ConfigError):
        config(**wrong)


def test_corpus_depends_on_its_seed():
    assert corpus(0) == corpus(0) != corpus(1)
    assert len(" ".join(corpus(0)).split()) == 1000
