"""Hand-written step traces."""

from dataclasses import replace

from holdfast.engine.tracer import PassTrace, RequestTrace, StepTrace

REQUEST = RequestTrace(
    request_id=7,
    first_id=7,
    deterministic=True,
    phase="decode",
    prompt_len=2,
    cached_len=0,
    committed_len=3,
    canonical_len=2,
    computed_len=3,
    num_pages=1,
    committed_start=0,
    committed_ids=(1, 2, 3),
    candidate_ids=(4,),
)
FIRST = StepTrace(
    step=1,
    is_first=True,
    milliseconds=0.0,
    passes=(),
    requests=(REQUEST,),
    ended=(),
    num_running=1,
    num_waiting=0,
    num_pages_used=1,
    num_pages=10,
    page_size=16,
)


def step(number: int, *requests: RequestTrace, ended: tuple[tuple[int, str], ...] = ()) -> StepTrace:
    passes = (PassTrace("fast", False, 1, 1, ((7, 3, 1),)),)
    return replace(FIRST, step=number, is_first=False, passes=passes, requests=requests, ended=ended)
