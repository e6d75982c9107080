"""A backend whose fast passes, certified or not, have other bits than the canonical ones."""

from typing import Any

from holdfast.numerics.layer import run_layers


class FaultyBackend:
    """In fast form one column of a layer's result is multiplied by `factor`."""

    def __init__(self, backend: Any, factor: float) -> None:
        self._backend, self._factor = backend, factor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def in_fp32(self) -> "FaultyBackend":
        return self

    def layer(self, residual: Any, x: Any, *rest: Any, canonical: bool) -> None:
        self._backend.layer(residual, x, *rest, canonical=canonical)
        if not canonical:
            residual[:, 3] *= self._factor
            x[:, 3] *= self._factor

    def layers(self, *args: Any, canonical: bool) -> None:
        run_layers(self, *args, canonical=canonical)  # type: ignore[arg-type]
