"""`holdfast models`: the models on this machine, and which of them can be served."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.console import note
from holdfast.cli.results import json_line

if TYPE_CHECKING:
    from holdfast.cli.inventory import ListedModel


def models(
    json_output: Annotated[bool, typer.Option("--json", help="The list as one JSON object.")] = False,
) -> None:
    """List the models on this machine: the built-in ones and those in the Hugging Face cache.

    The first word of each entry is what generate -m, chat, serve and the others take as MODEL.
    They also take any folder or .gguf file, and download a hub id such as Qwen/Qwen3-0.6B.
    """
    from holdfast.cli.inventory import cache_folder, list_models

    found = list_models()
    if json_output:
        content = {"cache": str(cache_folder()), "models": [asdict(one) for one in found]}
        typer.echo(json_line(content))
        return
    for one in found:
        typer.echo(_entry(one))
    if not any(one.source == "cache" for one in found):
        note(f"there are no models in the cache, {cache_folder()}")


def _entry(one: "ListedModel") -> str:
    """Two lines: the name with what is known of the model, and its path or why it cannot be served."""
    facts = [
        "default" if one.is_default else one.source.replace("cache", "in the cache"),
        one.architecture,
        one.dtype,
        None if one.num_parameters is None else f"{_rounded(one.num_parameters)} parameters",
        None if one.size_bytes is None else f"{_rounded(one.size_bytes)}B",
    ]
    lines = [f"{one.name}  {' · '.join(fact for fact in facts if fact)}"]
    if one.path is not None and one.path != one.name:
        lines.append(f"    {one.path}")
    if one.reason is not None:
        lines.append(f"    cannot be served: {one.reason}")
    return "\n".join(lines)


def _rounded(number: int) -> str:
    """Three digits and a unit: 135M, 98.3M, 8.19G."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)
