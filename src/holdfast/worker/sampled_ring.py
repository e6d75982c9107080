"""The tokens sampled last, by sequence, on the device: so that a pass can be enqueued before its tokens are known.

A lane is a ring of one sequence's tokens by position, read and written as `core/step_plan.py` says. A row that gave no
token is embedded as token 0: whatever is made of it, the sequence is at its end.
"""

import torch
from torch import Tensor

from holdfast.core.step_plan import SAMPLED_RING_SIZE


class SampledRing:
    """int64 [lanes, SAMPLED_RING_SIZE]; grows with the lanes that are used."""

    def __init__(self, device: torch.device) -> None:
        self._table = torch.zeros((0, SAMPLED_RING_SIZE), dtype=torch.int64, device=device)

    def ensure(self, num_request_indices: int) -> None:
        """Room for so many lanes, whatever stands in the others."""
        present = len(self._table)
        if num_request_indices > present:
            larger = self._table.new_zeros((1 << (num_request_indices - 1).bit_length(), SAMPLED_RING_SIZE))
            larger[:present] = self._table
            self._table = larger

    def resolve(self, token_ids: Tensor, unknown: Tensor, places: Tensor) -> None:
        """Writes the unknown rows' tokens: token_ids int64 [rows], unknown and places int64 [unknown]."""
        token_ids.index_copy_(0, unknown, self._table.view(-1).index_select(0, places))

    def tell(self, places: Tensor, token_ids: Tensor) -> None:
        """What was sampled, int64 [told] both; no place twice."""
        self._table.view(-1).index_copy_(0, places, token_ids)
