"""Embeddings: the same bits whatever else runs. tests/parity compares them with transformers."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from adversary.settings import SETTINGS
from holdfast.core.pooling import Pooling, PoolingType
from holdfast.core.request import Prepared
from holdfast.core.results import EmbeddingResult, Result
from holdfast.core.sampling_params import SamplingParams, score_params
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.llm.llm import LLM
from holdfast.errors import InvalidRequest, NotFinite, PromptTooLong
from support.thinking_engines import answer
from support.tiny import VOCAB_SIZE, tiny_engine

PROMPTS = [tuple((7 * index + length) % 300 for index in range(length)) for length in (1, 16, 40, 150)]
POOLINGS: tuple[PoolingType, ...] = ("last", "mean")
LOAD = SamplingParams(max_tokens=40, temperature=0.8, seed=3, ignore_eos=True)
SCHEDULES: dict[str, dict[str, Any]] = {
    "cached": {},
    "small chunks": {"max_pass_tokens": 32},
    "odd chunks": {"max_pass_tokens": 41, "prefix_cache": False},
    "verify": {"determinism": "verify"},
    "async": {"async_scheduling": True, "max_pass_tokens": 32},
    "async verify": {"async_scheduling": True, "determinism": "verify", "max_pass_tokens": 32},
}


@pytest.fixture(scope="module", params=["c", pytest.param("torch", marks=pytest.mark.long)])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Shared by all tests; each restarts it."""
    config = EngineConfig(
        dtype="fp32", kernels=request.param, max_num_seqs=8, max_pass_tokens=64, kv_memory="8MiB"
    )
    return tiny_engine(config)


@pytest.fixture(scope="module")
def truths(engine: Engine) -> dict[PoolingType, list[bytes]]:
    """The embedding of each prompt, computed alone."""
    fresh = restart(engine, prefix_cache=False)
    return {pooling: [embed(fresh, [prompt], pooling)[0] for prompt in PROMPTS] for pooling in POOLINGS}


def restart(engine: Engine, num_pages: int | None = None, **changes: Any) -> Engine:
    return engine.restarted(replace(engine.scheduler.config, **changes), num_pages)


def prepare(engine: Engine, prompt: Sequence[int], pooling: PoolingType, **settings: Any) -> Prepared:
    params = score_params(deterministic=True)
    return engine.prepare(prompt, params, pooling=Pooling(pooling, **settings), want_receipt=False)


def bits_of(results: Sequence[Result]) -> list[bytes]:
    found = [result.embedding for result in results]
    assert all(result.determinism in ("certified", "verified") for result in results)
    assert None not in found
    return [one for one in found if one is not None]


def embed(
    engine: Engine, prompts: Sequence[Sequence[int]], pooling: PoolingType, **settings: Any
) -> list[bytes]:
    return bits_of(answer(engine, [prepare(engine, prompt, pooling, **settings) for prompt in prompts]))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_same_bits_alone_and_beside_other_requests(
    engine: Engine, truths: dict[PoolingType, list[bytes]], schedule: str
) -> None:
    one = restart(engine, **SCHEDULES[schedule])
    answer(one, [one.prepare(prompt, LOAD) for prompt in PROMPTS[2:]])  # fills the prefix cache
    answer(one, [one.prepare(prompt, replace(LOAD, deterministic=True)) for prompt in PROMPTS[2:]])
    load = [
        one.prepare(prompt[:20], replace(LOAD, deterministic=odd > 0))
        for odd, prompt in enumerate(PROMPTS[2:])
    ]
    wanted = [(index, pooling) for index in (3, 0, 2, 1) for pooling in POOLINGS]
    requests = [prepare(one, PROMPTS[index], pooling) for index, pooling in wanted]
    results = answer(one, [*load, *requests])[len(load) :]
    assert bits_of(results) == [truths[pooling][index] for index, pooling in wanted]
    for (index, pooling), result in zip(wanted, results, strict=True):
        # Mean pooling needs every hidden state, which the cache does not have.
        uses_cache = pooling == "last" and index >= 2 and one.scheduler.config.prefix_cache
        assert (result.stats.cached_tokens > 0) == uses_cache


@pytest.mark.parametrize("pooling", POOLINGS)
def test_prompts_that_share_a_prefix_at_once(engine: Engine, pooling: PoolingType) -> None:
    """For the last hidden state it is computed once; the mean needs all states of each prompt."""
    prompts = [(*PROMPTS[3][:144], number, 9) for number in range(5)]
    fresh = restart(engine, prefix_cache=False)
    truth = [embed(fresh, [prompt], pooling)[0] for prompt in prompts]
    one = restart(engine)
    results = answer(one, [prepare(one, prompt, pooling) for prompt in prompts])
    assert bits_of(results) == truth
    shared = 144 if pooling == "last" else 0
    assert [result.stats.cached_tokens for result in results] == [0] + [shared] * 4


