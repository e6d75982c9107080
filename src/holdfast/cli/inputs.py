"""Read prompts, and pairs of prompt and completion, from the command line, files and stdin."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.sampling_params import show
from holdfast.errors import InvalidRequest

_PAIR_EXAMPLE = 'holdfast score "The sea is" " blue"'

Text = str | list[int]


def read_prompts(prompt: str | None, further: list[str], file: Path | None) -> list[str]:
    """Return all prompts: the argument, --prompt, the lines of the file; without any of them stdin."""
    prompts = [_read_stdin() if prompt == "-" else prompt] if prompt is not None else []
    prompts += further
    if file is not None:
        prompts += [line for line in _read_text(file, "prompts file").split("\n") if line.strip()]
    if not prompts and file is None and not sys.stdin.isatty():
        prompts = [text] if (text := _read_stdin()) else []
    if not prompts:
        raise InvalidRequest('there is no prompt; give one, such as: holdfast generate "Hello"')
    return prompts


def parse_ids(text: str, option: str) -> list[int]:
    try:
        return [int(one) for one in text.replace(",", " ").split()]
    except ValueError:
        raise InvalidRequest(f"{option} must be token ids separated by commas, not {text[:80]!r}") from None


@dataclass(frozen=True)
class ScorePair:
    """A prompt and a completion, each text or token ids. where names its line, for errors."""

    prompt: Text
    completion: Text
    where: str = ""


def read_pairs(
    texts: list[str], prompt_ids: str | None, completion_ids: str | None, file: Path | None
) -> list[ScorePair]:
    pairs = []
    if texts or prompt_ids is not None or completion_ids is not None:
        pairs.append(_parse_pair(texts, prompt_ids, completion_ids))
    if file is not None:
        pairs += _parse_lines(_read_text(file, "file of pairs"), str(file))
    if not pairs:
        raise InvalidRequest(
            f"there is nothing to score; give a prompt and a completion, such as: {_PAIR_EXAMPLE}"
        )
    return pairs


def _parse_pair(texts: list[str], prompt_ids: str | None, completion_ids: str | None) -> ScorePair:
    """Return the pair. What is not given as ids is taken from the texts, in order."""
    prompt = None if prompt_ids is None else parse_ids(prompt_ids, "--prompt-ids")
    completion = None if completion_ids is None else parse_ids(completion_ids, "--completion-ids")
    if len(texts) != (prompt is None) + (completion is None):
        raise InvalidRequest(
            f"a pair is one prompt and one completion, each a text or token ids, such as: {_PAIR_EXAMPLE}"
        )
    rest = iter(texts)
    return ScorePair(
        next(rest) if prompt is None else prompt, next(rest) if completion is None else completion
    )


def _parse_lines(content: str, file: str) -> Iterator[ScorePair]:
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        where = f"line {number} of {'stdin' if file == '-' else file}"
        try:
            pair = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"{where} is no valid JSON: {error}") from None
        if not isinstance(pair, dict):
            raise InvalidRequest(f"{where} must be an object with prompt and completion, not {show(pair)}")
        yield ScorePair(_text(pair, "prompt", where), _text(pair, "completion", where), where)


def _text(pair: dict[str, object], name: str, where: str) -> Text:
    value = pair.get(name)
    if not isinstance(value, str | list):
        raise InvalidRequest(f"{where}: {name} must be a text or a list of token ids, not {show(value)}")
    return value


def _read_text(file: Path, what: str) -> str:
    if str(file) == "-":
        return _read_stdin()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the {what} {file} cannot be read: {error}") from error


def _read_stdin() -> str:
    try:
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"stdin is no valid UTF-8: {error}") from error
