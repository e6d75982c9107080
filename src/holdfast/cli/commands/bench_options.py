"""What `bench gpu` and `bench paper` share: the options of random weights."""

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

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


def replace_given(settings: "Settings", **given: Any) -> "Settings":
    """The settings with the options that were given."""
    return replace(settings, **{name: value for name, value in given.items() if value is not None})
