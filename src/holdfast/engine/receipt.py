"""The old place of `holdfast.receipts.receipt`. It goes with the next release."""

import warnings

from holdfast.receipts import receipt as _moved


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    warnings.warn(
        f"holdfast.engine.receipt is now holdfast.receipts.receipt; import {name} from there",
        DeprecationWarning,
        stacklevel=2,
    )
    return getattr(_moved, name)
