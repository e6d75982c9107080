"""`holdfast certify`: which shapes this machine computes to the reference's bits, as a table."""

import gc
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.options import engine as o
from holdfast.cli.options.groups import grouped
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.certification.certificate import Certificate, OperationCheck

_TRIES = 3  # to make one anew: another process may keep its own meanwhile


@grouped(
    without=(
        *("determinism", "max_num_seqs", "kv_memory", "prefix_cache", "speculation", "spot_check_rate"),
        "chat_template",
    )
)
def certify(
    model: o.ModelArgument = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Test anew, even if a certificate is kept.")] = False,
    shapes: Annotated[
        str | None,
        typer.Option(
            help="On a GPU, without a model: the products of a published shape, such as llama-3.1-70b, with random weights.",
            show_default=False,
        ),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="The certificate as one JSON object.")] = False,
    engine: EngineConfig = o.ENGINE,
) -> None:
    """Show the certificate: every operation of the model, the row totals tried, and those whose bits differed.

    On a GPU also how K is cut in each product, what that costs, and which kernels ran. Exits with 1 if deterministic requests
    would be refused.
    """
    if shapes is not None:
        _show_shapes(replace(engine, model=shapes, load_format="dummy"), fresh, json_output)
        return
    certificate, made_now = _obtain(replace(engine, model=model), fresh)
    if json_output:
        typer.echo(json.dumps(certificate.as_dict()))
    else:
        _show(certificate, made_now)
        _show_own_recipes(replace(engine, model=model))
    if certificate.refusal is not None:
        raise typer.Exit(1)


def _obtain(engine: EngineConfig, fresh: bool) -> tuple["Certificate", bool]:
    """The certificate of this model and machine, and whether it was made by this call."""
    from holdfast.certification.certificate import delete_certificate
    from holdfast.cli.progress import StageBars

    bars = StageBars()
    certificate = o.open_llm(engine, bars).engine.certificate
    for _ in range(_TRIES if fresh else 0):
        if certificate is None or "Certifying" in bars.stages:
            break
        delete_certificate(certificate.key)
        gc.collect()  # a GPU holds one engine
        certificate = o.open_llm(engine, bars).engine.certificate
    if certificate is None:
        raise ConfigError("this engine made no certificate")
    return certificate, "Certifying" in bars.stages


def _show_shapes(engine: EngineConfig, fresh: bool, json_output: bool) -> None:
    from rich.console import Console

    from holdfast.cli.progress import StageBars
    from holdfast.cli.recipe_table import show_recipes
    from holdfast.engine.builder import recipes_of

    with StageBars() as bars:
        choices = recipes_of(engine, bars, anew=fresh)
    if not choices:
        raise ConfigError("--shapes asks a GPU how it multiplies, and this engine would compute on the CPU")
    if json_output:
        typer.echo(json.dumps([one.as_dict() for one in choices]))
    else:
        show_recipes(choices, Console(highlight=False, soft_wrap=True))


def _show_own_recipes(engine: EngineConfig) -> None:
    """Of the model that was certified just now: they are kept."""
    from rich.console import Console

    from holdfast.cli.recipe_table import show_recipes
    from holdfast.engine.builder import recipes_of

    choices = recipes_of(engine)
    if choices:
        show_recipes(choices, Console(highlight=False, soft_wrap=True))


def _show(certificate: "Certificate", made_now: bool) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Certificate", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("operation")
    table.add_column("shape")
    table.add_column("sizes tested")
    table.add_column("differing")
    table.add_column("comparisons", justify="right")
    for label, check in _merged(certificate.checks):
        differing = "[green]none[/]" if check.agrees else f"[red]{_differing(check)}[/]"
        table.add_row(label, check.shape, _ranges(check.sizes_tested), differing, str(check.num_comparisons))
    console = Console(highlight=False, soft_wrap=True)
    console.print(table, soft_wrap=False)
    console.print(f"certified row totals  {_ranges(certificate.sizes) or 'none: everything is verified'}")
    if certificate.kernels:
        console.print("kernels seen          " + "\n                      ".join(certificate.kernels))
    console.print(f"tested in             {certificate.seconds:.1f} s, {'now' if made_now else 'kept since'}")
    console.print(f"key                   {certificate.key}")
    verdict = "[green]none[/]" if certificate.refusal is None else f"[red]{certificate.refusal}[/]"
    console.print(f"refusal               {verdict}")


def _merged(checks: tuple["OperationCheck", ...]) -> list[tuple[str, "OperationCheck"]]:
    """Products of many layers that came out alike, on one line: "qkv, 27 layers"."""
    groups: dict[tuple[str, str, tuple[int, ...], tuple[int, ...]], list[OperationCheck]] = {}
    for check in checks:
        kind = check.name.rsplit(".", 1)[-1]
        groups.setdefault((kind, check.shape, check.sizes_tested, check.sizes_differing), []).append(check)
    merged = []
    for (kind, *_), alike in groups.items():
        label = alike[0].name if len(alike) == 1 else f"{kind}, {len(alike)} layers"
        total = sum(check.num_comparisons for check in alike)
        merged.append((label, type(alike[0])(kind, *_rest(alike[0]), total)))
    return merged


def _rest(check: "OperationCheck") -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    return check.shape, check.sizes_tested, check.sizes_differing


def _differing(check: "OperationCheck") -> str:
    """Size 0 stands for the reference that does not repeat itself."""
    names = [str(size) if size else "the reference itself" for size in check.sizes_differing]
    return ", ".join(names)


def _ranges(sizes: tuple[int, ...]) -> str:
    """Few sizes in full, many by their ends."""
    if len(sizes) <= 5:
        return ", ".join(map(str, sizes))
    return f"{len(sizes)}, {sizes[0]} to {sizes[-1]}"
