"""A backend on a GPU that takes and returns tensors in main memory, so that one test can run on
every backend."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from inspect import isroutine
from typing import Any

import torch
from torch import Tensor

from holdfast.numerics.ops import Backend, Linear


def moved_to(backend: Backend) -> Any:
    """Move the arguments of each call to the backend's device, and the results and in-place changes
    back."""
    return _Moved(backend)


class _Moved:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._backend, name)
        return self._moving(value) if isroutine(value) else value

    def _moving(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            seen: list[tuple[Tensor, Tensor]] = []
            there = [_move(arg, self._backend.device, seen) for arg in args]
            named = {name: _move(arg, self._backend.device, seen) for name, arg in kwargs.items()}
            result = method(*there, **named)
            for here, moved in seen:
                if here.is_floating_point():
                    here.copy_(moved)
            return _move(result, torch.device("cpu"), [])

        return call


def _move(value: Any, device: torch.device, seen: list[tuple[Tensor, Tensor]]) -> Any:
    """Move tensors, and tuples and dataclasses of tensors. A packed weight is not moved."""
    if isinstance(value, Tensor):
        moved = value.to(device)
        seen.append((value, moved))
        return moved
    if isinstance(value, tuple):
        return tuple(_move(one, device, seen) for one in value)
    if is_dataclass(value) and not isinstance(value, (type, Linear)):
        held = {field.name: getattr(value, field.name) for field in fields(value)}
        return replace(
            value,
            **{
                name: _move(one, device, seen)
                for name, one in held.items()
                if isinstance(one, Tensor) or is_dataclass(one)
            },
        )
    return value
