"""How many random examples a property test tries."""

import os


def examples(count: int) -> int:
    """`count`, times HOLDFAST_TEST_SCALE: 1 in `make test`, less in test-fast, more in test-long."""
    return max(1, int(count * float(os.environ.get("HOLDFAST_TEST_SCALE", "1"))))
