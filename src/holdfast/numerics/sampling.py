"""The sampling rule, and its parameters for a batch. Rows are independent of each other.

All backends follow one rule. Temperature 0 is greedy: the argmax, ties to the lowest id. Otherwise
z = logit / temperature in fp32, and

    1. top-k   keep the k largest z, ties at the threshold to the lowest id;
    2. top-p   keep the smallest set of the most likely tokens whose total probability, of the softmax over the kept tokens,
               reaches top_p; at least one token;
    3. min-p   keep the tokens with at least min_p times the largest probability;
    4. sample  the argmax of z + noise(seed, position, id) over the kept tokens, ties to the lowest id. The noise is Gumbel.

NaN counts as -inf. A row whose largest z is not finite gives the argmax of its logits. A row without a
token gives NO_TOKEN: each of its logits is -inf, or min-p keeps none, because it is NaN or above 1.
"""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class SamplingBatch:
    """Sampling parameters of n rows.

    All tensors are contiguous, of length n, and on the device of the logits.
    """

    temperature: Tensor  # float32; 0: greedy
    top_k: Tensor  # int32; 0: off
    top_p: Tensor  # float32; 1: off
    min_p: Tensor  # float32; 0: off
    seeds: Tensor  # int64, the bits of a uint64
    positions: Tensor  # int64, position of the sampled token