@pytest.mark.parametrize("pooling", POOLINGS)
def test_same_bits_after_preemption(engine: Engine, pooling: PoolingType) -> None:
    """The answers of older requests take the pages of a prompt that is half pooled."""
    prompt = PROMPTS[3] * 4
    (truth,) = embed(restart(engine), [prompt], pooling)
    one = restart(engine, num_pages=46, max_pass_tokens=32, speculation="off")
    load = [one.prepare(PROMPTS[1], replace(LOAD, max_tokens=90, seed=seed)) for seed in range(4)]
    *_, result = answer(one, [*load, prepare(one, prompt, pooling)])
    assert result.stats.preemptions > 0
    assert bits_of([result]) == [truth]


def test_mean_is_the_sum_in_double_precision_in_order(engine: Engine) -> None:
    """The last hidden states of a prompt's prefixes are its hidden states."""
    prompt = PROMPTS[2]
    prefixes = [prompt[:stop] for stop in range(1, len(prompt) + 1)]
    total = np.zeros(64)
    for state in embed(restart(engine), prefixes, "last", normalize=False):
        total += np.frombuffer(state, "<f4")
    (mean,) = embed(restart(engine), [prompt], "mean", normalize=False)
    assert mean == (total / len(prompt)).astype("<f4").tobytes()


def test_settings_of_the_calling_thread_change_no_bit(
    engine: Engine, truths: dict[PoolingType, list[bytes]]
) -> None:
    rounding = [each for each in SETTINGS if each.name == "rounding mode"]
    if not rounding:
        pytest.skip("the number of the rounding mode is unknown here")
    one = restart(engine)
    with rounding[0].use():
        found = embed(one, PROMPTS[3:], "mean")
    assert found == truths["mean"][3:]


def test_dimensions_truncate_before_the_norm(auto_llm: LLM) -> None:
    (raw,) = auto_llm.embed([PROMPTS[1]], normalize=False)
    (short,) = auto_llm.embed([PROMPTS[1]], normalize=False, dimensions=5)
    (unit,) = auto_llm.embed([PROMPTS[1]], dimensions=5)
    assert list(short) == raw[:5]
    np.testing.assert_allclose(unit, np.array(short) / np.linalg.norm(short), rtol=1e-6)


def test_result_has_vllms_shape(auto_llm: LLM) -> None:
    result = auto_llm.embed("the dog")[0]
    assert isinstance(result, EmbeddingResult) and result.finished and result.determinism == "none"
    assert result.outputs.embedding == result.embedding == list(result) and result.outputs.hidden_size == 64
    assert np.asarray(result).shape == (64,) and result[:2] == result.embedding[:2]
    assert list(result.prompt_token_ids) == auto_llm.engine.tokenizer.encode("the dog")


def test_prompts_are_truncated(auto_llm: LLM) -> None:
    long = PROMPTS[3] * 4
    with pytest.raises(PromptTooLong):
        auto_llm.embed([long])
    for limit, kept in ((-1, 512), (3, 3), (1000, 512)):
        if limit > 512:
            long = long[:512]
        (cut,) = auto_llm.embed([long], truncate_prompt_tokens=limit)
        assert cut.prompt_token_ids == long[:kept]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"pooling": "max"}, "pooling must be one of last, mean"),
        ({"dimensions": 0}, "dimensions must be"),
        ({"dimensions": 65}, "at most 64"),
        ({"dimensions": True}, "dimensions must be"),
        ({"normalize": 1}, "normalize must be"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens must be"),
        ({"prompts": [[]]}, "the prompt is empty"),
        ({"prompts": [[VOCAB_SIZE]]}, "not in the vocabulary"),
        ({"prompts": 7}, "prompts must be"),
    ],
)
def test_bad_settings(auto_llm: LLM, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        auto_llm.embed(**{"prompts": [PROMPTS[1]], **settings})


def test_embedding_generates_nothing(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="without generating"):
        engine.prepare(PROMPTS[1], SamplingParams(max_tokens=1), pooling=Pooling())


def test_embedding_that_is_not_finite_is_an_error(auto_llm: LLM) -> None:
    runner = auto_llm.engine.runner
    norm = runner._decoder.layers[-1].next_norm  # type: ignore[attr-defined]
    before = norm.clone()
    norm.fill_(math.inf)
    try:
        with pytest.raises(NotFinite, match="not finite"):
            auto_llm.embed([PROMPTS[1]], pooling="mean")
    finally:
        norm.copy_(before)
    auto_llm.engine.check()
