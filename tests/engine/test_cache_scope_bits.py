"""The same request has the same bits with and without tenants, salts and limits."""

from typing import TYPE_CHECKING, Any

from holdfast.core.sampling_params import SamplingParams
from holdfast.core.shares import Share
from support.stepping import answer

if TYPE_CHECKING:
    from holdfast.engine.llm.llm import LLM

PROMPT = tuple(range(60, 130))
PARAMS = SamplingParams(max_tokens=8, temperature=0.9, seed=5, logprobs=3, deterministic=True)
SCOPES: list[dict[str, Any]] = [
    {},
    {"share": Share("key:alice")},
    {"share": Share("key:alice", 1), "cache_salt": "a"},
    {"share": Share("key:bob"), "cache_salt": "b"},
    {"share": Share("key:bob"), "cache_salt": "b"},
]


def test_scopes_change_the_cached_tokens_and_no_bit(auto_llm: "LLM") -> None:
    engine = auto_llm.engine
    results = []
    for scope in SCOPES:
        results += answer(engine, [engine.prepare(PROMPT, PARAMS, want_receipt=False, **scope)])
    assert [result.stats.cached_tokens for result in results] == [0, 64, 0, 0, 64]
    assert len({(tuple(result.token_ids), repr(result.logprobs)) for result in results}) == 1
