"""Spans, passes, requests and results: what their properties say."""

from holdfast.core.request import Request
from holdfast.core.results import Choice, Result, Stats
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import Pass, PassKind, Sampling, Span, StepPlan, TokenLogprob


def span(start: int, count: int, sample_from: int) -> Span:
    return Span(1, start, tuple(range(count)), (0,), sample_from, Sampling(SamplingParams(), 0, 4))


def test_span_counts_tokens_and_sampled_tokens() -> None:
    chunk = span(8, 4, 3)
    assert (chunk.num_tokens, chunk.stop, chunk.num_sampled) == (4, 12, 1)
    assert span(0, 4, 4).num_sampled == 0


def test_pass_num_tokens_excludes_padding() -> None:
    one = Pass(PassKind.FAST, (span(0, 3, 2), span(5, 1, 0)), num_tokens_padded=8)
    assert one.num_tokens == 4
    assert StepPlan((one,))
    assert not StepPlan(())


def test_request_max_len_is_prompt_and_answer() -> None:
    request = Request(3, (1, 2, 3), SamplingParams(max_tokens=5), seed=0)
    assert (request.prompt_len, request.max_len) == (3, 8)


def test_result_properties_are_those_of_its_first_choice() -> None:
    logprobs = (TokenLogprob(4, -0.5),)
    choice = Choice("hi", (4,), "stop", logprobs)
    result = Result((1,), (choice,), 7, "none", Stats())
    assert (result.text, result.token_ids, result.finish_reason) == ("hi", (4,), "stop")
    assert result.logprobs is logprobs
    assert result.thoughts == ()
