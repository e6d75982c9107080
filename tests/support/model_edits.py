"""Small edits of a model's files, each with a name.

Leaves of JSON files and of the headers of weights become other values of their type, of other types, or
nothing; lists and objects lose, repeat and swap items. Texts are spelled otherwise, cut and garbled. Tensors
change a bit, their place and their name. Files appear and vanish.
"""

import json
import shutil
import struct
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

ABSENT = object()
_MAX_ITEMS = 20  # of a longer list or object, the first, the middle and the last count
OTHER_FILES: dict[str, str] = {
    "chat_template.json": '{"chat_template": "x"}',
    "additional_chat_templates/rag.jinja": "<b>",
    "special_tokens_map.json": '{"unk_token": "a", "pad_token": {"content": "b"}, "eos_token": "c"}',
    "added_tokens.json": '{"hello": 7}',
    "generation_config.json": '{"eos_token_id": 9, "temperature": 2.0}',
    "tokenizer_config.json": '{"add_bos_token": true, "bos_token": "a", "eos_token": "b"}',
    "processor_config.json": '{"chat_template": "x"}',
    "thinking.json": "{}",
    "adapter.json": "{}",
    "adapter_config.json": "{}",
    "model.safetensors.index.json": '{"weight_map": {}}',
    "pytorch_model.bin": "x",
    "other.safetensors": "x",
    "other.gguf": "GGUF",
    "tokenizer.model": "x",
    "vocab.json": '{"a": 0}',
    "merges.txt": "a b",
    "modeling.py": "raise SystemExit",
    "README.md": "x",
}


TEMPLATES = (
    "{{ messages[0].content }}",
    "{{ messages | map(attribute='role') }}{{ cycler('a') }}",
    "{% for key in messages[0].keys() - ['role'] %}{{ key }} {% endfor %}",
    "{{ strftime_now('%s %c %Z') }}{{ [1, 2] | random }}",
)


@dataclass(frozen=True)
class Edit:
    """An edit of a copy of a model: a folder, or a file."""

    name: str
    apply: Callable[[Path], None]


def edits_of(model: Path) -> Iterator[Edit]:
    """Yield every edit of a model folder or a GGUF file."""
    if model.is_file():
        yield from gguf_edits(model)
        return
    names = sorted(one.name for one in model.iterdir())
    for name in names:
        yield Edit(f"{name}: removed", lambda folder, name=name: (folder / name).unlink())
        for what, change in _BYTES.items():
            yield Edit(f"{name}: {what}", partial(_change_bytes, name, change))
        if name.endswith(".json"):
            yield from json_edits(model / name)
        elif name.endswith(".safetensors"):
            yield from safetensors_edits(model / name)
    for number, text in enumerate(TEMPLATES):
        yield Edit(f"chat_template.jinja: template {number}", partial(_write, "chat_template.jinja", text))
    for name, content in OTHER_FILES.items():
        yield Edit(f"{name}: written", partial(_write, name, content))


