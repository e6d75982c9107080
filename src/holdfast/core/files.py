"""Read text files that users name."""

import os
from pathlib import Path

from holdfast.errors import ConfigError, HoldfastError


def read_text(
    path: str | os.PathLike[str], what: str, most: int, error: type[HoldfastError] = ConfigError
) -> str:
    """Return the text of a file. Raise `error` if it cannot be read, is no UTF-8 or has more than `most`
    characters. what: the file in the error, such as "the schema a.json"."""
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(most + 1)
    except UnicodeDecodeError:
        raise error(f"{what} is no valid UTF-8") from None
    except (OSError, ValueError) as failure:
        why = failure.strerror if isinstance(failure, OSError) else failure
        raise error(f"{what} cannot be read: {why}") from failure
    if len(text) > most:
        raise error(f"{what} is longer than {most} characters")
    return text
