"""A request that no token can be chosen for ends with an error. The others go on, with the same bits."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from holdfast import SamplingParams
from holdfast.core.results import Result
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.start.builder import assemble
from holdfast.engine.start.preflight import OpenedModel
from holdfast.models.dummy import DummyCheckpoint, tiny_config
from support.stepping import answer

BROKEN = 200  # a token whose embedding is not a number
GOOD, BAD = (11, 12, 13, 14), (11, BROKEN, 13, 14)
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0.9, "top_p": 0.9, "seed": 5},
    {"temperature": 0.9, "top_k": 20, "seed": 6, "logprobs": 2},
    {"temperature": 0.9, "presence_penalty": 1.0, "seed": 7, "logprobs": 1},
]


class BadWeights(DummyCheckpoint):
    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        tensor = super().tensor(name, dtype)
        if name == "model.embed_tokens.weight":
            tensor[BROKEN] = torch.nan
        return tensor


@pytest.fixture(scope="module", params=["c", pytest.param("torch", marks=pytest.mark.long)])
def engine(request: pytest.FixtureRequest) -> Engine:
    config = EngineConfig(device="cpu", kernels=request.param, kv_memory="4MiB", prefix_cache=False)
    checkpoint = BadWeights(tiny_config(num_hidden_layers=1), deviation=0.25)
    return assemble(OpenedModel(config, checkpoint.config), checkpoint)


def run(engine: Engine, *requests: tuple[tuple[int, ...], SamplingParams]) -> list[Result]:
    return answer(engine, [engine.prepare(prompt, params) for prompt, params in requests])


@pytest.mark.parametrize("mode", ["auto", "verify", "off"])
@pytest.mark.parametrize("is_async", [False, True], ids=["", "async"])
def test_logits_that_are_no_numbers_end_one_request(engine: Engine, mode: Any, is_async: bool) -> None:
    schedule = replace(engine.scheduler.config, determinism=mode, async_scheduling=is_async)
    engine = engine.restarted(schedule)
    settings = SETTINGS[: 3 if is_async else 4]  # a CPU keeps no tokens for penalties of unread plans
    params = [
        SamplingParams(max_tokens=12, ignore_eos=True, deterministic=mode != "off", **one) for one in settings
    ]
    alone = [run(engine, (GOOD, one))[0] for one in params]
    together = run(engine, *((prompt, one) for one in params for prompt in (GOOD, BAD)))
    for one, good, bad in zip(alone, together[::2], together[1::2], strict=True):
        assert (good.error, len(good.token_ids)) == (None, 12)
        if mode != "off":
            assert (good.token_ids, good.logprobs) == (one.token_ids, one.logprobs)
        assert (bad.finish_reason, bad.token_ids) == ("error", ())
        assert bad.error is not None and "not finite numbers" in bad.error
        assert bad.error_code == "not_finite"
