"""Rotary positions: what a configuration says about them, and the frequencies that follow.

`parse_rope` reads both spellings: `rope_theta` with `rope_scaling` (transformers 4) and
`rope_parameters` (transformers 5). Scaling whose frequencies depend on the length seen so far is
refused: such a token has no canonical bits. longrope has two sets of factors; which one is used is
decided once, by the maximum context length (`DecoderConfig.for_length`).

`rope_frequencies` follows transformers: every expression keeps the order of operations of the reference,
in fp32 arrays and Python floats; a float divided by an array multiplies its reciprocal. Powers and logarithms
are our own (`numerics/elementary.py`), as those of torch and libm depend on the machine; so a frequency may
differ from that of transformers in its last bit. The names of the scaling classes are part of the fingerprint.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from holdfast.errors import UnsupportedModel
from holdfast.models.fields import Fields, read_bool, read_float, read_int, refuse

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from holdfast.models.config import DecoderConfig
    from holdfast.numerics.elementary import Floats

MAX_CONTEXT = 1 << 24
_MAX_FACTOR = 1e6
_MAX_THETA = 1e15


@dataclass(frozen=True)
class LinearRope:
    """Divides every frequency by one factor."""

    factor: float


@dataclass(frozen=True)
class Llama3Rope:
    """Divides the frequencies of long wavelengths by `factor`, keeps short ones, blends others."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class YarnRope:
    """Blends interpolated and original frequencies along a ramp, and scales attention."""

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
    """One divisor for each frequency, as in `rope_freqs.weight` of GGUF files."""

    factors: tuple[float, ...]


@dataclass(frozen=True)
class LongRope:
    """One divisor for each frequency, of two sets, and one factor on cos and sin. chosen: which set
    is used; None until the maximum context length is known."""

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_max_position_embeddings: int
    attention_factor: float
    chosen: Literal["short", "long"] | None = None


RopeScaling = LinearRope | Llama3Rope | YarnRope | FactorsRope | LongRope
# The rope of a layer: the model's, one with another theta and without scaling, or none (NoPE).
RopeKind = Literal["global", "local", "none"]


@dataclass(frozen=True)
class Rope:
    """rotary_dim: the first dims of a head, which are rotated; None: all."""

    theta: float
    scaling: RopeScaling | None
    rotary_dim: int | None


def parse_rope(
    fields: Fields,
    max_position_embeddings: int,
    head_dim: int,
    default_theta: float = 10000.0,
    *,
    allows_partial: bool = False,
) -> Rope:
    """Return what a model configuration says about rotary positions."""
    rope = _rope_section(fields)
    theta = _read_theta(fields, rope, default_theta)
    rotary_dim = _read_rotary_dim(fields, rope, head_dim, allows_partial)
    scaling = _parse_scaling(fields, rope, max_position_embeddings, rotary_dim or head_dim)
    return Rope(theta, scaling, rotary_dim)


def _read_rotary_dim(fields: Fields, rope: Fields, head_dim: int, allows_partial: bool) -> int | None:
    key = "partial_rotary_factor"
    value = rope.get(key) if rope.get(key) is not None else fields.get(key)
    if value in (None, 1, 1.0):
        return None
    if not allows_partial:
        raise refuse(key, value, "1: whole heads are rotated")
    rotary_dim = int(head_dim * read_float({key: value}, key, 0.0, 1.0))
    if rotary_dim < 2 or rotary_dim % 2:
        raise refuse(key, value, f"a factor that gives an even number of the head's {head_dim} dims")
    return None if rotary_dim == head_dim else rotary_dim


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
            f"rope_parameters differ by layer ({', '.join(map(str, nested))}); Holdfast rotates all layers alike"
        )
    return section


