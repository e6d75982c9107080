"""One deterministic request inside 200 random loads: one answer, to the bit. Without the guarantee: several."""

from dataclasses import replace

import pytest
from pricking import PROMPT, engine, outcome, params, scale

from holdfast import LLM
from holdfast.bench.needle import Haystack, Neighbour, Scale, outcome_of, prick, run_in
from holdfast.bench.survey import products_disagree
from holdfast.core.params import SamplingParams
from holdfast.engine.config import Kernels
from holdfast.errors import ModelNotFound
from holdfast.models.locate import locate
from holdfast.schedule.policy import DeterminismMode

BOTH = ("auto", "verify")


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize(("kernels", "num_runs"), [("compiled", 26), ("library", 19)])
def test_one_answer_in_any_load(kernels: Kernels, num_runs: int, dtype: str, temperature: float) -> None:
    one = engine(kernels, dtype)
    assert one.limits.refusal is None
    tally = prick(one, PROMPT, params(temperature), BOTH, num_runs, scale=scale(kernels))
    answer = outcome(tally)
    assert len(answer.token_ids) == 24
    assert tally.stats.candidates > 0  # verify had something to verify


@pytest.mark.parametrize("mode", BOTH)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_preemption_inside_the_answer_changes_nothing(temperature: float, mode: DeterminismMode) -> None:
    one = engine("compiled", "fp32")
    schedule = replace(one.scheduler.config, determinism=mode)
    growing = SamplingParams(max_tokens=60, temperature=0, ignore_eos=True)
    crowd = tuple(Neighbour((number + 2,) * 12, growing, 0, None) for number in range(7))
    alone = run_in(one, Haystack((), 0, 0, schedule, 64), PROMPT, params(temperature))
    pushed = run_in(one, Haystack(crowd, 2, 0, schedule, 17), PROMPT, params(temperature))
    assert pushed.stats.preemptions > 0
    assert outcome_of(pushed) == outcome_of(alone)


def test_without_the_guarantee_the_needle_pricks() -> None:
    if not products_disagree():
        pytest.skip("on this CPU the fp32 product is one bit class from 1 to 16 rows: nothing can differ")
    one = engine("library", "fp32")
    tally = prick(one, PROMPT, params(0.0, deterministic=False), ("off",), 12, scale=scale("library"))
    assert tally.num_distinct > 1
    assert len({each.token_ids for each in tally.outcomes}) > 1  # not only logprobs: tokens


@pytest.fixture(scope="module")
def smollm2() -> LLM:
    try:
        locate(None)
    except ModelNotFound as error:
        pytest.skip(str(error))
    return LLM(dtype="bf16", kv_memory="256MiB", max_model_len=2048)


@pytest.mark.smollm2
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_one_answer_of_the_default_model(smollm2: LLM, temperature: float) -> None:
    prompt = smollm2.engine.tokenizer.encode("The tide went out and left the rocks bare, and on every rock")
    tally = prick(smollm2.engine, prompt, params(temperature), BOTH, 10, scale=Scale(6, 48, 8))
    assert len(outcome(tally).token_ids) == 24
