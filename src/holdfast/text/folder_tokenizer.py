"""Read the tokenizer of a model folder.

Its files, of which only the first is required:

    tokenizer.json            the tokens
    tokenizer_config.json     names of special tokens, chat templates, and which special tokens are
                              added to a text if tokenizer.json does not say so
    special_tokens_map.json   names of special tokens, in older folders
    chat_template.jinja       replaces the default chat template
    generation_config.json,
    config.json               more ids that end an answer

The file is untrusted. Replacements that could make a text much longer are refused, and so is what gives a
text other ids each time (dropout) or ids another text (two tokens with one id). A pattern that backtracks
without end is stopped by the `tokenizers` library after a fixed number of steps (`guard_backend`).
"""

import base64
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from holdfast.errors import ModelError, ModelNotFound, TokenizerError, UnsupportedModel
from holdfast.models.fields import read_json
from holdfast.text.tokenizer_data import (
    DEFAULT_CLASS,
    TextAffixes,
    TokenizerData,
    TokenizerIdentity,
    find_harmony_ends,
    find_special_ids,
    guard_backend,
)

_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_MAX_TEMPLATE_BYTES = 1 << 20
_MAX_GROWTH = 256
_MAX_STEPS = 64
_RANDOM_FIELDS = ("dropout", "alpha", "nbest_size")  # of a model: they sample among the ways to split a text


def read_folder_tokenizer(folder: Path) -> TokenizerData:
    """Return the tokenizer of a model folder."""
    content = _read_content(folder)
    backend = _parse_backend(folder, content)
    config = _read_object(folder / "tokenizer_config.json")
    marked_special = _add_missing_tokens(backend, config)
    _require_no_choice(folder, backend)
    special_tokens = _read_special_tokens(folder, config)
    ids = {name: backend.token_to_id(token) for name, token in special_tokens.items()}
    affixes = None if _adds_special_tokens(backend) else _read_affixes(config, ids)
    special = {id_ for id_ in ids.values() if id_ is not None}
    return TokenizerData(
        backend=backend,
        vocab_size=_find_vocab_size(folder, backend),
        identity=TokenizerIdentity(lambda: _canonical(content, config, special_tokens, affixes)),
        affixes=affixes,
        bos_token_id=ids.get("bos_token"),
        eos_token_ids=_read_eos_ids(folder, ids.get("eos_token")) | find_harmony_ends(backend),
        special_ids=find_special_ids(backend) | marked_special | special,
        special_tokens=special_tokens,
        chat_templates=_read_templates(folder, config),
        class_name=_read_class_name(config),
    )


def _read_content(folder: Path) -> str:
    path = folder / "tokenizer.json"
    if not path.is_file():
        if not folder.is_dir():
            raise ModelNotFound(f"there is no model folder {folder}")
        if (folder / "tokenizer.model").is_file():
            raise UnsupportedModel(
                f"{folder.name} has only a sentencepiece tokenizer.model; Holdfast reads tokenizer.json: "
                "convert it with transformers' AutoTokenizer (from_pretrained, then save_pretrained)"
            )
        raise ModelError(f"{folder.name} has no tokenizer.json; put the model's own file next to its weights")
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read as UTF-8 text: {error}") from error


def _parse_backend(folder: Path, content: str) -> Tokenizer:
    try:
        with guard_backend():
            backend = Tokenizer.from_str(content)
            parts = (backend.normalizer, backend.pre_tokenizer, backend.decoder)
            states = [None if part is None else json.loads(part.__getstate__()) for part in parts]
    except TokenizerError as error:
        raise ModelError(f"{folder / 'tokenizer.json'} is not a tokenizer: {error}") from error
    for name, state in zip(("normalizer", "pre_tokenizer", "decoder"), states, strict=True):
        _require_bounded(name, list(_steps(state)))
    backend.no_truncation()
    backend.no_padding()
    return backend


def _require_no_choice(folder: Path, backend: Tokenizer) -> None:
    """Refuse a tokenizer that samples among the ways to split a text."""
    for name in _RANDOM_FIELDS:
        value = getattr(backend.model, name, None)
        if value:
            raise UnsupportedModel(
                f"{folder / 'tokenizer.json'} has model.{name} = {value:g}: a text would have other token ids each "
                "time. Remove the field"
            )


def _require_bounded(name: str, steps: list[dict[str, Any]]) -> None:
    growth = math.prod(map(_growth, steps))
    if len(steps) > _MAX_STEPS or growth > _MAX_GROWTH:
        raise UnsupportedModel(
            f"the {name} of the model's tokenizer.json has {len(steps)} steps and can make a text {growth:.2g} times "
            f"as long; at most {_MAX_STEPS} steps and {_MAX_GROWTH} times are supported: the file is hostile or broken"
        )


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """Yield every object in a part that has a type: its steps, at any depth."""
    stack = [part]
    while stack:
        one = stack.pop()
        if isinstance(one, dict):
            if isinstance(one.get("type"), str):
                yield one
            stack += one.values()
        elif isinstance(one, list):
            stack += one


def _growth(step: Mapping[str, Any]) -> float:
    if step["type"] == "Precompiled":  # sentencepiece: the size of a trie, the trie, its replacements
        raw = base64.b64decode(step["precompiled_charsmap"])
        replacements = raw[4 + int.from_bytes(raw[:4], "little") :]
        return max(1.0, *map(len, replacements.split(b"\0")))
    if step["type"] != "Replace":
        return 1.0
    literal = step["pattern"].get("String")
    return max(1.0, len(step["content"]) / len(literal or " "))


