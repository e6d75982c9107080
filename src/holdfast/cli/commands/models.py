"""`holdfast models`: the models on this machine, and which of them can be served.

Every model is opened as the engine would open it, without torch and without reading its weights.
So the list says which can be served, and why the others cannot.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from holdfast.cli.console import note
from holdfast.cli.results import json_line
from holdfast.errors import HoldfastError, ModelNotFound
from holdfast.models.checkpoint import open_checkpoint
from holdfast.models.families import FAMILIES
from holdfast.models.locate import BUILTIN, BUILTINS, is_not_fetched, locate

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo

_WEIGHTS = ("*.safetensors", "*.gguf")


def models(
    json_output: Annotated[bool, typer.Option("--json", help="The list as one JSON object.")] = False,
) -> None:
    """List the models on this machine: the built-in ones and those in the Hugging Face cache.

    The first word of each entry is what generate -m, chat, serve and the others take as MODEL.
    They also take any folder or .gguf file, and download a hub id such as Qwen/Qwen3-0.6B.
    """
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
    """Return two lines: the name with what is known of the model, and its path or why it cannot be served."""
    facts = [
        "default" if one.is_default else one.source.replace("cache", "in the cache"),
        one.architecture,
        one.dtype,
        None if one.num_parameters is None else f"{_rounded(one.num_parameters)} parameters",
        None if one.size_bytes is None else f"{_rounded(one.size_bytes)}B",
        "fetched on first use" if one.path is None and one.reason is None else None,
    ]
    lines = [f"{one.name}  {' · '.join(fact for fact in facts if fact)}"]
    if one.path is not None and one.path != one.name:
        lines.append(f"    {one.path}")
    if one.reason is not None:
        lines.append(f"    cannot be served: {one.reason}")
    return "\n".join(lines)


def _rounded(number: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return str(number)


@dataclass(frozen=True)
class ListedModel:
    """One model. `name` is what commands take; `reason` says why it cannot be served, if so. Without a path and a
    reason, it is fetched on first use."""

    name: str
    source: Literal["builtin", "cache"]
    path: str | None
    architecture: str | None = None
    dtype: str | None = None
    num_parameters: int | None = None
    size_bytes: int | None = None
    reason: str | None = None
    is_default: bool = False


def list_models() -> list[ListedModel]:
    return [*_builtin(), *sorted(_cached(), key=lambda one: one.name.lower())]


def cache_folder() -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def _builtin() -> Iterator[ListedModel]:
    for name in BUILTINS:
        is_default = name == BUILTIN
        try:
            if is_not_fetched(name):
                yield ListedModel(name, "builtin", None, is_default=is_default)
                continue
            located = locate(name)
            described = _describe(name, "builtin", located.path, is_default)
            if located.adapter is not None:
                size = (described.size_bytes or 0) + (_weight_bytes(located.adapter) or 0)
                described = replace(described, path=str(located.adapter), size_bytes=size)
            yield described
        except ModelNotFound as error:
            yield ListedModel(name, "builtin", None, reason=str(error), is_default=is_default)


def _cached() -> Iterator[ListedModel]:
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        repos = scan_cache_dir(cache_folder()).repos
    except (CacheNotFound, ValueError, OSError):
        return
    for repo in repos:
        if repo.repo_type == "model":
            yield from _in_repo(repo)


def _in_repo(repo: "CachedRepoInfo") -> Iterator[ListedModel]:
    """Yield the newest revision: as one model, or, if it has several GGUF files, one for each of them."""
    if not repo.revisions:
        return
    folder = max(repo.revisions, key=lambda one: one.last_modified).snapshot_path
    files = sorted(folder.glob("*.gguf"))
    if len(files) > 1 and not any(folder.glob("*.safetensors")):
        for file in files:
            yield _describe(str(file), "cache", file)
    else:
        yield _describe(repo.repo_id, "cache", folder)


def _describe(
    name: str, source: Literal["builtin", "cache"], path: Path, is_default: bool = False
) -> ListedModel:
    known = partial(
        ListedModel, name, source, str(path), size_bytes=_weight_bytes(path), is_default=is_default
    )
    try:
        checkpoint = open_checkpoint(path)
    except HoldfastError as error:
        return known(architecture=_claimed_architecture(path), reason=str(error))
    config = checkpoint.config
    return known(
        architecture=FAMILIES[config.family].architecture,
        dtype=config.torch_dtype or _most_common_format(checkpoint.path),
        num_parameters=config.num_parameters,
    )


def _most_common_format(path: Path) -> str | None:
    if path.suffix != ".gguf":
        return None
    from holdfast.models.gguf.reader import GgufFile

    sizes: Counter[str] = Counter()
    for tensor in GgufFile(path).tensors.values():
        sizes[tensor.stored.name] += tensor.num_bytes
    return max(sizes, key=lambda name: sizes[name], default=None)


def _weight_bytes(path: Path) -> int | None:
    files = [path] if path.is_file() else [file for end in _WEIGHTS for file in path.glob(end)]
    try:
        return sum(file.stat().st_size for file in files) or None
    except OSError:  # a broken link in the cache
        return None


def _claimed_architecture(path: Path) -> str | None:
    try:
        fields = json.loads(path.joinpath("config.json").read_text(encoding="utf-8"))
        names = fields.get("architectures") or [fields.get("model_type")]
        return str(names[0])[:80] if names[0] else None
    except (OSError, ValueError, AttributeError, LookupError, TypeError):
        return None
