"""What `bench gpu` and `bench paper` share: the options of random weights, and the end of a measurement."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from holdfast.cli.console import note
from holdfast.cli.requirements import require_packages

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Settings = TypeVar("Settings", bound=DataclassInstance)

ShapeOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="Shape of the random weights; default llama-3.1-8b. tiny: everything tiny, for a CPU.",
    ),
]
DtypeOption = Annotated[str | None, typer.Option(help="bf16, fp16 or fp32.")]


def require_plots(out: Path | None) -> None:
    """Plots need matplotlib; say so before anything is measured."""
    if out is not None:
        require_packages("matplotlib")


def replace_given(settings: "Settings", **given: Any) -> "Settings":
    """The settings with the options that were given."""
    return replace(settings, **{name: value for name, value in given.items() if value is not None})


def end_bench(written: Iterable[Path], *, is_good: bool) -> NoReturn:
    """Name the files that were written, and exit."""
    for path in written:
        note(f"wrote {path}")
    raise typer.Exit(0 if is_good else 1)
