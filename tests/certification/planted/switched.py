"""A backend in which one operation is computed in another way at some batch sizes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from holdfast.numerics.ops import Backend, Linear

GEMMS = ("linear", "logits")
Bounds = tuple[int | None, int | None]  # of a slice
ALL: Bounds = (None, None)


@dataclass(frozen=True)
class Scope:
    """Where the operation is computed in the other way: at these batch sizes, for these rows and
    columns of its result."""

    applies_to: Callable[[int], bool]  # the batch size
    rows: Bounds = ALL
    columns: Bounds = ALL
    canonical: bool = False  # GEMMs in canonical form too, as the head runs

    def covers(self, size: int) -> bool:
        return self.applies_to(size) and (self.rows[0] or 0) < size

    @property
    def is_whole(self) -> bool:
        return self.rows == ALL == self.columns


class SwitchedBackend:
    """`base`, except for one operation, which `mutant` computes within the scope.

    GEMMs of `base` are computed in canonical form at every size, so that the planted change is the
    only difference. The reference size is never changed.
    """

    def __init__(self, base: Backend, mutant: Any, operation: str, scope: Scope) -> None:
        self.base, self._mutant, self._scope = base, mutant, scope
        self._operations = GEMMS if operation in GEMMS else (operation,)

    def __getattr__(self, name: str) -> Any:
        if name in self._operations and name not in GEMMS:
            return lambda *given, **named: self._switch(name, given, named)
        return getattr(self.base, name)

    def pack(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        packed = self.base.pack(weight, bias)
        if hasattr(self._mutant, "remember"):
            self._mutant.remember(packed, weight, bias)
        return packed

    def linear(self, x: Tensor, w: Linear, *, canonical: bool) -> Tensor:
        return self._gemm("linear", x, w, canonical)

    def logits(self, x: Tensor, w: Linear, *, canonical: bool) -> Tensor:
        return self._gemm("logits", x, w, canonical)

    def _gemm(self, name: str, x: Tensor, w: Linear, canonical: bool) -> Tensor:
        plain: Tensor = getattr(self.base, name)(x, w, canonical=True)
        if (
            (canonical and not self._scope.canonical)
            or name not in self._operations
            or not self._applies_to(x)
        ):
            return plain
        return self._within(plain, getattr(self._mutant, name)(x, w, canonical=False))

    def _switch(self, name: str, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        plain = getattr(self.base, name)
        if not self._applies_to(given[0]):
            return plain(*given, **named)
        changed = getattr(self._mutant, name)(*given, **named)
        return changed if self._scope.is_whole else self._within(plain(*given, **named), changed)

    def _applies_to(self, x: Tensor) -> bool:
        return len(x) != self.base.recipe.rows and self._scope.covers(len(x))

    def _within(self, plain: Tensor, changed: Tensor) -> Tensor:
        if self._scope.is_whole:
            return changed
        at = slice(*self._scope.rows), slice(*self._scope.columns)
        mixed = plain.clone()
        mixed[at] = changed[at]
        return mixed
