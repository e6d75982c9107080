"""Two engines over random weights of a named shape: one with the guarantee, one with the library's
plain products.

Both use the same weights, KV store and tokenizer; only the products of their fast passes differ.
They never run at the same time.
"""

from dataclasses import dataclass, replace
from typing import cast

import torch

from holdfast.bench.gpu.settings import TINY, TINY_MOE
from holdfast.bench.tiny import tiny_config, tiny_moe_config
from holdfast.engine.builder import assemble
from holdfast.engine.chat_tokenizer import ChatTokenizer
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.llm import LLM
from holdfast.engine.status import ShowProgress
from holdfast.models.config import DecoderConfig
from holdfast.models.dummy import DummyCheckpoint
from holdfast.models.shapes import published_config
from holdfast.numerics.batch_sizes import padded_batch_sizes
from holdfast.numerics.recipe import KernelBackend
from holdfast.numerics.select_backend import open_backend
from holdfast.scheduler.policy import DeterminismMode
from holdfast.text.tokenizer import byte_tokenizer
from holdfast.worker.model_runner import ModelRunner

_PAGE_SPARE = 128  # positions of a request's last page, and of one more page for a spot check


@dataclass(frozen=True)
class EnginePair:
    """`exact` runs its fast passes by the recipe, `plain` with the library's own products."""

    exact: Engine
    plain: Engine

    def engine(self, mode: DeterminismMode, *, plain: bool, prefix_cache: bool = False) -> Engine:
        """A fresh engine without speculation, with an empty prefix cache or none."""
        source = self.plain if plain else self.exact
        schedule = replace(
            source.scheduler.config, determinism=mode, prefix_cache=prefix_cache, speculation="off"
        )
        return source.restarted(schedule)


def shape_config(name: str) -> DecoderConfig:
    tiny = {TINY: tiny_config, TINY_MOE: tiny_moe_config}
    return tiny[name]() if name in tiny else published_config(name)


def default_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def kv_bytes_per_token(config: DecoderConfig, itemsize: int) -> int:
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * itemsize


def open_engine_pair(
    shape: str,
    dtype: str,
    kernels: str,
    max_streams: int,
    num_positions: int,
    max_len: int,
    show: ShowProgress | None = None,
) -> EnginePair:
    """Open both engines. num_positions is the capacity of the KV cache, over all requests."""
    device = default_device()
    config = shape_config(shape)
    itemsize = 4 if dtype == "fp32" else 2
    positions = num_positions + (max_streams + 1) * _PAGE_SPARE + max_len
    engine_config = EngineConfig(
        certification="startup",
        dtype=dtype,
        device=str(device.type),
        kernels=cast(KernelBackend, kernels),
        max_num_seqs=max_streams,
        max_model_len=min(max_len, config.max_position_embeddings),
        kv_memory=positions * kv_bytes_per_token(config, itemsize),
        prefix_cache=False,
        speculation="off",
    )
    exact = assemble(engine_config, DummyCheckpoint(config, device=device), byte_tokenizer(), show)
    exact.prepare_fully()
    return EnginePair(exact, open_plain_engine(exact, show))


def llm_over(engine: Engine) -> LLM:
    """An `LLM` whose engine is already built."""
    llm = LLM.__new__(LLM)
    llm.config, llm.engine = EngineConfig(), engine
    llm._tokenizer = ChatTokenizer(engine.tokenizer)
    return llm


def open_plain_engine(engine: Engine, show: ShowProgress | None = None) -> Engine:
    """An engine on the same weights and KV cache whose fast passes use the library's own products."""
    runner = cast(ModelRunner, engine.runner)
    decoder, schedule = runner._decoder, engine.scheduler.config
    backend = decoder.backend
    if backend.device.type == "cuda":  # on a CPU, fast passes are plain already
        backend = open_backend(
            decoder.dtype,
            kernels="triton",
            num_threads=torch.get_num_threads(),
            device=backend.device,
            vendor_gemm=True,
            split_k={
                (one.linear.out_features, one.linear.in_features): one.linear.split_k
                for one in decoder.linears()
            },
        )
    plain_engine = engine.restarted(schedule)
    plain = ModelRunner(decoder.with_backend(backend), runner._store)
    canonical = [count * schedule.reference_tokens for count in (1, 2)]
    progress = None if show is None else (lambda done, total: show("Capturing plain graphs", done, total))
    plain.capture(
        padded_batch_sizes(schedule.max_pass_tokens), canonical, progress, max_len=engine.limits.max_model_len
    )
    plain_engine.runner = plain
    return plain_engine
