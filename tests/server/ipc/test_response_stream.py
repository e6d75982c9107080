"""The outputs of one request, as the frontend holds them."""

import asyncio

from holdfast.core.request import Request
from holdfast.core.results import Delta, Result, Stats
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.step_plan import TokenLogprob
from holdfast.server.ipc.response_stream import ResponseStream

SCORES = (TokenLogprob(6, -0.5), TokenLogprob(7, -1.5))
RESULT = Result((), (), 0, "none", Stats())


def stream_of(*prompt_ids: int, read_len: int | None = None, **params: int | bool) -> ResponseStream:
    request = Request(1, prompt_ids, SamplingParams(**params), 0, read_len)  # type: ignore[arg-type]
    return ResponseStream(request, asyncio.Event(), lambda stream: None)


def test_answers_wait_for_the_logprobs_of_an_echoed_prompt() -> None:
    stream = stream_of(5, 6, 7, echo=True, prompt_logprobs=1)
    stream.add(Delta("text", (8,)))
    assert stream.holds_back and stream.prompt_logprobs == ()
    stream.scores = SCORES
    assert not stream.holds_back and stream.prompt_logprobs == (None, *SCORES)
    failed = stream_of(5, 6, 7, echo=True, prompt_logprobs=1)
    failed.fail(ValueError())
    assert not failed.holds_back
    others = ({"echo": True}, {"prompt_logprobs": 1}, {})
    assert not any(stream_of(5, 6, 7, **params).holds_back for params in others)
    assert not stream_of(5, echo=True, prompt_logprobs=0).holds_back


def test_result_has_the_logprobs_that_came_before_it() -> None:
    for prompt_ids, read_len, scores, expected in (
        ((5, 6, 7), None, SCORES, (None, *SCORES)),
        ((5, 6, 7), 1, SCORES, (None, *SCORES)),
        ((4, 5, 6, 7), 2, SCORES, SCORES),
        ((5,), None, (), (None,)),
    ):
        stream = stream_of(*prompt_ids, read_len=read_len, max_tokens=0, prompt_logprobs=0)
        stream.scores = scores
        stream.finish(RESULT)
        assert stream.result is not None and stream.result.prompt_logprobs == expected
    plain = stream_of(5, 6, 7)
    plain.finish(RESULT)
    assert plain.result is not None and plain.result.prompt_logprobs is None
