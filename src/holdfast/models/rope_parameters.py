"""What a configuration says about rotary positions: the base and how it is stretched.

Reads both spellings: `rope_theta` with `rope_scaling` (transformers 4) and `rope_parameters` (transformers
5). A kind of stretching whose frequencies depend on the length seen so far is refused: such a row has no
canonical bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.errors import UnsupportedModel
from holdfast.models.fields import Fields, read_bool, read_float, read_int, refuse

MAX_CONTEXT = 1 << 24
_MAX_FACTOR = 1e6
_MAX_THETA = 1e15


@dataclass(frozen=True)
class LinearRope:
    """Every frequency divided by one factor."""

    factor: float


@dataclass(frozen=True)
class Llama3Rope:
    """Long wavelengths divided by `factor`, short ones kept, those between blended."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class YarnRope:
    """Interpolated and kept frequencies blended along a ramp, attention scaled."""

    factor: float
    original_max_position_embeddings: int
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True)
class FactorsRope:
    """One divisor for each frequency, as GGUF files carry them in `rope_freqs.weight`."""

    factors: tuple[float, ...]


RopeScaling = LinearRope | Llama3Rope | YarnRope | FactorsRope


def parse_rope(fields: Fields, max_position_embeddings: int) -> tuple[float, RopeScaling | None]:
    """(theta, scaling) of a model configuration."""
    rope = _rope_section(fields)
    theta = _read_theta(fields, rope)
    for section in (fields, rope):
        if section.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise refuse(
                "partial_rotary_factor", section["partial_rotary_factor"], "1: whole heads are rotated"
            )
    return theta, _parse_scaling(fields, rope, max_position_embeddings)


def _rope_section(fields: Fields) -> Fields:
    old, new = fields.get("rope_scaling"), fields.get("rope_parameters")
    if old and new and old != new:
        raise UnsupportedModel(
            "rope_scaling and rope_parameters contradict each other in the model's configuration"
        )
    section = old or new or {}
    if not isinstance(section, Mapping):
        raise refuse("rope_scaling", section, "an object")
    nested = [key for key, value in section.items() if isinstance(value, Mapping)]
    if nested:
        raise UnsupportedModel(
            f"rope_parameters differ by layer ({', '.join(map(str, nested))}); Holdfast rotates all layers "
            f"alike"
        )
    return section


def _read_theta(fields: Fields, rope: Fields) -> float:
    outer, inner = fields.get("rope_theta"), rope.get("rope_theta")
    if outer is not None and inner is not None and outer != inner:
        raise UnsupportedModel(
            f"rope_theta is {outer!r} in the configuration and {inner!r} in its rope parameters"
        )
    return read_float(
        {"rope_theta": outer if inner is None else inner}, "rope_theta", 1.0, _MAX_THETA, 10000.0
    )


def _parse_scaling(fields: Fields, rope: Fields, max_position_embeddings: int) -> RopeScaling | None:
    kind, old_kind = rope.get("rope_type"), rope.get("type")
    if kind is not None and old_kind is not None and kind != old_kind:
        raise UnsupportedModel(f"rope scaling calls itself {kind!r} and {old_kind!r}")
    kind = kind or old_kind or "default"
    if kind == "default":
        return None
    if kind in ("dynamic", "longrope", "su"):
        raise UnsupportedModel(
            f"rope scaling {kind!r} changes its frequencies with the length seen so far, so the same token "
            f"would get "
            "different bits in different chunks; use linear, llama3 or yarn scaling, or none"
        )
    if kind == "linear":
        return LinearRope(_read_factor(rope, max_position_embeddings, None))
    if kind not in ("llama3", "yarn"):
        raise refuse("rope_type", kind, "default, linear, llama3 or yarn")
    original = _read_original(fields, rope, max_position_embeddings)
    return (_parse_llama3 if kind == "llama3" else _parse_yarn)(rope, max_position_embeddings, original)


def _read_original(fields: Fields, rope: Fields, max_position_embeddings: int) -> int:
    key = "original_max_position_embeddings"
    value = fields.get(key) or rope.get(key) or max_position_embeddings
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return read_int({key: value}, key, 1, MAX_CONTEXT)


def _read_factor(rope: Fields, max_position_embeddings: int, original: int | None) -> float:
    implied = None if original is None else max_position_embeddings / original
    return read_float(rope, "factor", 0.0, _MAX_FACTOR, implied, name="rope scaling factor")


def _parse_llama3(rope: Fields, max_position_embeddings: int, original: int) -> Llama3Rope:
    low = read_float(rope, "low_freq_factor", 0.0, _MAX_FACTOR)
    high = read_float(rope, "high_freq_factor", 0.0, _MAX_FACTOR)
    if high <= low:
        raise refuse("high_freq_factor", high, f"more than low_freq_factor, {low:g}")
    return Llama3Rope(_read_factor(rope, max_position_embeddings, None), low, high, original)


def _parse_yarn(rope: Fields, max_position_embeddings: int, original: int) -> YarnRope:
    def optional(key: str) -> float | None:
        return None if rope.get(key) is None else read_float(rope, key, 0.0, _MAX_FACTOR)

    return YarnRope(
        factor=_read_factor(rope, max_position_embeddings, original),
        original_max_position_embeddings=original,
        attention_factor=optional("attention_factor"),
        mscale=optional("mscale") if rope.get("mscale") != 0 else None,
        mscale_all_dim=optional("mscale_all_dim") if rope.get("mscale_all_dim") != 0 else None,
        beta_fast=_read_beta(rope, "beta_fast", 32.0),
        beta_slow=_read_beta(rope, "beta_slow", 1.0),
        truncate=read_bool(rope, "truncate", True),
    )


def _read_beta(rope: Fields, key: str, default: float) -> float:
    return default if rope.get(key) == 0 else read_float(rope, key, 0.0, _MAX_FACTOR, default)
