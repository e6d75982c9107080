"""Backends whose operations are not those of the backend they hold."""

from typing import Any

from holdfast.numerics.layer import run_layers


class ChangedBackend:
    """A backend of which a subclass changes some operations. Layers run one by one."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def in_fp32(self) -> "ChangedBackend":
        return self

    def layers(self, *args: Any, canonical: bool) -> None:
        run_layers(self, *args, canonical=canonical)  # type: ignore[arg-type]


class FaultyBackend(ChangedBackend):
    """Fast passes, certified or not, have other bits: one column of a layer's result is multiplied by `factor`."""

    def __init__(self, backend: Any, factor: float) -> None:
        super().__init__(backend)
        self._factor = factor

    def layer(self, residual: Any, x: Any, *rest: Any, canonical: bool) -> None:
        self._backend.layer(residual, x, *rest, canonical=canonical)
        if not canonical:
            residual[:, 3] *= self._factor
            x[:, 3] *= self._factor
