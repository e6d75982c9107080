"""The number formats of GGUF files, by their type numbers. `dequantize` decodes them."""

from dataclasses import dataclass
from typing import Literal

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
    """The name of a type that is not in `STORED`."""
    return _OTHER_NAMES.get(kind, f"type number {kind}")
