"""Published figures that ours stand beside.

LLM-42 (arXiv 2601.17768), Llama-3.1-8B on one H100, read off its plots, about 1 % precise. SGLang's
figure is that of its deterministic mode in the same plots. Throughput is a share of the same
engine's without determinism.
"""

from collections.abc import Mapping

SOURCE = "LLM-42, arXiv 2601.17768, one H100, read off its plots"

# By workload, then by the percentage of deterministic traffic.
LLM_42: Mapping[str, Mapping[int, float]] = {
    "sharegpt": {10: 0.71, 50: 0.56, 100: 0.46},
    "arxiv": {10: 0.92, 50: 0.88, 100: 0.77},
}
SGLANG: Mapping[str, float] = {"sharegpt": 0.82, "arxiv": 0.83}  # all traffic deterministic

# Rolled-back tokens per output token by window, one request in a group.
LLM_42_ROLLED_BACK: Mapping[int, float] = {16: 0.039, 64: 0.166, 256: 0.596}
