"""Data made by the thousand in every step: frozen to the type checker, plain at run time.

A frozen dataclass sets each field through a call, so that making one takes six times as long.
"""

from dataclasses import dataclass
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def record_class(cls: type[T]) -> type[T]:
    """A dataclass with slots that nobody changes once it is made."""
    return dataclass(slots=True, unsafe_hash=True)(cls)
