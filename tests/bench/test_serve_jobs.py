"""What a load asks: drawn by a seed, in the shares that were wanted."""

import random
from itertools import islice, pairwise

import pytest

from holdfast.bench.serve.workload import Jobs, Shape, Span, corpus, draw_leaving, poisson
from holdfast.errors import ConfigError

CORPUS = range(1000, 1500)


def shape(**changes):
    return Shape(
        **{"prompt_tokens": Span(5, 9), "output_tokens": Span(3, 7), "deterministic_share": 0.5} | changes
    )


def draw(count, *, seed="", **changes):
    jobs = Jobs(shape(**changes), CORPUS, seed)
    return [jobs.draw() for _ in range(count)]


def test_a_seed_gives_the_same_requests_each_time():
    assert draw(50, disconnect_share=0.3) == draw(50, disconnect_share=0.3)
    assert draw(50) != draw(50, seed=1)
    assert Jobs(shape(seed=1), CORPUS).pool != Jobs(shape(), CORPUS).pool


def test_another_round_has_the_same_pool_and_other_prompts():
    first, second = (Jobs(shape(), CORPUS, number) for number in (1, 2))
    assert first.pool == second.pool
    prompts = [{jobs.draw(False).prompt_ids for _ in range(100)} for jobs in (first, second)]
    assert not prompts[0] & prompts[1]


def test_ordinary_prompts_begin_differently():
    begins = {job.prompt_ids[:3] for job in draw(200, deterministic_share=0.0)}
    assert len(begins) == 200


def test_shares_are_kept():
    jobs = draw(4000, deterministic_share=0.33, disconnect_share=0.1)
    assert abs(sum(job.deterministic for job in jobs) / 4000 - 0.33) < 0.03
    assert abs(sum(job.leaving is not None for job in jobs) / 4000 - 0.1) < 0.02
    assert not any(job.deterministic for job in draw(100, deterministic_share=0.0))
    assert all(job.deterministic for job in draw(100, deterministic_share=1.0))


def test_lengths_are_in_their_ranges_and_reach_both_ends():
    jobs = draw(400, deterministic_share=0.0)
    assert {len(job.prompt_ids) for job in jobs} == set(range(5, 10))
    assert {job.max_tokens for job in jobs} == set(range(3, 8))


def test_a_prompt_may_be_longer_than_the_corpus_or_one_token_long():
    assert len(draw(1, prompt_tokens=Span(1200, 1200))[0].prompt_ids) == 1200
    assert len(draw(1, prompt_tokens=Span(1, 1))[0].prompt_ids) == 1


def test_a_pool_prompt_is_asked_in_one_way_only():
    jobs = draw(500, pool_len=3, deterministic_share=1.0)
    assert {job.pool_number for job in jobs} == {0, 1, 2}
    assert len(set(jobs)) == 3
    assert {job.temperature for job in jobs} == {0.0, 0.8}


def test_without_a_pool_deterministic_requests_are_like_ordinary_ones():
    jobs = draw(200, pool_len=0)
    assert all(job.pool_number is None for job in jobs)
    assert 60 < sum(job.deterministic for job in jobs) < 140
    assert len({job.prompt_ids for job in jobs}) == 200


def test_the_body_asks_for_the_guarantee_only_where_it_is_wanted():
    ordinary, deterministic = (Jobs(shape(), CORPUS).draw(kind) for kind in (False, True))
    assert "deterministic" not in ordinary.body("m")
    body = deterministic.body("m")
    assert body["deterministic"] is True
    assert body["prompt"] == deterministic.prompt_ids
    assert (body["stream"], body["ignore_eos"], body["model"]) == (True, True, "m")


def test_clients_leave_at_every_moment_of_an_answer_one_in_five_before_it():
    rng = random.Random(0)
    moments = [draw_leaving(rng, 40) for _ in range(4000)]
    assert {one.after_pieces for one in moments} == set(range(40))
    early = sum(one.after_pieces == 0 for one in moments) / 4000
    assert 0.18 < early < 0.27
    assert draw_leaving(rng, 1).after_pieces == 0


def test_poisson_arrivals_have_their_rate_and_the_spread_of_chance():
    moments = list(islice(poisson(random.Random(0), 5.0), 20_000))
    gaps = [later - sooner for sooner, later in pairwise([0.0, *moments])]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert abs(mean - 0.2) < 0.005
    assert abs(deviation / mean - 1) < 0.03  # of an exponential: as large as its mean
    assert all(gap > 0 for gap in gaps)
    assert moments == list(islice(poisson(random.Random(0), 5.0), 20_000))


@pytest.mark.parametrize(("text", "span"), [("64", Span(64, 64)), ("32-128", Span(32, 128))])
def test_spans(text, span):
    assert Span.parse(text, "x") == span
    assert str(span) == text


@pytest.mark.parametrize("text", ["0", "a", "9-3", "-4", "1-2-3", ""])
def test_what_is_no_span(text):
    with pytest.raises(ConfigError, match="--prompt-tokens"):
        Span.parse(text, "--prompt-tokens")


@pytest.mark.parametrize(
    "wrong", [{"deterministic_share": 1.1}, {"disconnect_share": -0.1}, {"pool_len": -1}]
)
def test_shapes_that_cannot_be(wrong):
    with pytest.raises(ConfigError):
        shape(**wrong)


def test_the_corpus_is_text_and_belongs_to_its_seed():
    assert corpus(0) == corpus(0) != corpus(1)
    assert len(" ".join(corpus(0)).split()) == 1000