def _read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or an empty one if there is no such file."""
    return read_json(path, ModelError) if path.is_file() else {}


def _add_missing_tokens(backend: Tokenizer, config: Mapping[str, Any]) -> frozenset[int]:
    """Add the tokens that only `tokenizer_config.json` has, as transformers does. Returns the ids
    it marks as special."""
    added = config.get("added_tokens_decoder", {})
    if not isinstance(added, dict):
        raise ModelError("added_tokens_decoder in tokenizer_config.json is not an object; the file is broken")
    special = set()
    for key in sorted(added, key=_as_id):
        entry = added[key]
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise ModelError(f"token {key} in tokenizer_config.json has no content; the file is broken")
        if backend.token_to_id(entry["content"]) is None:
            flags = {
                name: bool(entry.get(name, False)) for name in ("lstrip", "rstrip", "single_word", "special")
            }
            backend.add_tokens(
                [AddedToken(entry["content"], normalized=bool(entry.get("normalized")), **flags)]
            )
        if entry.get("special"):
            special.add(backend.token_to_id(entry["content"]))
    return frozenset(id_ for id_ in special if id_ is not None)


def _as_id(key: str) -> int:
    if not key.isdecimal():
        raise ModelError(
            f"added_tokens_decoder in tokenizer_config.json has the id {key!r}; the file is broken"
        )
    return int(key)


def _read_special_tokens(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    known = {
        **_read_object(folder / "special_tokens_map.json"),
        **{k: v for k, v in config.items() if v is not None},
    }
    named = {name: _token_text(known.get(name)) for name in _NAMES}
    return {name: token for name, token in named.items() if token is not None}


def _token_text(value: object) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _adds_special_tokens(backend: Tokenizer) -> bool:
    """Return whether `tokenizer.json` adds special tokens. If so, it decides, as in transformers 5."""
    if backend.post_processor is None:
        return False
    post = json.loads(backend.post_processor.__getstate__())
    return any(step["type"] != "ByteLevel" for step in post.get("processors", [post]))


def _read_affixes(config: Mapping[str, Any], ids: Mapping[str, int | None]) -> TextAffixes:
    bos, eos = ids.get("bos_token"), ids.get("eos_token")
    return TextAffixes(
        prefix_ids=(bos,) if config.get("add_bos_token") and bos is not None else (),
        suffix_ids=(eos,) if config.get("add_eos_token") and eos is not None else (),
    )


def _read_eos_ids(folder: Path, eos: int | None) -> frozenset[int]:
    eos_ids = set() if eos is None else {eos}
    for name in ("generation_config.json", "config.json"):
        value = _read_object(folder / name).get("eos_token_id")
        eos_ids |= {
            id_ for id_ in (value if isinstance(value, list) else [value]) if type(id_) is int and id_ >= 0
        }
    return frozenset(eos_ids)


def _find_vocab_size(folder: Path, backend: Tokenizer) -> int:
    """Return one more than the largest id. Ids may have gaps. Refuse two tokens with one id."""
    size = int(backend.get_vocab_size(with_added_tokens=True))
    if None not in map(backend.id_to_token, range(size)):  # as many ids as tokens
        return size
    tokens: dict[int, str] = {}
    for token, id_ in sorted(backend.get_vocab(with_added_tokens=True).items()):
        if tokens.setdefault(id_, token) != token:
            raise ModelError(
                f"{folder / 'tokenizer.json'} is broken: the tokens {tokens[id_]!r} and {token!r} both have the id {id_}"
            )
    return 1 + max(tokens)


def _read_templates(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    value = config.get("chat_template")
    templates: dict[str, str] = {}
    if isinstance(value, str):
        templates["default"] = value
    elif isinstance(value, list):
        for entry in value:
            if not isinstance(entry, dict) or not isinstance(entry.get("template"), str):
                raise ModelError("a chat template in tokenizer_config.json has no text; the file is broken")
            templates[str(entry.get("name", "default"))] = entry["template"]
    elif isinstance(value, dict):
        templates.update({str(name): text for name, text in value.items() if isinstance(text, str)})
    path = folder / "chat_template.jinja"
    if path.is_file():
        templates["default"] = _read_template(path)
    return templates


def _read_class_name(config: Mapping[str, Any]) -> str:
    name = config.get("tokenizer_class")
    return name if isinstance(name, str) else DEFAULT_CLASS


def _read_template(path: Path) -> str:
    try:
        if path.stat().st_size > _MAX_TEMPLATE_BYTES:
            raise ModelError(f"{path} is larger than a chat template may be ({_MAX_TEMPLATE_BYTES} bytes)")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read as UTF-8 text: {error}") from error


def _canonical(
    content: str, config: Mapping[str, Any], special_tokens: Mapping[str, str], affixes: TextAffixes | None
) -> bytes:
    added_ids = None if affixes is None else [affixes.prefix_ids, affixes.suffix_ids]
    added = config.get("added_tokens_decoder", {})
    named = {name: special_tokens.get(name) for name in _NAMES}
    parts = [json.loads(content, parse_float=_as_spelled), added, named, added_ids]
    return json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()


def _as_spelled(text: str) -> float | str:
    """Return a number, or its text if it is not the shortest one: the `tokenizers` library reads the last bit of a
    number by its spelling."""
    value = float(text)
    return value if repr(value) == text else text
