"""Where an answer with a grammar may end: the grammar, min_tokens, stop ids and banned tokens
together."""

from typing import Any

import pytest

from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.core.structured_output import StructuredOutput
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from support.grammar_walks import needs_llguidance
from support.tiny import tiny_engine

pytestmark = needs_llguidance


@pytest.fixture(scope="module", params=["auto", "verify"])
def engine(request: pytest.FixtureRequest) -> Engine:
    return tiny_engine(EngineConfig(determinism=request.param, max_pass_tokens=64, max_num_seqs=4))


def answer(engine: Engine, regex: str, **settings: Any) -> Result:
    structured = StructuredOutput(regex=regex)
    params = SamplingParams(
        temperature=0, max_tokens=8, deterministic=True, structured=structured, **settings
    )
    engine.submit(engine.prepare([1, 2, 3], params))
    found = [update.result for _ in range(50) if engine.has_work for update in engine.step()]
    (result,) = [result for result in found if result is not None]
    return result


def letter(engine: Engine, text: str) -> int:
    (token_id,) = engine.tokenizer.encode(text)
    return token_id


def test_stop_id_within_the_grammar_does_not_waive_min_tokens(engine: Engine) -> None:
    result = answer(engine, "aaaa", min_tokens=3, stop_token_ids=[letter(engine, "a")])
    assert result.finish_reason == "error" and "no token is left" in (result.error or "")
    result = answer(engine, "bbba", min_tokens=4, stop_token_ids=[letter(engine, "b")])
    assert result.finish_reason == "error"
    result = answer(engine, "[ab]{4}", min_tokens=3, stop_token_ids=[letter(engine, "a")])
    assert result.finish_reason == "stop" and len(result.token_ids) >= 3


def test_complete_grammar_waives_min_tokens(engine: Engine) -> None:
    result = answer(engine, "ab", min_tokens=6, stop_token_ids=[letter(engine, "c")])
    assert (result.text, result.finish_reason) == ("ab", "stop")
