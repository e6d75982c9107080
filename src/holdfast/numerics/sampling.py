"""How tokens are chosen from logits, for a batch of rows: one entry a row, nothing shared between rows.

The rule, in both paths. Greedy (temperature 0) is the argmax, ties to the lowest id. Otherwise z = logit /
temperature in fp32, and

    1. top-k   keep the k best z, ties at the edge to the lowest id;
    2. top-p   of the softmax over what is kept, keep the smallest set of the best whose mass reaches top_p,
               at least one;
    3. min-p   keep what has at least min_p times the largest probability;
    4. choose  the argmax of z + noise(seed, position, id), ties to the lowest id.

NaN counts as -inf. A row without a finite best gives the argmax.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SamplingBatch:
    """All tensors are contiguous, of length n, on the device of the logits."""

    temperature: Tensor  # float32; 0: greedy
    top_k: Tensor  # int32; 0: off
    top_p: Tensor  # float32; 1: off
    min_p: Tensor  # float32; 0: off
    seeds: Tensor  # int64, the bit pattern of a uint64
    positions: Tensor  # int64, position of the token that is chosen
