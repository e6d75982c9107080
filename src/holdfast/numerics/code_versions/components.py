"""The components of the code that decides bits: which files belong to which.

A file is listed if another algorithm in it could give a deterministic request another token, another
logprob or another text. Files that only schedule, serve, report or describe are not listed, nor are
those whose result is in the fingerprint itself, such as the device's name. A test demands that every
file of the package is listed here or there, with the reason.

The checks of a certificate decide no bit of an answer. They decide what a certificate says, so
`certification` is part of the certificate's key and not of the fingerprint.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources.abc import Traversable

_SUFFIXES = (".py", ".c", ".h")
_PYC_HEADER = 16  # magic number, flags and the source's time


@dataclass(frozen=True)
class Component:
    """Paths inside the package; one that ends with "/" is a folder with all folders below it."""

    covers: str
    paths: tuple[str, ...]
    without: tuple[str, ...] = ()


_CPU_PAGES = "numerics/backends/cpu_pages.py"
_ELEMENTARY = "numerics/elementary.py"

COMPONENTS = {
    "kernels/c": Component("the C kernels and their flags", ("numerics/backends/c/", _CPU_PAGES)),
    "kernels/torch": Component("the torch backend", ("numerics/backends/torch/", _CPU_PAGES, _ELEMENTARY)),
    "kernels/triton": Component("the Triton kernels", ("numerics/backends/triton/",)),
    "model": Component(
        "from weights and token ids to the last norm, and to embeddings",
        (
            "models/",
            *(
                f"numerics/{name}.py"
                for name in ("blocks", "experts", "forward_batch", "layer", "ops", "rope")
            ),
            *(f"numerics/{name}.py" for name in ("fp_environment", "openmp", "settings", "settings_guard")),
            *("numerics/watched_settings.py", _ELEMENTARY),
            *(f"worker/{name}.py" for name in ("cuda_graphs", "input_batch", "kv_store", "last_layer")),
            *(f"worker/{name}.py" for name in ("model_runner", "page_table_cache", "pooling", "transfer")),
            *("core/pooling.py", "scheduler/pooled_prompt.py"),
        ),
        without=("models/adapter.py", "models/dummy.py", "models/locate.py", "models/shapes.py"),
    ),
    "sampling": Component(
        "from logits to committed tokens and logprobs",
        (
            *("core/sampling_params.py", "core/step_plan.py", "core/stop_rules.py"),
            *("numerics/sampling.py", "numerics/token_history.py"),
            "scheduler/verification.py",
            "worker/logits_processors/",
            *(f"worker/{name}.py" for name in ("head_graphs", "logits_slices", "logprobs", "sampler")),
        ),
    ),
    "text": Component(
        "prompts, chat templates, the text of an answer, grammars",
        (
            *("core/grammar.py", "core/request.py", "core/structured_output.py"),
            *("engine/input_processor.py", "engine/output.py"),
            *(f"sandbox/{name}.py" for name in ("grammar_worker", "template_sandbox", "template_worker")),
            *("structured/", "text/"),
        ),
    ),
    "thinking": Component(
        "blocks T and C, and which thoughts are valid",
        ("thinking/",),
        without=("thinking/predictor.py",),
    ),
    "certification": Component(
        "the checks of a certificate and the search for GEMM recipes",
        ("certification/", "numerics/batch_sizes.py", "numerics/bits.py"),
    ),
}


def component_files(package: Traversable, component: str) -> dict[str, bytes] | None:
    """The content of a component's files by path. None if a listed path does not exist.

    Where only compiled files are installed, it is their code.
    """
    listed = COMPONENTS[component]
    found: dict[str, bytes] = {}
    for path in listed.paths:
        files = dict(files_at(package, path))
        if not files:
            return None
        found |= files
    return {path: found[path] for path in sorted(found) if path not in listed.without}


def files_at(package: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    """The path and content of one file, or of all files in and below a folder."""
    if path.endswith("/"):
        yield from _walk(package.joinpath(path.rstrip("/")), path)
    elif (file := package.joinpath(path)).is_file():
        yield path, file.read_bytes()
    elif (compiled := package.joinpath(f"{path}c")).is_file():
        yield f"{path}c", compiled.read_bytes()[_PYC_HEADER:]


def _walk(folder: Traversable, at: str) -> Iterator[tuple[str, bytes]]:
    if not folder.is_dir():
        return
    for one in folder.iterdir():
        if one.is_dir():
            if one.name != "__pycache__":
                yield from _walk(one, f"{at}{one.name}/")
        elif one.name.endswith(_SUFFIXES):
            yield at + one.name, one.read_bytes()
        elif one.name.endswith(".pyc"):
            yield at + one.name, one.read_bytes()[_PYC_HEADER:]
