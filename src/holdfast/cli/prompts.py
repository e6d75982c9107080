"""Where prompts come from: the command line, a file, stdin."""

import sys
from pathlib import Path

from holdfast.errors import InvalidRequest


def read_prompts(prompt: str | None, further: list[str], file: Path | None) -> list[str]:
    """All prompts in the order they were given: the argument, --prompt, the file's lines; or stdin."""
    prompts = [_read_stdin() if prompt == "-" else prompt] if prompt is not None else []
    prompts += further
    if file is not None:
        prompts += [line for line in read_text(file, "prompts file").splitlines() if line.strip()]
    if not prompts and file is None and not sys.stdin.isatty():
        prompts = [text] if (text := _read_stdin()) else []
    if not prompts:
        raise InvalidRequest(
            'there is no prompt; write one behind the command, such as: holdfast generate "Hello"'
        )
    return prompts


def read_text(file: Path, what: str) -> str:
    """A file's text; "-" is stdin."""
    if str(file) == "-":
        return _read_stdin()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the {what} {file} cannot be read: {error}") from error


def parse_ids(text: str, option: str) -> list[int]:
    """Token ids with commas between them."""
    try:
        return [int(one) for one in text.replace(",", " ").split()]
    except ValueError:
        raise InvalidRequest(
            f"{option} must be token ids with commas between them, not {text[:80]!r}"
        ) from None


def _read_stdin() -> str:
    try:
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"stdin is no valid UTF-8: {error}") from error
