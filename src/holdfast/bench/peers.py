"""Figures of vLLM on the same kind of machine, measured by us, and our goals.

Llama-3.1-8B and Qwen3-0.6B shapes, random weights, bf16, 512 prompt tokens and 256 output tokens, N
concurrent requests, FlashAttention-3, CUDA graphs, asynchronous scheduling, no prefix cache.
Batch-invariant is vLLM's deterministic mode.
"""

from collections.abc import Mapping
from dataclasses import dataclass

SOURCE = "vLLM 0.26.0 on an H200"


@dataclass(frozen=True)
class Peer:
    """tok/s over the whole run and ms per decode step, without and with batch invariance."""

    speed: float
    invariant_speed: float
    step_ms: float | None = None
    invariant_step_ms: float | None = None


VLLM: Mapping[str, Mapping[int, Peer]] = {
    "llama-3.1-8b": {
        1: Peer(202, 55, 4.91, 18.3),
        8: Peer(1473, 442, 5.11, 17.7),
        32: Peer(4426, 1708, 5.84, 17.0),
        128: Peer(8892, 6428, 8.70, 12.6),
        256: Peer(10105, 7851, 13.85, 18.0),
    },
    "qwen3-0.6b": {1: Peer(528, 260), 32: Peer(12197, 7634), 256: Peer(30813, 27927)},
}
VLLM_PREFILL: Mapping[str, float] = {"llama-3.1-8b": 44000}

# Goals: minimal tok/s of deterministic requests in `auto`, and maximal ms per decode step.
GOALS: Mapping[str, Mapping[int, tuple[float, float | None]]] = {
    "llama-3.1-8b": {1: (222, 4.4), 8: (1600, 4.6), 32: (4650, 5.3), 128: (8950, 8.2), 256: (10200, 12.8)},
    "qwen3-0.6b": {1: (500, None), 32: (11500, None), 256: (30000, None)},
}
GOAL_PREFILL = 42000.0
GOAL_AUTO_RATIO, GOAL_VERIFY_RATIO = 0.98, 0.80


def peer_of(model: str, streams: int) -> Peer | None:
    return VLLM.get(model, {}).get(streams)
