"""The versions of our code that decides bits, which the fingerprint names, and a digest of our sources.

A version is raised when a change of the code changes a bit of an answer. `scripts/sources.py` holds
which files belong to which component, and a test notices a change of them.
"""

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

VERSIONS = {
    "kernels/c": 2,  # the C kernels and their flags
    "kernels/torch": 1,
    "kernels/triton": 2,
    "model": 3,  # from weights and token ids to the last norm, and to embeddings
    "sampling": 1,  # from logits to committed tokens and logprobs
    "text": 3,  # prompts, chat templates, the text of an answer, grammars
    "thinking": 1,  # blocks T and C, and which of their guesses are valid
}
_COMPUTING = ("certification", "models", "numerics", "thinking", "worker")


@cache
def sources_digest() -> str:
    """Return SHA-256 over all that is installed of the packages that compute and certify.

    It is part of the keys under which certificates, GEMM recipes and compiled kernels are kept, so
    that nothing that was found with other code is used. It takes a few milliseconds.
    """
    package, digest = resources.files("holdfast"), hashlib.sha256()
    for name in _COMPUTING:
        for path, content in sorted(_sources(package.joinpath(name), name)):
            digest.update(f"{path} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _sources(folder: Traversable, at: str) -> Iterator[tuple[str, bytes]]:
    """Yield the path and content of each source in and below a folder, or of what is compiled from it."""
    for one in folder.iterdir() if folder.is_dir() else ():
        if one.is_dir() and one.name != "__pycache__":
            yield from _sources(one, f"{at}/{one.name}")
        elif one.name.endswith((".py", ".c", ".h", ".json", ".pyc")):
            yield f"{at}/{one.name}", one.read_bytes()
