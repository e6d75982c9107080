"""The frequencies of rotary positions, with the bits transformers gives them.

Every expression keeps the order of operations of the reference, in fp32 tensors and Python floats: a
different but equal formula would be a different model.
"""

import math

import torch
from torch import Tensor

from holdfast.errors import UnsupportedModel
from holdfast.models.config import DecoderConfig
from holdfast.models.rope_parameters import FactorsRope, LinearRope, Llama3Rope, YarnRope


def rope_frequencies(config: DecoderConfig) -> tuple[Tensor, float]:
    """(inv_freq fp32 [head_dim / 2], the factor on cos and sin)."""
    positions = _position_frequencies(config)
    plain = 1.0 / positions
    scaling = config.rope_scaling
    match scaling:
        case None:
            inv_freq, attention = plain, 1.0
        case LinearRope():
            inv_freq, attention = plain / scaling.factor, 1.0
        case Llama3Rope():
            inv_freq, attention = _llama3(plain, scaling), 1.0
        case YarnRope():
            inv_freq, attention = _yarn(positions, scaling, config), _yarn_attention(scaling)
        case FactorsRope():
            inv_freq, attention = plain / torch.tensor(scaling.factors, dtype=torch.float32), 1.0
    if not (bool(torch.isfinite(inv_freq).all()) and math.isfinite(attention)):
        raise UnsupportedModel(f"rope scaling {scaling!r} gives frequencies that are not finite")
    return inv_freq, attention


def _position_frequencies(config: DecoderConfig) -> Tensor:
    """theta ** (2 i / head_dim), fp32 [head_dim / 2]."""
    steps = torch.arange(0, config.head_dim, 2, dtype=torch.int64).to(torch.float32) / config.head_dim
    return torch.pow(config.rope_theta, steps)


def _llama3(inv_freq: Tensor, scaling: Llama3Rope) -> Tensor:
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    context = scaling.original_max_position_embeddings
    wavelength = 2 * math.pi / inv_freq
    is_long, is_short = wavelength > context / low, wavelength < context / high
    stretched = torch.where(is_long, inv_freq / scaling.factor, inv_freq)
    smooth = (context / wavelength - low) / (high - low)
    blended = (1 - smooth) * stretched / scaling.factor + smooth * stretched
    return torch.where(~is_short & ~is_long, blended, stretched)


def _yarn(positions: Tensor, scaling: YarnRope, config: DecoderConfig) -> Tensor:
    kept, interpolated = 1.0 / positions, 1.0 / (scaling.factor * positions)
    low, high = _yarn_range(scaling, config.head_dim, config.rope_theta)
    if low == high:
        high += 0.001
    steps = (torch.arange(config.head_dim // 2, dtype=torch.float32) - low) / (high - low)
    keep = 1 - torch.clamp(steps, 0, 1)
    return interpolated * (1 - keep) + kept * keep


def _yarn_range(scaling: YarnRope, dim: int, theta: float) -> tuple[float, float]:
    def correction(num_rotations: float) -> float:
        context = scaling.original_max_position_embeddings
        return (dim * math.log(context / (num_rotations * 2 * math.pi))) / (2 * math.log(theta))

    low, high = correction(scaling.beta_fast), correction(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    return max(low, 0), min(high, dim - 1)


def _yarn_attention(scaling: YarnRope) -> float:
    def mscale(weight: float = 1.0) -> float:
        return 1.0 if scaling.factor <= 1 else 0.1 * weight * math.log(scaling.factor) + 1.0

    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return mscale(scaling.mscale) / mscale(scaling.mscale_all_dim)
    return mscale()
