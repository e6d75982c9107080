"""Models with recurrent state in a whole engine: what continues, what is shared, what is scored, and memory."""

import random
from dataclasses import replace
from typing import Any

import pytest
from test_resumed_answers import check_resumes

from holdfast.core.pooling import Pooling, PoolingType
from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams, score_params
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.start.builder import assemble
from holdfast.engine.start.preflight import OpenedModel
from holdfast.errors import ConfigError
from holdfast.models.dummy import DummyCheckpoint, tiny_config
from holdfast.worker.kv_store import NUM_SCRATCH_STATES
from support.stepping import answer

PROMPT = [(n * n * 7) % 290 + 3 for n in range(300)]
MODELS: dict[str, dict[str, Any]] = {
    "lfm2": {
        "num_hidden_layers": 3,
        "layer_types": ["conv", "full_attention", "conv"],
        "block_auto_adjust_ff_dim": False,
    },
    "qwen3_5_text": {
        "num_hidden_layers": 3,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "head_dim": 16,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    },
}


def open_engine(name: str, **options: Any) -> Engine:
    model = tiny_config(model_type=name, architectures=None, **MODELS[name])
    settings = {"kernels": "c", "max_num_seqs": 8, "max_pass_tokens": 64, "certification": "background"}
    config = EngineConfig(**(settings | options))
    return assemble(OpenedModel(config, model), DummyCheckpoint(model, deviation=0.25))


@pytest.fixture(scope="module", params=MODELS)
def engine(request: pytest.FixtureRequest) -> Engine:
    return open_engine(request.param)


def params(**changes: Any) -> SamplingParams:
    settings = {"max_tokens": 24, "temperature": 1.0, "seed": 3, "deterministic": True, "ignore_eos": True}
    return SamplingParams(**(settings | {"logprobs": 0} | changes))


def answers(engine: Engine, prompts: list[list[int]], how: SamplingParams) -> list[Result]:
    """The answers of requests that are sent at once, in their order."""
    return answer(engine, [engine.prepare(prompt, how) for prompt in prompts])


def fresh(engine: Engine) -> Engine:
    return engine.restarted(engine.scheduler.config)


@pytest.mark.parametrize("deterministic", [True, False], ids=["deterministic", "ordinary"])
def test_an_answer_continues_on_another_engine(engine: Engine, deterministic: bool) -> None:
    how = params(deterministic=deterministic, n=2)
    check_resumes(engine, how, random.Random(1), prompt=PROMPT[:40], num_places=2, num_neighbours=2)


def test_an_answer_is_scored_as_it_was_generated(engine: Engine) -> None:
    engine = fresh(engine)
    (made,) = answers(engine, [PROMPT[:70]], params())
    choice = made.choices[0]
    assert choice.logprobs is not None
    whole = PROMPT[:70] + list(choice.token_ids)
    for _ in range(2):  # the second time some pages are cached
        (scored,) = answers(engine, [whole], params(max_tokens=1, prompt_logprobs=0))
        assert scored.prompt_logprobs is not None
        found = [one.logprob for one in scored.prompt_logprobs[70:] if one is not None]
        assert found == [one.logprob for one in choice.logprobs]


@pytest.mark.parametrize("num_shared", [200, 293])
def test_what_requests_share_is_computed_once(engine: Engine, num_shared: int) -> None:
    engine = fresh(engine)
    prompts = [PROMPT[:num_shared] + [3 + number] * 9 for number in range(8)]
    found = answers(engine, prompts, params(max_tokens=3))
    cached = [one.stats.cached_tokens for one in found]
    assert cached == [0] + [num_shared // 16 * 16] * 7
    alone = [answers(fresh(engine), [prompt], params(max_tokens=3))[0] for prompt in prompts[:3]]
    assert [one.choices for one in found[:3]] == [one.choices for one in alone]
    (again,) = answers(engine, [PROMPT[:num_shared] + [2] * 20], params(max_tokens=3))
    assert again.stats.cached_tokens == num_shared // 16 * 16


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_an_embedding_has_one_value(engine: Engine, pooling: PoolingType) -> None:
    """Alone, and in chunks beside answers that share its beginning."""
    prompt, how = PROMPT[:150], score_params(deterministic=True)

    def embed(one: Engine, neighbours: int) -> bytes | None:
        load = [
            one.prepare(prompt[: 40 * number + 20], params(deterministic=number % 2 == 0))
            for number in range(neighbours)
        ]
        return answer(one, [*load, one.prepare(prompt, how, pooling=Pooling(pooling))])[-1].embedding

    alone = embed(fresh(engine), 0)
    assert alone is not None
    chunks = engine.restarted(replace(engine.scheduler.config, max_pass_tokens=32))
    assert [embed(chunks, 3), embed(chunks, 0)] == [alone, alone]


def test_states_are_planned_in_the_memory_for_kv() -> None:
    """A state of this model takes 2 layers of 4 heads of 16 x 16 numbers, and a log of 40 rows of 136."""
    one = 2 * (4 * 4 * 16 * 16 + 40 * 136 * 4)
    engine = open_engine("qwen3_5_text", kv_memory=f"{2 * one * (NUM_SCRATCH_STATES + 4 + 3)}B")
    assert (engine.scheduler.config.max_num_seqs, engine.scheduler.config.num_states) == (3, 7)
    prompts = [PROMPT[number : number + 30] for number in range(6)]
    few = answers(engine, prompts, params())
    many = answers(open_engine("qwen3_5_text"), prompts, params())
    assert [one.choices for one in few] == [one.choices for one in many]
    with pytest.raises(ConfigError, match="recurrent states"):
        open_engine("qwen3_5_text", kv_memory=f"{2 * one * (NUM_SCRATCH_STATES + 4)}B")
