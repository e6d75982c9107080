"""The recipes of a model's products on a GPU, as a table: how K is cut, at which totals that agrees, and what it costs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.certification.gemm.recipes import GemmRecipe


def show_recipes(choices: Sequence["GemmRecipe"], console: "Console") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title="Recipes", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("product")
    for name in ("N", "K", "slices of K", "totals that agree", "totals in two", "answers of the plain call"):
        table.add_column(name, justify="right")
    table.add_column("time against the plain call, by rows")
    for one in choices:
        colour = "green" if one.agrees else "red"
        table.add_row(
            one.name,
            str(one.out_features),
            str(one.in_features),
            str(one.split_k) if one.split_k else "plain",
            f"[{colour}]{len(one.matching_sizes)} of {one.num_sizes_tested}[/]",
            str(len(one.split_n)),
            str(one.num_plain_results),
            ", ".join(f"{rows}: {ratio:.2f}" for rows, ratio in one.relative_times) or "not measured",
        )
    console.print(table, soft_wrap=False)
