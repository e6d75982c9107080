"""`holdfast certify`: the batch sizes this machine computes with the reference's bits."""

import gc
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.console import StageBars, table
from holdfast.cli.options import engine as o
from holdfast.cli.options.groups import grouped
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from holdfast.certification.certificate import Certificate, OperationCheck
    from holdfast.certification.gemm.recipes import GemmRecipe


@grouped(
    without=(
        *("determinism", "max_num_seqs", "kv_memory", "prefix_cache", "speculation", "spot_check_rate"),
        *("chat_template", "receipt_key", "certification"),
    )
)
def certify(
    model: o.ModelArgument = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Certify again, even if there is a stored certificate.")
    ] = False,
    shapes: Annotated[
        str | None,
        typer.Option(
            help="On a GPU, without a model: the GEMMs of a published model shape, such as llama-3.1-70b, with random "
            "weights.",
        ),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="The certificate as one JSON object.")] = False,
    engine: EngineConfig = o.ENGINE,
) -> None:
    """Show the certificate: every operation, the batch sizes tested, and those that differed.

    On a GPU also the split-K of each GEMM, its cost, and the kernels that ran.
    Exits with 1 if deterministic requests would be refused.
    """
    if shapes is not None:
        _show_shapes(replace(engine, model=shapes, load_format="dummy"), fresh, json_output)
        return
    config = replace(engine, model=model, certification="startup")
    certificate, is_new = _obtain(config, fresh)
    if json_output:
        typer.echo(json.dumps(certificate.as_dict()))
    else:
        from holdfast.engine.start.builder import gemm_recipes

        _show(certificate, is_new)
        _show_recipes(gemm_recipes(config))
    if certificate.refusal is not None:
        raise typer.Exit(1)


def _obtain(config: EngineConfig, fresh: bool) -> tuple["Certificate", bool]:
    opened = o.open_model(config)
    from holdfast.certification.certificate import delete_certificate

    bars = StageBars()
    certificate = o.open_llm(config, bars, opened).engine.certificate
    if fresh and certificate is not None and "Certifying" not in bars.stages:
        delete_certificate(certificate.key)
        gc.collect()  # a GPU holds only one engine
        certificate = o.open_llm(config, bars).engine.certificate
    if certificate is None:
        raise ConfigError("this engine made no certificate")
    return certificate, "Certifying" in bars.stages


def _show_shapes(config: EngineConfig, fresh: bool, json_output: bool) -> None:
    o.open_model(config)
    from holdfast.engine.start.builder import gemm_recipes

    with StageBars() as bars:
        recipes = gemm_recipes(config, bars, anew=fresh)
    if not recipes:
        raise ConfigError("--shapes tests the GEMMs of a GPU, and this engine would compute on the CPU")
    if json_output:
        typer.echo(json.dumps([one.as_dict() for one in recipes]))
    else:
        _show_recipes(recipes)


def _show_recipes(recipes: Sequence["GemmRecipe"]) -> None:
    if not recipes:
        return
    headings = ("N", "K", "split-K", "matching sizes", "sizes with split-N", "results of the plain call")
    shown = table("Recipes", ("GEMM", *headings, "time / plain call, by batch size"))
    for one in recipes:
        colour = "green" if one.agrees else "red"
        shown.add_row(
            one.name,
            str(one.out_features),
            str(one.in_features),
            str(one.split_k) if one.split_k else "plain",
            f"[{colour}]{len(one.matching_sizes)} of {one.num_sizes_tested}[/]",
            str(len(one.split_n)),
            str(one.num_plain_results or "not counted"),
            ", ".join(f"{size}: {ratio:.2f}" for size, ratio in one.relative_times) or "not measured",
        )
    _console().print(shown, soft_wrap=False)


def _show(certificate: "Certificate", is_new: bool) -> None:
    headings = ("operation", "shape", "sizes tested", "differing", "comparisons")
    shown = table("Certificate", headings, num_left=4)
    for label, check in _merge_layers(certificate.checks):
        differing = "[green]none[/]" if check.agrees else f"[red]{_differing(check)}[/]"
        shown.add_row(label, check.shape, _ranges(check.sizes_tested), differing, str(check.num_comparisons))
    console = _console()
    console.print(shown, soft_wrap=False)
    sizes = f"{_ranges(certificate.sizes)} tokens" if certificate.sizes else "none: everything is verified"
    console.print(f"certified batch sizes  {sizes}")
    if certificate.kernels:
        console.print("kernels seen           " + "\n                       ".join(certificate.kernels))
    console.print(
        f"tested in              {certificate.seconds:.1f} s, {'now' if is_new else 'stored earlier'}"
    )
    console.print(f"key                    {certificate.key}")
    refusal = "[green]none[/]" if certificate.refusal is None else f"[red]{certificate.refusal}[/]"
    console.print(f"refusal                {refusal}")


def _console() -> "Console":
    from rich.console import Console

    return Console(highlight=False, soft_wrap=True)


def _merge_layers(checks: tuple["OperationCheck", ...]) -> list[tuple[str, "OperationCheck"]]:
    """Equal checks of many layers as one, with a label such as "qkv, 27 layers"."""
    groups: dict[tuple[str, str, tuple[int, ...], tuple[int, ...]], list[OperationCheck]] = {}
    for check in checks:
        kind = check.name.rsplit(".", 1)[-1]
        groups.setdefault((kind, check.shape, check.sizes_tested, check.sizes_differing), []).append(check)
    merged = []
    for (kind, *_), alike in groups.items():
        label = alike[0].name if len(alike) == 1 else f"{kind}, {len(alike)} layers"
        count = sum(check.num_comparisons for check in alike)
        merged.append((label, replace(alike[0], name=kind, num_comparisons=count)))
    return merged


def _differing(check: "OperationCheck") -> str:
    """Size 0 means that the reference gave different bits when it was repeated."""
    return ", ".join(str(size) if size else "the reference itself" for size in check.sizes_differing)


def _ranges(sizes: tuple[int, ...]) -> str:
    """Return up to five sizes in full, more as "42 values from 1 to 512"."""
    if len(sizes) <= 5:
        return ", ".join(map(str, sizes))
    return f"{len(sizes)} values from {sizes[0]} to {sizes[-1]}"
