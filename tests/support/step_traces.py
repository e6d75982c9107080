"""Traces of a step, made by hand."""

from dataclasses import replace

from holdfast.engine.tracer import PassTrace, SequenceTrace, StepTrace

SEQUENCE = SequenceTrace(
    request_id=7,
    answers=7,
    deterministic=True,
    phase="decode",
    prompt_len=2,
    cached_len=0,
    committed_len=3,
    canonical_len=2,
    computed_len=3,
    num_pages=1,
    committed_from=0,
    committed_ids=(1, 2, 3),
    candidate_ids=(4,),
)
FIRST = StepTrace(
    step=1,
    is_first=True,
    milliseconds=0.0,
    passes=(),
    sequences=(SEQUENCE,),
    ended=(),
    num_running=1,
    num_waiting=0,
    pages_used=1,
    num_pages=10,
    page_size=16,
)


def step(number: int, *sequences: SequenceTrace, ended: tuple[tuple[int, str], ...] = ()) -> StepTrace:
    passes = (PassTrace("fast", False, 1, 1, ((7, 3, 1),)),)
    return replace(FIRST, step=number, is_first=False, passes=passes, sequences=sequences, ended=ended)
