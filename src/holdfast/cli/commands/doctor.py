"""`holdfast doctor`: what is installed, what was found, and whether Holdfast can run. Nothing missing makes it fail.

Each finding is gathered by itself: one that raises becomes a finding that says so.
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

from holdfast.cli.options import engine as o
from holdfast.engine.config import EngineConfig
from holdfast.version import __version__

_PACKAGES = (
    "torch",
    "numpy",
    "safetensors",
    "tokenizers",
    "jinja2",
    "gguf",
    "typer",
    "rich",
    "huggingface-hub",
    "httpx",
)
_MARKS = {"good": "[green]ok[/]", "note": "[yellow]note[/]", "bad": "[red]missing[/]", "plain": ""}


@dataclass(frozen=True)
class Finding:
    """One line. "bad" means that Holdfast cannot run; "note" that it runs, but not at its best."""

    what: str
    found: str
    mark: Literal["good", "note", "bad", "plain"] = "plain"


def doctor(
    model: Annotated[
        str | None, typer.Argument(help="Open this model and show its fingerprint.", show_default=False)
    ] = None,
) -> None:
    """Show versions, device, kernels, cache, certificate and default model. Exits with 1 if Holdfast cannot run.

    Two machines that show the same fingerprint of a model give the same bits.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    findings: list[Finding] = []
    named = [] if model is None else [("model", lambda: _fingerprint(model))]
    for what, look in (*_LOOKS, *named):
        try:
            findings.append(look())
        except Exception as error:  # whatever is broken is what a doctor is there to say
            findings.append(Finding(what, f"{type(error).__name__}: {error}", "bad"))
    table = Table(title="Holdfast on this machine", title_justify="left", show_header=False)
    for _ in range(3):
        table.add_column(overflow="fold")  # a digest or a path is copied whole
    for finding in findings:
        table.add_row(finding.what, _MARKS[finding.mark], escape(finding.found))
    console = Console(highlight=False)
    console.print(table)
    bad = [finding.what for finding in findings if finding.mark == "bad"]
    if bad:
        console.print(f"[red]Not usable yet:[/] {', '.join(bad)}")
        raise typer.Exit(1)
    console.print('[green]Usable.[/] Try: holdfast generate --deterministic "What is a holdfast?"')


def _python() -> Finding:
    return Finding("python", f"{platform.python_version()} ({sys.executable})", "good")


def _holdfast() -> Finding:
    return Finding("holdfast", __version__, "good")


def _package(name: str) -> Callable[[], Finding]:
    def look() -> Finding:
        try:
            return Finding(name, metadata.version(name), "good")
        except metadata.PackageNotFoundError:
            needed = name not in ("gguf", "huggingface-hub", "httpx")
            return Finding(name, "not installed", "bad" if needed else "note")

    return look


def _structured() -> Finding:
    try:
        return Finding("structured output", f"llguidance {metadata.version('llguidance')}", "good")
    except metadata.PackageNotFoundError:
        how = "pip install 'holdfast[structured]'"
        return Finding("structured output", f"llguidance is not installed; install it with: {how}", "note")


def _device() -> Finding:
    import torch

    from holdfast.worker.device import choose_device, cpu_name

    device = choose_device("auto")
    if device.type == "cuda":
        return Finding("device", f"{device}: {torch.cuda.get_device_name(device)}", "good")
    return Finding("device", f"cpu: {cpu_name()}, {torch.backends.cpu.get_cpu_capability()}")


def _gpu() -> Finding:
    """What torch sees, and whether it can be used."""
    import torch

    from holdfast.worker.device import cublas_version, has_triton

    if not torch.cuda.is_available():
        return Finding("gpu", f"none that this torch sees ({torch.__version__})")
    if not has_triton():
        return Finding(
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
    return Finding("gpu", f"{'; '.join(found)}; {libraries}", "good")


def _threads() -> Finding:
    import torch

    return Finding("threads", f"{torch.get_num_threads()} of {os.cpu_count()} cores")


def _kernels() -> Finding:
    from holdfast.errors import ConfigError
    from holdfast.numerics.backends.c.kernels import load_kernels
    from holdfast.worker.device import choose_device

    if choose_device("auto").type == "cuda":
        return Finding("kernels", "triton", "good")
    try:
        kernels = load_kernels()
    except ConfigError as error:
        return Finding("kernels", f"torch operations, because {error}", "note")
    variant = f"{kernels.variant}{' with amx' if kernels.has_amx else ''}"
    return Finding("kernels", f"c, {variant}, by {kernels.built.compiler}", "good")


def _cache() -> Finding:
    from holdfast.numerics.cache_dir import cache_folder

    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding("cache", f"{folder} cannot be written ({error}); every start certifies anew", "note")
    return Finding("cache", f"{folder} can be written", "good")


def _model() -> Finding:
    from holdfast.errors import ModelNotFound
    from holdfast.models.locate import locate

    try:
        located = locate(None)
    except ModelNotFound as error:
        return Finding("default model", f"{error}", "note")
    return Finding("default model", f"{located.name} at {located.path}", "good")


def _certificate() -> Finding:
    """Whether one is kept for the default model, on this device, with these versions."""
    import torch

    from holdfast.certification.certificate import list_certificates
    from holdfast.errors import HoldfastError
    from holdfast.models.checkpoint import open_checkpoint
    from holdfast.models.locate import locate
    from holdfast.worker.device import choose_device, device_name

    try:
        model = open_checkpoint(locate(None).path).config
    except HoldfastError:
        return Finding("certificate", "none looked for: there is no default model", "note")
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
        return Finding("certificate", "none kept for the default model; the first start makes one", "note")
    refused = next((one.refusal for one in fitting if one.refusal is not None), None)
    if refused is not None:
        return Finding("certificate", refused, "note")
    return Finding("certificate", f"{len(fitting)} kept for the default model on this device", "good")


def _fingerprint(model: str) -> Finding:
    """Of a model as `generate` opens it without further options."""
    from holdfast.engine.replay import fingerprint_of

    llm = o.open_llm(EngineConfig(model, determinism="off"))
    return Finding("model", f"{model}, fingerprint {fingerprint_of(llm).digest}", "good")


_LOOKS: tuple[tuple[str, Callable[[], Finding]], ...] = (
    ("python", _python),
    ("holdfast", _holdfast),
    *((name, _package(name)) for name in _PACKAGES),
    ("structured output", _structured),
    ("device", _device),
    ("gpu", _gpu),
    ("threads", _threads),
    ("kernels", _kernels),
    ("cache", _cache),
    ("default model", _model),
    ("certificate", _certificate),
)
