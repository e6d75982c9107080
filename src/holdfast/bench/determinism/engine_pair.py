"""Two engines for tests of determinism: one with the guarantee, one with the library's plain products.

Both use the same weights, KV store and tokenizer; only the products of their fast passes differ.
They never run at the same time. No user has such engines, so no speed is measured with them.
"""

from dataclasses import dataclass, replace
from typing import cast

import torch

from holdfast.engine.engine import Engine
from holdfast.engine.status import ShowProgress
from holdfast.numerics.batch_sizes import padded_batch_sizes
from holdfast.numerics.select_backend import open_backend
from holdfast.scheduler.policy import DeterminismMode
from holdfast.worker.model_runner import ModelRunner


@dataclass(frozen=True)
class EnginePair:
    """`exact` runs its fast passes by the recipe, `plain` with the library's own products."""

    exact: Engine
    plain: Engine

    def engine(self, mode: DeterminismMode, *, plain: bool) -> Engine:
        """A fresh engine without speculation and with an empty prefix cache."""
        source = self.plain if plain else self.exact
        return source.restarted(replace(source.scheduler.config, determinism=mode, speculation="off"))


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