def _read_theta(fields: Fields, rope: Fields, default: float) -> float:
    outer, inner = fields.get("rope_theta"), rope.get("rope_theta")
    if outer is not None and inner is not None and outer != inner:
        raise UnsupportedModel(
            f"rope_theta is {outer!r} in the configuration and {inner!r} in its rope parameters"
        )
    return read_float(
        {"rope_theta": outer if inner is None else inner}, "rope_theta", 1.0, _MAX_THETA, default
    )


def _parse_scaling(
    fields: Fields, rope: Fields, max_position_embeddings: int, rotary_dim: int
) -> RopeScaling | None:
    kind, old_kind = rope.get("rope_type"), rope.get("type")
    if kind is not None and old_kind is not None and kind != old_kind:
        raise UnsupportedModel(f"rope scaling has two types, {kind!r} and {old_kind!r}")
    kind = kind or old_kind or "default"
    if kind == "default":
        return None
    if kind in ("longrope", "su"):
        return _parse_longrope(fields, rope, max_position_embeddings, rotary_dim)
    if kind == "dynamic":
        raise UnsupportedModel(
            f"rope scaling {kind!r} changes its frequencies with the length seen so far, so the same token would get "
            "different bits in different chunks; use linear, llama3, yarn or longrope scaling, or none"
        )
    if kind == "linear":
        return LinearRope(_read_factor(rope, max_position_embeddings, None))
    if kind not in ("llama3", "yarn"):
        raise refuse("rope_type", kind, "default, linear, llama3, yarn or longrope")
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


