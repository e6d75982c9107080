"""Where a carried state ends: at the beginning of each message of a chat.

A message begins with the same tokens, such as those of "<|im_end|>\\n<|im_start|>user": `reset_ids` in
thinking.json. Only those of the prompt count: what an answer says does not end its state.
"""

from collections.abc import Sequence


def find_resets(ids: Sequence[int], reset_ids: Sequence[int], first: int = 0) -> list[int]:
    """The positions of the last tokens of reset_ids in ids, from position `first` on."""
    if not reset_ids:
        return []
    length, last, wanted = len(reset_ids), reset_ids[-1], tuple(reset_ids)
    return [
        at
        for at in range(max(first, length - 1), len(ids))
        if ids[at] == last and tuple(ids[at + 1 - length : at + 1]) == wanted
    ]
