"""Engines over random weights on the device of the tests, and their answers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.start.builder import assemble
from holdfast.engine.start.preflight import OpenedModel
from holdfast.models.config import DecoderConfig
from holdfast.models.dummy import DummyCheckpoint, tiny_config
from holdfast.models.shapes import published_config
from holdfast.worker.model_runner import ModelRunner
from support.stepping import answer

HAS_GPU = torch.cuda.is_available()


def default_device() -> torch.device:
    """A GPU if torch sees one."""
    return torch.device("cuda" if HAS_GPU else "cpu")


def config_of(shape: str) -> DecoderConfig:
    """The shape "tiny" has the smallest sizes that the GPU kernels accept. Without a GPU every shape is "tiny"."""
    if shape == "tiny" or not HAS_GPU:
        return tiny_config(
            hidden_size=256,
            intermediate_size=512,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=64,
            vocab_size=1024,
            torch_dtype="bfloat16" if HAS_GPU else "float32",
        )
    return published_config(shape)


def open_engine(shape: str = "tiny", **settings: Any) -> Engine:
    model = config_of(shape)
    defaults: dict[str, Any] = {"max_num_seqs": 32, "kv_memory": "256MiB", "max_model_len": 1024}
    config = EngineConfig(device=default_device().type, **(defaults | settings))
    deviation = 0.25 if model.hidden_size == 256 else 0.05
    checkpoint = DummyCheckpoint(model, deviation=deviation, device=default_device())
    return assemble(OpenedModel(config, model), checkpoint)


def with_runner(engine: Engine, runner: Any) -> Engine:
    other = engine.restarted(engine.scheduler.config)
    other.runner = runner
    return other


def eager(engine: Engine, backend: Any = None) -> Engine:
    """The same weights and pages without CUDA graphs, and with another backend if one is given."""
    runner = cast(ModelRunner, engine.runner)
    decoder = runner._decoder if backend is None else runner._decoder.with_backend(backend)
    return with_runner(engine, ModelRunner(decoder, runner._store))


def scheduled(engine: Engine, num_pages: int | None = None, **changes: Any) -> Engine:
    return engine.restarted(replace(engine.scheduler.config, **changes), num_pages)


def prompt(length: int, seed: int = 1) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(2, 256, (length,), generator=generator).tolist())


def answers(
    engine: Engine, requests: Sequence[tuple[Sequence[int], SamplingParams]], *, may_fail: bool = False
) -> list[Result]:
    """Run all requests together to the end. No page is held after that."""
    found = answer(engine, [engine.prepare(tokens, params) for tokens, params in requests])
    assert may_fail or not [result.error for result in found if result.error is not None]
    return found


def outcome(result: Result) -> tuple[object, ...]:
    """Tokens and the exact values of logprobs."""
    return tuple((choice.token_ids, choice.logprobs) for choice in result.choices)
