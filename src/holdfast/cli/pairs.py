"""Where prompts and their completions come from: the command line, and files of JSON lines."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.cli.prompts import parse_ids, read_text
from holdfast.core.sampling_params import show
from holdfast.errors import InvalidRequest

_EXAMPLE = 'holdfast score "The sea is" " blue"'

Text = str | list[int]


@dataclass(frozen=True)
class Pair:
    """A prompt and a completion, each text or token ids; where says which pair it is, if there may be several."""

    prompt: Text
    completion: Text
    where: str = ""


def read_pairs(
    texts: list[str], prompt_ids: str | None, completion_ids: str | None, file: Path | None
) -> list[Pair]:
    """The pair of the command line, if there is one, and the file's."""
    pairs = []
    if texts or prompt_ids is not None or completion_ids is not None:
        pairs.append(_given(texts, prompt_ids, completion_ids))
    if file is not None:
        pairs += _lines(read_text(file, "file of pairs"), str(file))
    if not pairs:
        raise InvalidRequest(
            f"there is nothing to score; give a prompt and a completion, such as: {_EXAMPLE}"
        )
    return pairs


def _given(texts: list[str], prompt_ids: str | None, completion_ids: str | None) -> Pair:
    """The texts are what is not given as ids, in order."""
    prompt = None if prompt_ids is None else parse_ids(prompt_ids, "--prompt-ids")
    completion = None if completion_ids is None else parse_ids(completion_ids, "--completion-ids")
    if len(texts) != (prompt is None) + (completion is None):
        raise InvalidRequest(
            f"a pair is one prompt and one completion, each a text or token ids, such as: {_EXAMPLE}"
        )
    rest = iter(texts)
    return Pair(next(rest) if prompt is None else prompt, next(rest) if completion is None else completion)


def _lines(content: str, file: str) -> Iterator[Pair]:
    """A pair for each line that is not blank. Keys we do not know are somebody else's."""
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
        yield Pair(_text(pair, "prompt", where), _text(pair, "completion", where), where)


def _text(pair: dict[str, object], name: str, where: str) -> Text:
    value = pair.get(name)
    if not isinstance(value, str | list):
        raise InvalidRequest(f"{where}: {name} must be a text or a list of token ids, not {show(value)}")
    return value
