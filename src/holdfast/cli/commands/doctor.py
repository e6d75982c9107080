"""`holdfast doctor`: show what is installed and found, and whether Holdfast can run.

Each check runs by itself: one that raises becomes a line that says so.
"""

import os
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Annotated, Literal

import typer

from holdfast.cli.console import require_packages
from holdfast.cli.options import engine as o
from holdfast.engine.config import EngineConfig
from holdfast.errors import ConfigError
from holdfast.version import __version__

_NEEDED = ("torch", "numpy", "safetensors", "tokenizers", "jinja2", "msgspec", "typer", "rich")
_OPTIONAL = {  # how to install each, if not as a part of the whole
    **dict.fromkeys(("huggingface-hub", "httpx", "cryptography"), ""),
    "llguidance": "pip install 'holdfast[structured]', for structured output",
}
_MARKS = {"good": "[green]ok[/]", "note": "[yellow]note[/]", "bad": "[red]missing[/]", "plain": ""}


@dataclass(frozen=True)
class Diagnostic:
    """One line of the table. bad: Holdfast cannot run. note: it runs, but slower or with less."""

    what: str
    found: str
    mark: Literal["good", "note", "bad", "plain"] = "plain"


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

    diagnostics: list[Diagnostic] = []
    model_check = [] if model is None else [("model", lambda: _fingerprint(model))]
    for what, check in (*_CHECKS, *model_check):
        try:
            diagnostics.append(check())
        except Exception as error:
            diagnostics.append(Diagnostic(what, f"{type(error).__name__}: {error}", "bad"))
    if with_ray or ray_address is not None:
        diagnostics += _check_ray(ray_address)
    table = Table(title="Holdfast on this machine", title_justify="left", show_header=False)
    for _ in range(3):
        table.add_column(overflow="fold")  # so that digests and paths can be copied
    for diagnostic in diagnostics:
        table.add_row(diagnostic.what, _MARKS[diagnostic.mark], escape(diagnostic.found))
    console = Console(highlight=False)
    console.print(table)
    bad = [diagnostic.what for diagnostic in diagnostics if diagnostic.mark == "bad"]
    if bad:
        console.print(f"[red]Not usable yet:[/] {', '.join(bad)}")
        raise typer.Exit(1)
    console.print('[green]Usable.[/] Try: holdfast generate --deterministic "What is a holdfast?"')


def _check_ray(address: str | None) -> list[Diagnostic]:
    try:
        require_packages("ray", extra="ray", what="--ray")
        from holdfast.ray.doctor import check_cluster

        return [Diagnostic(what, found, mark) for what, found, mark in check_cluster(address)]
    except ConfigError as error:
        return [Diagnostic("ray", str(error), "bad")]
    except Exception as error:
        return [Diagnostic("ray", f"{type(error).__name__}: {error}", "bad")]


def _python() -> Diagnostic:
    return Diagnostic("python", f"{platform.python_version()} ({sys.executable})", "good")


def _holdfast() -> Diagnostic:
    return Diagnostic("holdfast", __version__, "good")


def _package(name: str) -> Callable[[], Diagnostic]:
    def check() -> Diagnostic:
        try:
            return Diagnostic(name, metadata.version(name), "good")
        except metadata.PackageNotFoundError:
            how = f"; install it with: {_OPTIONAL[name]}" if _OPTIONAL.get(name) else ""
            return Diagnostic(name, f"not installed{how}", "note" if name in _OPTIONAL else "bad")

    return check


def _device() -> Diagnostic:
    import torch

    from holdfast.worker.device import choose_device, cpu_name

    device = choose_device("auto")
    if device.type == "cuda":
        return Diagnostic("device", f"{device}: {torch.cuda.get_device_name(device)}", "good")
    return Diagnostic("device", f"cpu: {cpu_name()}, {torch.backends.cpu.get_cpu_capability()}")