def _parse_longrope(fields: Fields, rope: Fields, max_position_embeddings: int, rotary_dim: int) -> LongRope:
    original = _read_original(fields, rope, max_position_embeddings)
    factor = _read_factor(rope, max_position_embeddings, original)
    attention = 1.0 if factor <= 1.0 else math.sqrt(1 + _log(factor) / _log(original))
    return LongRope(
        short_factors=_read_factors(rope, "short_factor", rotary_dim // 2),
        long_factors=_read_factors(rope, "long_factor", rotary_dim // 2),
        original_max_position_embeddings=original,
        attention_factor=read_float(rope, "attention_factor", 0.0, _MAX_FACTOR, attention),
    )


def _read_factors(rope: Fields, key: str, count: int) -> tuple[float, ...]:
    values = rope.get(key)
    if not isinstance(values, list) or len(values) != count:
        raise refuse(key, values, f"a list of {count} numbers, one for each frequency")
    return tuple(read_float({key: value}, key, 0.0, _MAX_FACTOR) for value in values)


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


def rope_frequencies(config: "DecoderConfig", kind: RopeKind = "global") -> "tuple[Floats, float | Floats]":
    """(inv_freq fp32 [head_dim / 2], the factor on cos and sin: one, or fp32 [head_dim / 2]).

    Dims that are not rotated have the frequency 0 and the factor 1: their cos is 1 and their sin 0.
    """
    import numpy as np  # here and below: parsing a configuration needs no numpy

    if kind == "none":
        return np.zeros(config.head_dim // 2, np.float32), 1.0
    inv_freq, attention = _scaled_frequencies(config, kind)
    if not (bool(np.isfinite(inv_freq).all()) and math.isfinite(attention)):
        raise UnsupportedModel(f"rope scaling {config.rope_scaling!r} gives frequencies that are not finite")
    num_fixed = config.head_dim // 2 - len(inv_freq)
    if not num_fixed:
        return inv_freq, attention
    factors = np.concatenate((np.full_like(inv_freq, attention), np.ones(num_fixed, np.float32)))
    return np.concatenate((inv_freq, np.zeros(num_fixed, np.float32))), factors


def _scaled_frequencies(config: "DecoderConfig", kind: RopeKind) -> "tuple[Floats, float]":
    """(inv_freq fp32 [rotary_dim / 2], the factor on cos and sin)."""
    import numpy as np

    theta = config.rope_theta
    if kind == "local":
        assert config.local_rope_theta is not None
        theta = config.local_rope_theta
    positions = _position_frequencies(theta, config.rotary_dim or config.head_dim)
    plain = 1.0 / positions
    scaling = config.rope_scaling if kind == "global" else None
    match scaling:
        case None:
            return plain, 1.0
        case LinearRope():
            return plain / scaling.factor, 1.0
        case Llama3Rope():
            return _llama3(plain, scaling), 1.0
        case YarnRope():
            return _yarn(positions, scaling, theta), _yarn_attention(scaling)
        case FactorsRope():
            divisors: Floats = np.array(scaling.factors, np.float32)
            return plain / divisors, 1.0
        case LongRope():
            assert scaling.chosen is not None, "the maximum context length is not known yet"
            chosen = scaling.long_factors if scaling.chosen == "long" else scaling.short_factors
            factors: Floats = np.array(chosen, np.float32)
            return 1.0 / (factors * positions), scaling.attention_factor


def rotary_order(config: "DecoderConfig") -> "NDArray[np.int64] | None":
    """Return the order in which the dims of q and k heads are loaded, int64 [head_dim]; None: as stored.

    Kernels rotate dims (i, i + head_dim / 2). A model that rotates other pairs has the same scores
    with the dims of its q and k in another order:

        interleaved     0 2 4 ... | 1 3 5 ...
        first R dims    0 .. R/2, half of the rest | R/2 .. R, the other half
    """
    import numpy as np

    dim, rotary_dim = config.head_dim, config.rotary_dim
    if config.interleaved_rope:
        return np.arange(dim).reshape(-1, 2).T.reshape(-1)
    if rotary_dim is None:
        return None
    rotated, fixed = np.arange(rotary_dim).reshape(2, -1), np.arange(rotary_dim, dim).reshape(2, -1)
    order: NDArray[np.int64] = np.concatenate((rotated, fixed), 1).reshape(-1)
    return order


def _position_frequencies(theta: float, dim: int) -> "Floats":
    """Return theta ** (2 i / dim), fp32 [dim / 2]."""
    import numpy as np

    from holdfast.numerics.elementary import pow_fp32

    return pow_fp32(theta, np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim))


def _log(x: float) -> float:
    from holdfast.numerics.elementary import log_fp64  # imports numpy

    return log_fp64(x)


def _llama3(inv_freq: "Floats", scaling: Llama3Rope) -> "Floats":
    import numpy as np

    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    context = scaling.original_max_position_embeddings
    wavelength = 1.0 / inv_freq * (2 * math.pi)
    is_long, is_short = wavelength > context / low, wavelength < context / high
    stretched = np.where(is_long, inv_freq / scaling.factor, inv_freq)
    smooth = (1.0 / wavelength * context - low) / (high - low)
    blended = (1 - smooth) * stretched / scaling.factor + smooth * stretched
    return np.where(~is_short & ~is_long, blended, stretched)


def _yarn(positions: "Floats", scaling: YarnRope, theta: float) -> "Floats":
    import numpy as np

    kept, interpolated = 1.0 / positions, 1.0 / (scaling.factor * positions)
    low, high = _yarn_range(scaling, 2 * len(positions), theta)
    if low == high:
        high += 0.001
    steps = (np.arange(len(positions), dtype=np.float32) - low) / (high - low)
    keep = 1 - np.clip(steps, 0, 1)
    blended: Floats = interpolated * (1 - keep) + kept * keep
    return blended


def _yarn_range(scaling: YarnRope, dim: int, theta: float) -> tuple[float, float]:
    def correction(num_rotations: float) -> float:
        context = scaling.original_max_position_embeddings
        return (dim * _log(context / (num_rotations * 2 * math.pi))) / (2 * _log(theta))

    low, high = correction(scaling.beta_fast), correction(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    return max(low, 0), min(high, dim - 1)


def _yarn_attention(scaling: YarnRope) -> float:
    def mscale(weight: float = 1.0) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * weight * _log(scaling.factor) + 1.0

    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return mscale(scaling.mscale) / mscale(scaling.mscale_all_dim)
    return mscale()
