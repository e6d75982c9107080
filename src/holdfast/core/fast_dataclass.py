"""A dataclass decorator for objects that are made by the thousand in every step.

A frozen dataclass sets each field through a call, so making one takes six times as long. These are
frozen for the type checker only.
"""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def fast_dataclass(cls: type[T]) -> type[T]:
    """A hashable dataclass with slots. Do not change an instance after it is made."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