def _gpu() -> Diagnostic:
    import torch

    from holdfast.worker.device import cublas_version, has_triton

    if not torch.cuda.is_available():
        return Diagnostic("gpu", f"none seen by torch {torch.__version__}")
    if not has_triton():
        return Diagnostic(
            "gpu", "not used: triton is not installed; install it with: pip install triton", "note"
        )
    found = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        major, minor = torch.cuda.get_device_capability(index)
        name = torch.cuda.get_device_name(index)
        found.append(
            f"cuda:{index} {name}, capability {major}.{minor}, {free >> 30} of {total >> 30} GiB free"
        )
    libraries = f"CUDA {torch.version.cuda}, cuBLAS {cublas_version()}, triton {metadata.version('triton')}"
    return Diagnostic("gpu", f"{'; '.join(found)}; {libraries}", "good")


def _threads() -> Diagnostic:
    import torch

    return Diagnostic("threads", f"{torch.get_num_threads()} of {os.cpu_count()} cores")


def _kernels() -> Diagnostic:
    from holdfast.numerics.backends.c.kernels import load_kernels
    from holdfast.worker.device import choose_device

    if choose_device("auto").type == "cuda":
        return Diagnostic("kernels", "triton", "good")
    try:
        kernels = load_kernels()
    except ConfigError as error:
        return Diagnostic("kernels", f"torch operations, because {error}", "note")
    variant = f"{kernels.variant}{' with amx' if kernels.has_amx else ''}"
    return Diagnostic("kernels", f"c, {variant}, by {kernels.built.compiler}", "good")


def _cache() -> Diagnostic:
    from holdfast.numerics.cache_dir import cache_dir

    folder = cache_dir()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Diagnostic(
            "cache", f"{folder} cannot be written ({error}); every start certifies again", "note"
        )
    return Diagnostic("cache", f"{folder} can be written", "good")


def _model() -> Diagnostic:
    from holdfast.errors import ModelNotFound
    from holdfast.models.locate import locate

    try:
        located = locate(None)
    except ModelNotFound as error:
        return Diagnostic("default model", f"{error}", "note")
    return Diagnostic("default model", f"{located.name} at {located.path}", "good")


def _certificate() -> Diagnostic:
    """Return whether there is a stored one for the default model, on this device, with these versions."""
    import torch

    from holdfast.certification.certificate import list_certificates
    from holdfast.errors import HoldfastError
    from holdfast.models.checkpoint import open_checkpoint
    from holdfast.models.locate import locate
    from holdfast.worker.device import choose_device, device_name

    try:
        model = open_checkpoint(locate(None).path).config
    except HoldfastError:
        return Diagnostic("certificate", "not checked: there is no default model", "note")
    ours = {
        "holdfast": __version__,
        "torch": str(torch.__version__),
        "device": device_name(choose_device("auto")),
    }
    sizes = {"layers": model.num_layers, "hidden": model.hidden_size, "vocab": model.vocab_size}
    fitting = [
        certificate
        for certificate in list_certificates()
        if ours.items() <= certificate.subject.items()
        and isinstance(shapes := certificate.subject.get("shapes"), dict)
        and sizes.items() <= shapes.items()
    ]
    if not fitting:
        return Diagnostic(
            "certificate", "none stored for the default model; the first start makes one", "note"
        )
    refused = next((one.refusal for one in fitting if one.refusal is not None), None)
    if refused is not None:
        return Diagnostic("certificate", refused, "note")
    return Diagnostic("certificate", f"{len(fitting)} stored for the default model on this device", "good")


def _fingerprint(model: str) -> Diagnostic:
    llm = o.open_llm(EngineConfig(model, determinism="off"))
    return Diagnostic("model", f"{model}, fingerprint {llm.engine.fingerprint.digest}", "good")


_CHECKS: tuple[tuple[str, Callable[[], Diagnostic]], ...] = (
    ("python", _python),
    ("holdfast", _holdfast),
    *((name, _package(name)) for name in (*_NEEDED, *_OPTIONAL)),
    ("device", _device),
    ("gpu", _gpu),
    ("threads", _threads),
    ("kernels", _kernels),
    ("cache", _cache),
    ("default model", _model),
    ("certificate", _certificate),
)
