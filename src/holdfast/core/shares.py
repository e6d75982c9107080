"""The one formula of a fair share of what is held: places, pages, tokens of a step."""

from collections.abc import Collection


def equal_level(demands: Collection[int], total: int) -> int:
    """Return the max-min fair level: a demand up to it is met in full, a larger one gets as much as the
    level."""
    left, num = total, len(demands)
    for demand in sorted(demands):
        if demand * num > left:
            return left // num
        left -= demand
        num -= 1
    return total
