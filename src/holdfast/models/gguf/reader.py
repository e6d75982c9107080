"""A GGUF file's metadata and tensor directory, read without copying its weights.

    "GGUF" | version u32 | number of tensors u64 | number of pairs u64
    pairs: key, type, value ...
    tensors: name, dimensions, type, offset ...
    padding to general.alignment | tensor data

Every length and count is checked against the size of the file before anything is allocated, so a
hostile header costs no more than a valid one. Versions 2 and 3, little-endian. What the values mean
for a model is not known here.

The `gguf` package's GGUFReader does not check them: it begins to read an array of 2 ** 40 items
that the header of a 113-byte file claims. It also makes an array for every item, which takes 4 s of
CPU time for the default model's vocabulary; this reader takes 0.08 s.
"""

import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import BadWeights, ModelNotFound, UnsupportedModel

_MAX_ENTRIES = 1 << 16
_MAX_ARRAY_ITEMS = 1 << 24  # over all arrays of a file; the largest vocabularies need about 2 ** 21
_MAX_ARRAY_DEPTH = 4
_MAX_NAME_BYTES = 1 << 16
_SMALLEST_PAIR = 13  # an empty key, its type, a value of one byte
_SMALLEST_TENSOR = 24

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_BOOL, _STRING, _ARRAY = 7, 8, 9


FormatName = Literal[
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "MXFP4"
]


@dataclass(frozen=True)
class StoredType:
    """A number format: blocks of `block_len` numbers in `block_bytes` bytes each."""

    name: FormatName
    block_len: int
    block_bytes: int


STORED = {
    0: StoredType("F32", 1, 4),
    1: StoredType("F16", 1, 2),
    30: StoredType("BF16", 1, 2),
    2: StoredType("Q4_0", 32, 18),
    3: StoredType("Q4_1", 32, 20),
    6: StoredType("Q5_0", 32, 22),
    7: StoredType("Q5_1", 32, 24),
    8: StoredType("Q8_0", 32, 34),
    12: StoredType("Q4_K", 256, 144),
    13: StoredType("Q5_K", 256, 176),
    14: StoredType("Q6_K", 256, 210),
    39: StoredType("MXFP4", 32, 17),
}
_OTHER_NAMES = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64",
    28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0",
}  # fmt: skip


def describe_type(kind: int) -> str:
    """Return the name of a type that is not in `STORED`."""
    return _OTHER_NAMES.get(kind, f"type number {kind}")


@dataclass(frozen=True)
class GgufTensor:
    """One tensor in the file. `shape` is outermost first (in the file, innermost first)."""

    name: str
    shape: tuple[int, ...]
    stored: StoredType
    start: int
    num_bytes: int


