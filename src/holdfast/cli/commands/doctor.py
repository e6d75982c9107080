"""`holdfast doctor`: show what is installed and found, and whether Holdfast can run.

Each check runs by itself: one that raises becomes a line that says so.
"""

import os
import platform
import sys
import tempfile
from collections.abc import Callable
from importlib import metadata
from importlib.util import find_spec
from typing import Annotated, Literal

import typer

from holdfast.cli.console import require_packages
from holdfast.cli.options import engine as o
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError
from holdfast.version import __version__

_NEEDED = ("numpy", "ml-dtypes", "safetensors", "tokenizers", "jinja2", "msgspec", "typer", "rich")
_OPTIONAL = {  # how to install each, if not as a part of the whole
    "torch": "pip install 'holdfast[torch]', for GPUs and for a CPU without C kernels",
    "cryptography": "pip install 'holdfast[signed]', for signed receipts",
    **dict.fromkeys(("huggingface-hub", "httpx", "llguidance"), ""),
}
_MARKS = {"good": "[green]ok[/]", "note": "[yellow]note[/]", "bad": "[red]missing[/]", "plain": ""}


Mark = Literal["good", "note", "bad", "plain"]  # bad: Holdfast cannot run. note: slower, or with less
Found = tuple[str, Mark]


def doctor(
    model: Annotated[str | None, typer.Argument(help="Load this model and show its fingerprint.")] = None,
    with_ray: Annotated[
        bool, typer.Option("--ray", help="Check Ray and the cluster at --ray-address as well.")
    ] = False,
    ray_address: Annotated[
        str | None,
        typer.Option(
            help="Address of a Ray cluster, such as 10.0.0.1:6379, or auto for the one on this machine.",
            metavar="ADDRESS",
        ),
    ] = None,
) -> None:
    """Show versions, device, kernels, cache, certificate and default model.

    Exits with 1 if Holdfast cannot run.
    Two machines with the same fingerprint of a model compute the same bits.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    checks = dict(_CHECKS)
    if model is not None:
        checks["model"] = lambda: _fingerprint(model)
    found = [(what, *_try(check)) for what, check in checks.items()]
    if with_ray or ray_address is not None:
        found += _check_ray(ray_address)
    table = Table(title="Holdfast on this machine", title_justify="left", show_header=False)
    for _ in range(3):
        table.add_column(overflow="fold")  # so that digests and paths can be copied
    for what, said, mark in found:
        table.add_row(what, _MARKS[mark], escape(said))
    console = Console(highlight=False)
    console.print(table)
    bad = [what for what, _, mark in found if mark == "bad"]
    if bad:
        console.print(f"[red]Not usable yet:[/] {', '.join(bad)}")
        raise typer.Exit(1)
    console.print('[green]Usable.[/] Try: holdfast generate --deterministic "What is a holdfast?"')


def _try(check: Callable[[], Found]) -> Found:
    try:
        return check()
    except Exception as error:
        return f"{type(error).__name__}: {error}", "bad"


def _check_ray(address: str | None) -> list[tuple[str, str, Mark]]:
    try:
        require_packages("ray", extra="ray", what="--ray")
        from holdfast.ray.doctor import check_cluster

        return list(check_cluster(address))
    except ConfigError as error:
        return [("ray", str(error), "bad")]
    except Exception as error:
        return [("ray", f"{type(error).__name__}: {error}", "bad")]


def _package(name: str) -> Callable[[], Found]:
    def check() -> Found:
        try:
            return metadata.version(name), "good"
        except metadata.PackageNotFoundError:
            how = f"; install it with: {_OPTIONAL[name]}" if _OPTIONAL.get(name) else ""
            return f"not installed{how}", "note" if name in _OPTIONAL else "bad"

    return check


def _device() -> Found:
    from holdfast.worker.device import choose_device, device_name

    device = choose_device("auto")
    return f"{device}: {device_name(device)}", "good" if device.type == "cuda" else "plain"


def _gpu() -> Found:
    if find_spec("torch") is None:
        return "not looked for: torch is not installed", "plain"
    import torch

    from holdfast.worker.device import cublas_version, has_triton

    if not torch.cuda.is_available():
        return f"none seen by torch {torch.__version__}", "plain"
    if not has_triton():
        return "not used: triton is not installed; install it with: pip install triton", "note"
    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        major, minor = torch.cuda.get_device_capability(index)
        name = torch.cuda.get_device_name(index)
        memory = f"{free >> 30} of {total >> 30} GiB free"
        found.append(f"cuda:{index} {name}, capability {major}.{minor}, {memory}")
    libraries = f"CUDA {torch.version.cuda}, cuBLAS {cublas_version()}, triton {metadata.version('triton')}"
    return f"{'; '.join(found)}; {libraries}", "good"


def _threads() -> Found:
    from holdfast.numerics.settings_guard import decide_num_threads
    from holdfast.worker.device import choose_device

    return f"{decide_num_threads(None, choose_device('auto'))} of {os.cpu_count()} cores", "plain"


def _kernels() -> Found:
    from holdfast.numerics.backends.c.kernels import load_kernels
    from holdfast.worker.device import choose_device

    if choose_device("auto").type == "cuda":
        return "triton", "good"
    try:
        kernels = load_kernels()
    except ConfigError as error:
        return f"torch operations, because {error}", "note"
    variant = f"{kernels.variant}{' with amx' if kernels.has_amx else ''}"
    return f"c, {variant}, by {kernels.built.compiler}", "good"


def _cache() -> Found:
    from holdfast.numerics.cache_dir import cache_dir

    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return f"{folder} cannot be written ({error}); every start certifies again", "note"
    return f"{folder} can be written", "good"


def _model() -> Found:
    from holdfast.models.locate import BUILTIN, is_not_fetched, locate

    if is_not_fetched(BUILTIN):
        return "not on this machine yet; the first command that needs it fetches it (98 MB)", "note"
    located = locate(None)
    return f"{located.name} at {located.path}", "good"


def _certificate() -> Found:
    """Look for stored certificates of the default model, on this device, with these versions."""
    from holdfast.certification.certificate import list_certificates
    from holdfast.errors import HoldfastError
    from holdfast.models.checkpoint import open_checkpoint
    from holdfast.models.locate import BUILTIN, is_not_fetched, locate
    from holdfast.numerics.arrays import HOST
    from holdfast.worker.device import choose_device, device_name

    if is_not_fetched(BUILTIN):
        return "not checked: the default model is not here", "note"
    try:
        model = open_checkpoint(locate(None).path).config
    except HoldfastError as error:
        return f"not checked: {error}", "note"
    device = choose_device("auto")
    ours = {"holdfast": __version__, "device": device_name(device)}
    if device is not HOST:
        ours["torch"] = metadata.version("torch")
    sizes = {"layers": model.num_layers, "hidden": model.hidden_size, "vocab": model.vocab_size}
    fitting = [
        certificate
        for certificate in list_certificates()
        if ours.items() <= certificate.subject.items()
        and isinstance(shapes := certificate.subject.get("shapes"), dict)
        and sizes.items() <= shapes.items()
    ]
    if not fitting:
        return "none stored for the default model; the first start makes one", "note"
    refused = next((one.refusal for one in fitting if one.refusal is not None), None)
    if refused is not None:
        return refused, "note"
    return f"{len(fitting)} stored for the default model on this device", "good"


def _fingerprint(model: str) -> Found:
    llm = o.open_llm(EngineConfig(model, determinism="off"))
    return f"{model}, fingerprint {llm.engine.fingerprint.digest}", "good"


_CHECKS: dict[str, Callable[[], Found]] = {
    "python": lambda: (f"{platform.python_version()} ({sys.executable})", "good"),
    "holdfast": lambda: (__version__, "good"),
    **{name: _package(name) for name in (*_NEEDED, *_OPTIONAL)},
    "device": _device,
    "gpu": _gpu,
    "threads": _threads,
    "kernels": _kernels,
    "cache": _cache,
    "default model": _model,
    "certificate": _certificate,
}
