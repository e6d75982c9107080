"""Load the recurrent part of a layer."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from holdfast.models.mixers import ConvSizes, DeltaSizes, MixerSizes, SpaceSizes, decay_name
from holdfast.numerics.arrays import Tensor, arrays_on
from holdfast.numerics.elementary import exp_fp64
from holdfast.numerics.recurrence import GatedDelta, Mixer, ShortConv, StateSpace

Ints = NDArray[np.int64]

if TYPE_CHECKING:
    from holdfast.models.weight_loader import WeightLoader


def load_mixer(loader: "WeightLoader", prefix: str, sizes: MixerSizes, eps: float) -> Mixer:
    """Return the mixer of the layer whose tensor names begin with `prefix`. eps: of the model's norms."""
    if isinstance(sizes, DeltaSizes):
        return _load_delta(loader, prefix + "linear_attn.", sizes, eps)
    if isinstance(sizes, SpaceSizes):
        return _load_space(loader, f"{prefix}{sizes.name}.", sizes, eps)
    return _load_conv(loader, prefix + "conv.", sizes)


def _load_delta(loader: "WeightLoader", prefix: str, sizes: DeltaSizes, eps: float) -> Mixer:
    if sizes.grouped:
        in_proj = loader.gathered(prefix, ("in_proj_qkvz", "in_proj_ba"), _ungrouped_rows(sizes))
    elif sizes.grouped_ba:
        in_proj = loader.gathered(prefix, ("in_proj_qkv", "in_proj_ba", "in_proj_z"), _rows_of_ba(sizes))
    elif sizes.split_qkv:
        in_proj = loader.linear(prefix, tuple(f"{name}_proj" for name in (*sizes.parts, "a", "b", "g")))
    else:
        in_proj = loader.linear(prefix, ("in_proj_qkv", "in_proj_a", "in_proj_b", "in_proj_z"))
    convs = [f"{name}_conv1d" for name in sizes.parts] if sizes.split_qkv else ["conv1d"]
    taps = [_taps(loader, f"{prefix}{name}.weight") for name in convs]
    rule = GatedDelta(
        conv=taps[0] if len(taps) == 1 else loader.arrays.cat(taps, 1),
        decay=_decay(loader, prefix, sizes),
        dt_bias=loader.fp32(prefix + "dt_bias"),
        key_heads=sizes.key_heads,
        value_heads=sizes.value_heads,
        key_dim=sizes.key_dim,
        value_dim=sizes.value_dim,
        in_turns=sizes.in_turns,
        beta_scale=sizes.beta_scale,
    )
    norm_name, out_name = ("o_norm", "o_proj") if sizes.split_qkv else ("norm", "out_proj")
    norm = loader.fp32(f"{prefix}{norm_name}.weight")
    out_proj = loader.linear(prefix, (out_name,))
    own_eps = eps if sizes.norm_eps is None else sizes.norm_eps
    return Mixer(in_proj, rule, out_proj, norm=norm, norm_group=sizes.value_dim, norm_eps=own_eps)


def _load_space(loader: "WeightLoader", prefix: str, sizes: SpaceSizes, eps: float) -> Mixer:
    rows = np.arange(sizes.in_width)  # stored: the gate, then the inputs of the recurrence
    space = StateSpace(
        conv=_taps(loader, prefix + "conv1d.weight"),
        conv_bias=loader.fp32(prefix + "conv1d.bias") if sizes.conv_bias else None,
        decay=_decay(loader, prefix, sizes),
        dt_bias=loader.fp32(prefix + "dt_bias"),
        skip=loader.fp32(prefix + "D"),
        heads=sizes.heads,
        head_dim=sizes.head_dim,
        groups=sizes.groups,
        state_size=sizes.state_size,
        dt_min=sizes.dt_min,
        dt_max=float("inf") if sizes.dt_max is None else sizes.dt_max,
    )
    return Mixer(
        in_proj=loader.gathered(prefix, ("in_proj",), (rows[sizes.width :], rows[: sizes.width])),
        recurrence=space,
        out_proj=loader.linear(prefix, ("out_proj",)),
        norm=loader.fp32(prefix + "norm.weight") if sizes.norm_groups else None,
        norm_group=sizes.width // sizes.norm_groups if sizes.norm_groups else 0,
        norm_eps=eps,
        gates_first=sizes.gates_first,
    )


def _load_conv(loader: "WeightLoader", prefix: str, sizes: ConvSizes) -> Mixer:
    bias = loader.fp32(prefix + "conv.bias") if sizes.bias else None
    conv = ShortConv(_taps(loader, prefix + "conv.weight"), bias)
    in_proj, out_proj = (loader.linear(prefix, (name,)) for name in ("in_proj", "out_proj"))
    return Mixer(in_proj, conv, out_proj, has_gate=False)


def _taps(loader: "WeightLoader", name: str) -> Tensor:
    """Return the weights of a convolution, stored as [channels, 1, kernel]: fp32 [kernel, channels]."""
    return loader.fp32(name)[:, 0].T.contiguous()


def _decay(loader: "WeightLoader", prefix: str, sizes: DeltaSizes | SpaceSizes) -> Tensor:
    """Return -exp(A_log), fp32."""
    logs = loader.fp32(prefix + decay_name(sizes))
    if logs.device.type == "meta" or sizes.has_decay:
        return logs
    wide = logs.cpu().numpy().astype(np.float64)
    magnitudes = np.where(wide > 0, 1.0 / exp_fp64(-np.abs(wide)), exp_fp64(-np.abs(wide)))
    return arrays_on(logs.device).from_numpy(-magnitudes.astype(np.float32))


def _ungrouped_rows(sizes: DeltaSizes) -> list[Ints]:
    """Return which rows of in_proj_qkvz and in_proj_ba, one after the other, are q, k, v, a, b and z."""
    groups, ratio = sizes.key_heads, sizes.value_heads // sizes.key_heads
    widths = [sizes.key_dim, sizes.key_dim, ratio * sizes.value_dim, ratio * sizes.value_dim]
    qkvz = np.arange(groups * sum(widths)).reshape(groups, -1)
    q, k, v, z = np.split(qkvz, np.cumsum(widths[:-1]), axis=1)
    return [each.reshape(-1) for each in (q, k, v, *_rows_of_groups(sizes, groups * sum(widths)), z)]


def _rows_of_ba(sizes: DeltaSizes) -> list[Ints]:
    """Return which rows of in_proj_qkv, in_proj_ba and in_proj_z, one after the other, are qkv, a, b and z."""
    end = sizes.conv_width + 2 * sizes.value_heads
    a, b = _rows_of_groups(sizes, sizes.conv_width)
    return [np.arange(sizes.conv_width), a, b, np.arange(end, end + sizes.values)]


def _rows_of_groups(sizes: DeltaSizes, first: int) -> tuple[Ints, Ints]:
    """Return which rows are a and b, if those of the value heads of a key head are together: b, then a."""
    groups = sizes.key_heads
    b, a = (np.arange(2 * sizes.value_heads) + first).reshape(groups, 2, -1).swapaxes(0, 1)
    return a.reshape(-1), b.reshape(-1)
