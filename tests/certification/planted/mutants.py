"""Copies of a backend whose sources were changed in one place: C kernels built from changed files,
Python modules imported from changed files.

A mutation whose text is no longer in the source raises an error: it must be written anew.
"""

import importlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from holdfast.numerics import backends
from holdfast.numerics.backends.c.backend import CBackend
from holdfast.numerics.backends.c.build import build
from holdfast.numerics.backends.c.kernels import CKernels, bind_kernels

_BACKENDS = Path(backends.__file__).parent


class MutationOutdated(RuntimeError):
    """The text that a mutation replaces is no longer in the source."""


@dataclass(frozen=True)
class Mutation:
    """Replacements in one source file, which change the order of the operations named."""

    name: str
    operations: tuple[str, ...]
    file: str
    replacements: tuple[tuple[str, str], ...]

    def apply(self, folder: Path) -> None:
        """Change the file in a copy of the sources."""
        path = folder / self.file
        text = path.read_text()
        for old, new in self.replacements:
            if (count := text.count(old)) != 1:
                raise MutationOutdated(
                    f"the mutation {self.name!r} must find its text once in {self.file} and finds it {count} times: "
                    f"{old!r}"
                )
            text = text.replace(old, new)
        path.write_text(text)


def in_source(file: str, *operations: str) -> Callable[..., Mutation]:
    """Return a function that makes mutations of these operations in this file."""

    def mutation(name: str, *texts: str) -> Mutation:
        """texts: a part of the source and what replaces it, in turn."""
        return Mutation(name, operations, file, tuple(zip(texts[::2], texts[1::2], strict=True)))

    return mutation


class SourceMutants:
    """Changed copies of the backends' sources, in a folder that is removed at the end."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="holdfast-planted-")
        self._kernels: dict[Mutation, CKernels] = {}
        self._modules: dict[tuple[str, Mutation], ModuleType] = {}

    def __enter__(self) -> "SourceMutants":
        sys.path.insert(0, self._folder.name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.path.remove(self._folder.name)
        packages = {module.__name__.split(".")[0] for module in self._modules.values()}
        for name in [name for name in sys.modules if name.split(".")[0] in packages]:
            del sys.modules[name]
        self._folder.cleanup()

    def build_c(self, mutations: Sequence[Mutation]) -> None:
        """Build the changed C kernels. One library holds a mutation of each source file: kernels of
        one file do not call those of another. A changed header has a library of its own."""
        by_file: dict[str, list[Mutation]] = {}
        for mutation in mutations:
            by_file.setdefault(mutation.file, []).append(mutation)
        headers = [[one] for file in by_file if file.endswith(".h") for one in by_file[file]]
        columns = [found for file, found in by_file.items() if not file.endswith(".h")]
        depth = max(map(len, columns), default=0)
        libraries = [[one[row] for one in columns if row < len(one)] for row in range(depth)]
        for group in [*libraries, *headers]:
            folder = self._copy("c", group)
            kernels = bind_kernels(build(folder))
            self._kernels |= dict.fromkeys(group, kernels)

    def open(self, mutation: Mutation, base: Any) -> Any:
        """A copy of the backend `base` with the mutation."""
        path = base.recipe.path
        if path == "c":
            return CBackend(base.dtype, self._kernels[mutation], base._num_threads)
        module = self._import(path, mutation)
        if path == "torch":
            return module.TorchBackend(base.dtype)
        return module.TritonBackend(base.dtype, base.device, base._split_k, False)

    def _copy(self, package: str, mutations: Sequence[Mutation]) -> Path:
        folder = Path(tempfile.mkdtemp(prefix=f"planted_{package}_", dir=self._folder.name))
        shutil.copytree(
            _BACKENDS / package, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__")
        )
        for mutation in mutations:
            mutation.apply(folder)
        return folder

    def _import(self, package: str, mutation: Mutation) -> ModuleType:
        """The module `backend` of a changed copy, imported as a package of its own."""
        known = self._modules.get((package, mutation))
        if known is not None:
            return known
        folder = self._copy(package, [mutation])
        for file in folder.rglob("*.py"):
            old, new = f"holdfast.numerics.backends.{package}", folder.name
            file.write_text(file.read_text().replace(old, new))
        importlib.invalidate_caches()
        self._modules[package, mutation] = importlib.import_module(f"{folder.name}.backend")
        return self._modules[package, mutation]
