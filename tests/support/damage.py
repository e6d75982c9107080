"""What can happen to a file: each entry of DAMAGES damages the file at a path, whatever it holds."""

import os
import random
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path], None]


def _rewrite(change: Callable[[bytes], bytes]) -> Damage:
    return lambda path: _replace(path, lambda: path.write_bytes(change(path.read_bytes())))


def _replace(path: Path, make: Callable[[], object]) -> None:
    os.chmod(path, 0o600)
    make()


def _instead(make: Callable[[Path], object]) -> Damage:
    def damage(path: Path) -> None:
        path.rename(path.with_name("aside"))
        make(path)

    return damage


def _flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


def _folder_with_files(path: Path) -> None:
    path.mkdir()
    (path / "file").write_text("in the way")


DAMAGES: dict[str, Damage] = {
    "missing": lambda path: path.unlink(),
    "empty": _rewrite(lambda content: b""),
    "cut in half": _rewrite(lambda content: content[: len(content) // 2]),
    "cut at a page": _rewrite(lambda content: content[: (len(content) - 1) // 4096 * 4096]),
    "without its last byte": _rewrite(lambda content: content[:-1]),
    "zeroed": _rewrite(lambda content: bytes(len(content))),
    "zeroed in the middle": _rewrite(
        lambda content: (
            content[: len(content) // 3] + bytes(len(content) // 3) + content[2 * (len(content) // 3) :]
        )
    ),
    "garbage": _rewrite(lambda content: random.Random(1).randbytes(len(content))),
    "one bit in the middle": _rewrite(lambda content: _flip(content, len(content) // 2)),
    "one bit at the end": _rewrite(lambda content: _flip(content, len(content) - 1)),
    "longer": _rewrite(lambda content: content + b"\0"),
    "twice": _rewrite(lambda content: content * 2),
    "unreadable": lambda path: os.chmod(path, 0),  # root reads it all the same
    "a folder": _instead(lambda path: path.mkdir()),
    "a folder with files": _instead(_folder_with_files),
    "a link to itself": _instead(lambda path: path.symlink_to(path.name)),
    "a link to nowhere": _instead(lambda path: path.symlink_to("nowhere")),
    "a link to a folder": _instead(lambda path: path.symlink_to(path.parent)),
    "a link to it": _instead(lambda path: path.symlink_to("aside")),
    "a pipe": _instead(lambda path: os.mkfifo(path)),
    "a device": _instead(lambda path: path.symlink_to("/dev/zero")),
}