class GgufFile:
    """An open GGUF file: `metadata` as plain Python values, `tensors` by their GGUF names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = _map_file(path)
        self._bytes: NDArray[np.uint8] = np.frombuffer(self._map, dtype=np.uint8)
        cursor = _Cursor(path, self._map)
        num_tensors, num_pairs = _read_preamble(cursor)
        self._pairs = _read_pairs(cursor, num_pairs)
        self.metadata: Mapping[str, object] = MappingProxyType(self._pairs)
        if self.metadata.get("split.count", 1) not in (0, 1):
            raise UnsupportedModel(f"{path.name} is one file of a split GGUF model; merge the files first")
        self.tensors: Mapping[str, GgufTensor] = MappingProxyType(
            _read_directory(cursor, num_tensors, _alignment(cursor, self.metadata))
        )

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the stored bytes of a tensor, uint8 [num_bytes], memory-mapped."""
        tensor = self.tensors[name]
        return self._bytes[tensor.start : tensor.start + tensor.num_bytes]

    def forget_arrays(self, prefix: str) -> None:
        """Drop the arrays of `metadata` whose keys begin so. A vocabulary takes megabytes."""
        for key in [key for key, value in self._pairs.items() if isinstance(value, list)]:
            if key.startswith(prefix):
                del self._pairs[key]

    def release(self) -> None:
        """Give the resident pages of the file back to the system. A later read maps them again: no
        page is ever written."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def _map_file(path: Path) -> mmap.mmap:
    try:
        if not path.is_file():
            raise ModelNotFound(f"there is no GGUF file {path}")
        if path.stat().st_size < 24:
            raise BadWeights(f"{path.name} is too short to be a GGUF file")
        with path.open("rb") as file:  # copy-on-write, because torch warns of arrays that are read-only
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except OSError as error:
        raise BadWeights(f"{path.name} cannot be read: {error.strerror or error}") from error


class _Cursor:
    """A read position in the mapped file. Reads never pass the end."""

    def __init__(self, path: Path, view: mmap.mmap) -> None:
        self.view = view
        self.position = 0
        self.items_left = _MAX_ARRAY_ITEMS
        self.name = path.name

    def bad(self, what: str) -> BadWeights:
        where = f"at byte {self.position} of {len(self.view)}"
        return BadWeights(f"{self.name} is not a whole GGUF file: {what} ({where})")

    @property
    def left(self) -> int:
        return len(self.view) - self.position

    def take(self, layout: str) -> tuple[int, ...]:
        size = struct.calcsize("<" + layout)
        if size > self.left:
            raise self.bad("its header is cut off")
        values = struct.unpack_from("<" + layout, self.view, self.position)
        self.position += size
        return values

    def string(self, max_bytes: int | None = None) -> str:
        (length,) = self.take("Q")
        if length > self.left or (max_bytes is not None and length > max_bytes):
            raise self.bad(f"a string claims {length} bytes")
        start, self.position = self.position, self.position + length
        try:
            return self.view[start : self.position].decode()
        except UnicodeDecodeError:
            raise self.bad("a string is not UTF-8") from None

    def strings(self, count: int) -> list[str]:
        """`count` strings. A vocabulary has many, so this is one tight loop."""
        view, position, end = self.view, self.position, len(self.view)
        unpack: Callable[[mmap.mmap, int], tuple[int]] = struct.Struct("<Q").unpack_from
        found: list[str] = []
        try:
            for _ in range(count):
                start = position + 8
                position = start + unpack(view, position)[0]
                if position > end:
                    raise self.bad("a string of an array passes the file's end")
                found.append(view[start:position].decode())
        except struct.error:
            raise self.bad("its header is cut off") from None
        except UnicodeDecodeError:
            raise self.bad("a string of an array is not UTF-8") from None
        self.position = position
        return found


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    if bytes(cursor.view[:4]) != b"GGUF":
        raise BadWeights(f"{cursor.name} is not a GGUF file: it does not begin with GGUF")
    cursor.position = 4
    (version,) = cursor.take("I")
    if version not in (2, 3):
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        kind = "a big-endian file" if swapped in (2, 3) else f"version {version}"
        raise UnsupportedModel(
            f"{cursor.name} is {kind}; Holdfast reads little-endian GGUF, versions 2 and 3"
        )
    num_tensors, num_pairs = cursor.take("QQ")
    if num_tensors > _MAX_ENTRIES or num_tensors * _SMALLEST_TENSOR > cursor.left:
        raise cursor.bad(f"its header claims {num_tensors} tensors")
    if num_pairs > _MAX_ENTRIES or num_pairs * _SMALLEST_PAIR > cursor.left:
        raise cursor.bad(f"its header claims {num_pairs} metadata entries")
    return num_tensors, num_pairs


def _read_pairs(cursor: _Cursor, count: int) -> dict[str, object]:
    pairs: dict[str, object] = {}
    for _ in range(count):
        key = cursor.string(_MAX_NAME_BYTES)
        if key in pairs:
            raise cursor.bad(f"the metadata key {key!r} comes twice")
        pairs[key] = _read_value(cursor, cursor.take("I")[0], 0)
    return pairs


def _read_value(cursor: _Cursor, kind: int, depth: int) -> object:
    if kind == _STRING:
        return cursor.string()
    if kind == _ARRAY:
        return _read_array(cursor, depth)
    if kind not in _SCALARS:
        raise cursor.bad(f"metadata type {kind} does not exist")
    return cursor.take(_SCALARS[kind])[0]


def _read_array(cursor: _Cursor, depth: int) -> list[object]:
    if depth >= _MAX_ARRAY_DEPTH:
        raise cursor.bad("its arrays are nested too deeply")
    kind, count = cursor.take("IQ")
    smallest = struct.calcsize("<" + _SCALARS[kind]) if kind in _SCALARS else 8
    if count * smallest > cursor.left or count > cursor.items_left:
        raise cursor.bad(f"an array claims {count} items")
    cursor.items_left -= count
    if kind == _STRING:
        return list(cursor.strings(count))
    if kind in _SCALARS:
        start, cursor.position = cursor.position, cursor.position + count * smallest
        layout = "u1" if kind == _BOOL else np.dtype(_SCALARS[kind]).newbyteorder("<")
        items = np.frombuffer(cursor.view[start : cursor.position], dtype=layout)
        return list((items != 0).tolist() if kind == _BOOL else items.tolist())
    return [_read_value(cursor, kind, depth + 1) for _ in range(count)]


def _alignment(cursor: _Cursor, metadata: Mapping[str, object]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 8 <= alignment <= 1 << 20 or alignment & (alignment - 1):
        raise cursor.bad(f"general.alignment is {alignment!r}, not a power of two from 8 on")
    return alignment


def _read_directory(cursor: _Cursor, count: int, alignment: int) -> dict[str, GgufTensor]:
    entries = [_read_entry(cursor) for _ in range(count)]
    data_start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, shape, kind, offset in entries:
        if name in tensors:
            raise cursor.bad(f"the tensor {name!r} comes twice")
        tensors[name] = _place(cursor, name, shape, kind, data_start + offset, alignment)
    _require_apart(cursor, tensors)
    return tensors


def _require_apart(cursor: _Cursor, tensors: Mapping[str, GgufTensor]) -> None:
    in_order = sorted(tensors.values(), key=lambda each: each.start)
    for one, other in pairwise(in_order):
        if one.start + one.num_bytes > other.start:
            raise cursor.bad(f"the data of the tensors {one.name!r} and {other.name!r} overlap")


def _read_entry(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string(_MAX_NAME_BYTES)
    (num_dims,) = cursor.take("I")
    if not 1 <= num_dims <= 4:
        raise cursor.bad(f"tensor {name!r} claims {num_dims} dimensions")
    dims = cursor.take("Q" * num_dims)
    kind, offset = cursor.take("IQ")
    return name, dims[::-1], kind, offset


def _place(
    cursor: _Cursor, name: str, shape: tuple[int, ...], kind: int, start: int, alignment: int
) -> GgufTensor:
    stored = STORED.get(kind)
    if stored is None:
        supported = ", ".join(each.name for each in STORED.values())
        raise UnsupportedModel(
            f"tensor {name!r} is stored as {describe_type(kind)}; Holdfast reads {supported}. "
            "Convert the model to one of these"
        )
    if min(shape) < 1 or shape[-1] % stored.block_len:
        raise cursor.bad(f"tensor {name!r} cannot have the shape {shape} as {stored.name}")
    num_bytes = prod(shape) // stored.block_len * stored.block_bytes
    if start % alignment or start + num_bytes > len(cursor.view):
        raise cursor.bad(f"tensor {name!r} ({num_bytes} bytes from byte {start}) is not inside the file")
    return GgufTensor(name, shape, stored, start, num_bytes)