_BYTES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda raw: b"",
    "cut in half": lambda raw: raw[: len(raw) // 2],
    "with a byte more": lambda raw: raw + b"\n",
    "with a mark of byte order": lambda raw: b"\xef\xbb\xbf" + raw,
    "without UTF-8": lambda raw: raw[:1] + b"\xff" + raw[1:],
    "with a NUL": lambda raw: raw[: len(raw) // 2] + b"\0" + raw[len(raw) // 2 + 1 :],
}


def _change_bytes(name: str, change: Callable[[bytes], bytes], folder: Path) -> None:
    path = folder / name
    path.write_bytes(change(path.read_bytes()))


def _write(name: str, content: str, folder: Path) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(content, encoding="utf-8")


def json_edits(path: Path) -> Iterator[Edit]:
    document, name = json.loads(path.read_text(encoding="utf-8")), path.name
    for what, spelled in _spellings(document).items():
        yield Edit(f"{name}: {what}", partial(_write, name, spelled))
    for at, changed in changed_leaves(document):
        yield Edit(f"{name}: {at}", lambda folder, make=changed: _write(name, json.dumps(make()), folder))


def _spellings(document: dict[str, Any]) -> dict[str, str]:
    text, first = json.dumps(document), next(iter(document), "")
    keys = dict(reversed(document.items()))
    return {
        "indented": json.dumps(document, indent=1, ensure_ascii=False),
        "keys reversed": json.dumps(keys),
        "first key twice": f"{{{json.dumps(first)}: null, {text[1:]}",
        "last key twice": f"{text[:-1]}, {json.dumps(first)}: null}}",
        "numbers spelled longer": json.dumps(_longer(document)).replace('"~', "").replace('~"', ""),
    }


def _longer(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _longer(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_longer(one) for one in value]
    return f"~{value:.30f}~" if isinstance(value, float) else value


def changed_leaves(document: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield a name and a function that returns the document with one leaf, list or object changed."""
    for at, value in _walk(document, ()):
        for other in (*_others(value), ABSENT) if at else ():
            shown = "absent" if other is ABSENT else json.dumps(other)[:40]
            yield f"{'.'.join(map(str, at))[:60]} = {shown}", partial(_with, document, at, other)


def _walk(value: Any, at: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    yield at, value
    keys = (
        list(value) if isinstance(value, dict) else list(range(len(value) if isinstance(value, list) else 0))
    )
    if len(keys) > _MAX_ITEMS and at:
        keys = [keys[0], keys[len(keys) // 2], keys[-1]]
    for key in keys:
        yield from _walk(value[key], (*at, key))


def _others(value: Any) -> list[Any]:
    """Return values to put in the place of one."""
    if value is None:
        return [0, 0.1, True, "a", {}]
    if isinstance(value, bool):
        return [not value, None, "x"]
    if isinstance(value, int):
        return [value + 1, 0, -1, value + 0.5, float(value), str(value), None]
    if isinstance(value, float):
        return [value * 2, 0.0, value * (1 + 2**-50), None]
    if isinstance(value, str):
        return [value + "x", "", value.swapcase(), None, 7]
    if isinstance(value, list):
        return [value[:-1], value[::-1], value + value[-1:], [], None]
    *_, one, other = (None, None, *value)
    swapped = {**value, one: value[other], other: value[one]} if one is not None else {}
    same = {**value, one: value[other]} if one is not None else {}
    return [{**value, "unknown": 1}, {}, swapped, same]


def _with(document: Any, at: tuple[Any, ...], other: Any) -> Any:
    changed = deepcopy(document)
    holder = changed
    for key in at[:-1]:
        holder = holder[key]
    if other is ABSENT:
        del holder[at[-1]]
    else:
        holder[at[-1]] = other
    return changed


# Safetensors: the length of the header, the header, the data.


def read_safetensors(path: Path) -> tuple[dict[str, Any], bytes]:
    raw = path.read_bytes()
    size = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def write_safetensors(path: Path, header: Any, data: bytes) -> None:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def safetensors_edits(path: Path) -> Iterator[Edit]:
    header, data = read_safetensors(path)
    name, tensors = path.name, [one for one in header if one != "__metadata__"]

    def put(new: Any, folder: Path) -> None:
        write_safetensors(folder / name, new, data)

    for at, changed in changed_leaves(header):
        yield Edit(f"{name}: {at}", lambda folder, make=changed: put(make(), folder))
    for one in tensors:
        start, end = header[one]["data_offsets"]
        renamed = {**header, f"{one}x": header[one]}
        yield Edit(f"{name}: {one} renamed", partial(put, {k: v for k, v in renamed.items() if k != one}))
        for byte in (start, end - 1):
            flipped = data[:byte] + bytes([data[byte] ^ 1]) + data[byte + 1 :]
            yield Edit(
                f"{name}: byte {byte - start} of {one}",
                lambda folder, flipped=flipped: write_safetensors(folder / name, header, flipped),
            )
        other = next(
            (two for two in tensors if two != one and header[two]["shape"] == header[one]["shape"]), None
        )
        if other is not None:
            swapped = header | {one: header[other], other: header[one]}
            yield Edit(f"{name}: {one} and {other} swapped", partial(put, swapped))
    if name == "model.safetensors":
        yield Edit("weights in two shards", partial(_shard, header, data, False))
        yield Edit("weights in two shards with other names", partial(_shard, header, data, True))


def _shard(header: dict[str, Any], data: bytes, other_names: bool, folder: Path) -> None:
    """Write two shards, which hold every tensor once. With other names: as in a model with images."""
    tensors = [one for one in header if one != "__metadata__"]
    weight_map = {}
    for number, part in enumerate((tensors[::2], tensors[1::2])):
        own: dict[str, Any] = {}
        kept = b""
        for one in part:
            start, end = header[one]["data_offsets"]
            stored = one.replace("model.", "model.language_model.", 1) if other_names else one
            own[stored] = {**header[one], "data_offsets": [len(kept), len(kept) + end - start]}
            kept += data[start:end]
            weight_map[stored] = f"part-{number}.safetensors"
        write_safetensors(folder / f"part-{number}.safetensors", own, kept)
    (folder / "model.safetensors").unlink()
    _write("model.safetensors.index.json", json.dumps({"weight_map": weight_map}), folder)


# GGUF: pairs with their types, the directory of tensors, the data.

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@dataclass
class Gguf:
    """A GGUF file, taken apart. A pair: key, type, value; of an array the value is (type, items)."""

    pairs: list[tuple[str, int, Any]]
    tensors: list[tuple[str, list[int], int, int]]  # name, dimensions, type, offset
    data: bytes

    @classmethod
    def read(cls, path: Path) -> "Gguf":
        raw, at = path.read_bytes(), 8

        def take(layout: str) -> Any:
            nonlocal at
            (value,) = struct.unpack_from("<" + layout, raw, at)
            at += struct.calcsize("<" + layout)
            return value

        def value_of(kind: int) -> Any:
            nonlocal at
            if kind == _STRING:
                size = take("Q")
                at += size
                return raw[at - size : at].decode()
            if kind == _ARRAY:
                kind, count = take("I"), take("Q")
                return kind, [value_of(kind) for _ in range(count)]
            return take(_SCALARS[kind])

        num_tensors, num_pairs = take("Q"), take("Q")
        pairs = [(value_of(_STRING), kind := take("I"), value_of(kind)) for _ in range(num_pairs)]
        tensors = [
            (value_of(_STRING), [take("Q") for _ in range(take("I"))], take("I"), take("Q"))
            for _ in range(num_tensors)
        ]
        return cls(pairs, tensors, raw[-(-at // 32) * 32 :])

    def write(self, path: Path) -> None:
        raw = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.pairs))
        for key, kind, value in self.pairs:
            raw += _packed(_STRING, key) + struct.pack("<I", kind) + _packed(kind, value)
        for name, dims, kind, offset in self.tensors:
            raw += _packed(_STRING, name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)
        path.write_bytes(raw + b"\0" * (-len(raw) % 32) + self.data)

    def with_pairs(self, **pairs: Any) -> "Gguf":
        """Return the file with more pairs: texts, or lists of texts, integers or floats."""
        return Gguf(
            [*self.pairs, *((key, *_typed(value)) for key, value in pairs.items())], self.tensors, self.data
        )

    def without(self, prefix: str) -> "Gguf":
        return Gguf([one for one in self.pairs if not one[0].startswith(prefix)], self.tensors, self.data)


def _typed(value: Any) -> tuple[int, Any]:
    if isinstance(value, list):
        return _ARRAY, (_typed(value[0])[0], value)
    return {str: _STRING, int: 5, float: 6}[type(value)], value


def _packed(kind: int, value: Any) -> bytes:
    if kind == _STRING:
        text = value.encode()
        return struct.pack("<Q", len(text)) + text
    if kind == _ARRAY:
        kind, items = value
        return struct.pack("<IQ", kind, len(items)) + b"".join(_packed(kind, one) for one in items)
    return struct.pack("<" + _SCALARS[kind], value)


def gguf_edits(path: Path) -> Iterator[Edit]:
    file = Gguf.read(path)
    for what, change in _BYTES.items():
        yield Edit(what, lambda one, change=change: _rewrite(one, change(one.read_bytes())))

    def put(pairs: list[Any], tensors: list[Any], data: bytes, one: Path) -> None:
        one.unlink()
        Gguf(pairs, tensors, data).write(one)

    for index, (key, kind, value) in enumerate(file.pairs):
        others = [(key, *new) for new in _other_pairs(kind, value)]
        for other in (*others, (key + "x", kind, value), None):
            pairs = [*file.pairs[:index], *([] if other is None else [other]), *file.pairs[index + 1 :]]
            shown = "absent" if other is None else repr(other)[:60]
            yield Edit(f"{key} = {shown}", partial(put, pairs, file.tensors, file.data))
    for key, text in {
        "tokenizer.chat_template.rag": "<b>",
        "general.name": "x",
        "tokenizer.ggml.unknown": "x",
    }.items():
        pairs = [*(one for one in file.pairs if one[0] != key), (key, _STRING, text)]
        yield Edit(f"{key} written", partial(put, pairs, file.tensors, file.data))
    yield Edit("pairs reversed", partial(put, file.pairs[::-1], file.tensors, file.data))
    yield Edit("tensors reversed", partial(put, file.pairs, file.tensors[::-1], file.data))
    for index, (name, dims, kind, offset) in enumerate(file.tensors):
        twin = next((one for one in file.tensors if one[0] != name and one[1:3] == (dims, kind)), None)
        for other in (
            (name + "x", dims, kind, offset),
            (name, dims[::-1], kind, offset),
            (name, dims, 1 if kind == 0 else 0, offset),
            (name, dims, kind, offset + 32),
            *(() if twin is None else [(name, dims, kind, twin[3])]),
        ):
            tensors = [*file.tensors[:index], other, *file.tensors[index + 1 :]]
            yield Edit(f"{name} as {other}", partial(put, file.pairs, tensors, file.data))
        flipped = file.data[:offset] + bytes([file.data[offset] ^ 1]) + file.data[offset + 1 :]
        yield Edit(f"{name}: a bit", partial(put, file.pairs, file.tensors, flipped))


def _other_pairs(kind: int, value: Any) -> Iterator[tuple[int, Any]]:
    if kind == _ARRAY:
        kind, items = value
        middle = len(items) // 2
        others = [items[:-1], items[::-1], [*items, *items[-1:]], [*items[:middle], *items[middle + 1 :]], []]
        if len(items) > 1:
            others += [[items[1], items[0], *items[2:]], [items[1], *items[1:]]]
        yield from ((_ARRAY, (kind, other)) for other in others)
        yield from (
            (_ARRAY, (kind, [*items[:-1], new]))
            for found, new in _other_pairs(kind, items[-1])
            if found == kind
        )
    elif kind == _STRING:
        yield from ((kind, other) for other in (value + "x", "", value.swapcase()))
        yield 4, 7
    elif kind in (6, 12):
        yield from ((kind, other) for other in (value * 2, 0.0, value * (1 + 2**-20), float("nan")))
    elif kind == 7:
        yield kind, not value
    else:
        yield from ((kind, other) for other in (value + 1, 0, max(value - 1, 0)))
        yield 6, float(value)
        yield _STRING, str(value)


def _rewrite(path: Path, raw: bytes) -> None:
    path.unlink()
    path.write_bytes(raw)


def copied(model: Path, to: Path) -> Path:
    """Return a copy of a model, whose files are written anew by an edit."""
    return Path(shutil.copytree(model, to) if model.is_dir() else shutil.copy(model, to))
