"""Order changes in the sources of the torch backend."""

from certification.planted.mutants import in_source

_norm = in_source("backend.py", "rms_norm", "add_rms_norm")
_rope = in_source("backend.py", "rope")
_silu = in_source("backend.py", "silu_mul")
_attention = in_source("attention.py", "attention")
_logsumexp = in_source("sampling.py", "logsumexp")
_sample = in_source("sampling.py", "sample")
_noise = in_source("noise.py", "sample")

_MEAN = "x32.pow(2).mean(-1, keepdim=True)"
_SILU = "x32 / (1.0 + torch.exp(-x32))"
_TERMS = "exp_fp64((row - largest).astype(np.float64))"
_NOISE = "(np.float32(0.0) - log_fp32(y)) * (w / divisor)"
_MASS = "exp_fp64((z - z[best_id]).astype(np.float64))"
_ROPE = "first * c - second * s, second * c + first * s"


TORCH_MUTATIONS = (
    _norm("mean as sum * (1 / n)", _MEAN, "x32.pow(2).sum(-1, keepdim=True) * (1.0 / x32.shape[-1])"),
    _norm("squares reversed", _MEAN, "x32.flip(-1).pow(2).mean(-1, keepdim=True)"),
    _norm("squares in fp64", _MEAN, "x32.double().pow(2).mean(-1, keepdim=True).to(torch.float32)"),
    _norm(
        "squares in two halves",
        _MEAN,
        "sum(half.pow(2).sum(-1, keepdim=True) for half in x32.tensor_split(2, -1)) / x32.shape[-1]",
    ),
    _norm(
        "squares in blocks of 32",
        _MEAN,
        "sum(block.pow(2).sum(-1, keepdim=True) for block in x32.split(32, -1)) / x32.shape[-1]",
    ),
    _norm("1 / sqrt", f"torch.rsqrt({_MEAN} + eps)", f"(1.0 / torch.sqrt({_MEAN} + eps))"),
    _norm(
        "weight applied before rounding",
        "return unit.to(self.dtype) * weight",
        "return (unit * weight).to(self.dtype)",
    ),
    in_source("backend.py", "add_rms_norm")(
        "norm of the unrounded residual",
        "residual.add_(delta)\n        return residual.clone() if weight is None else self.rms_norm(residual,",
        (
            "total = residual.to(torch.float32) + delta.to(torch.float32)\n        residual.add_(delta)\n"
            "        return residual.clone() if weight is None else self.rms_norm(total,"
        ),
    ),
    _rope(
        "one product fused",
        _ROPE,
        "torch.addcmul(first * c, second, s, value=-1), torch.addcmul(second * c, first, s)",
    ),
    _rope(
        "products in fp64",
        _ROPE,
        "(first.double() * c - second.double() * s).float(), (second.double() * c + first.double() * s).float()",
    ),
    _silu("x * sigmoid(x)", _SILU, "x32 * torch.sigmoid(x32)"),
    _silu("exp as a power of two", _SILU, "x32 / (1.0 + torch.exp2(-x32 * 1.4426950408889634))"),
    _silu("x * (1 / (1 + e))", _SILU, "x32 * (1.0 / (1.0 + torch.exp(-x32)))"),
    _attention("KV blocks of 32", "KV_BLOCK = 64", "KV_BLOCK = 32"),
    _attention("KV blocks of 128", "KV_BLOCK = 64", "KV_BLOCK = 128"),
    _attention(
        "KV blocks in reverse",
        "for start in range(seen_from // KV_BLOCK * KV_BLOCK, int(last.max()) + 1, KV_BLOCK):",
        "for start in reversed(range(seen_from // KV_BLOCK * KV_BLOCK, int(last.max()) + 1, KV_BLOCK)):",
    ),
    _attention(
        "KV blocks from the window's first page",
        "range(seen_from // KV_BLOCK * KV_BLOCK,",
        "range(seen_from // 16 * 16,",
    ),
    _attention(
        "QK dot in two halves",
        "torch.bmm(queries, keys).view",
        (
            "(torch.bmm(queries[..., ::2].contiguous(), keys[:, ::2].contiguous())"
            " + torch.bmm(queries[..., 1::2].contiguous(), keys[:, 1::2].contiguous())).view"
        ),
    ),
    _attention(
        "PV sum reversed",
        "torch.bmm(weights.view(tiles * kv_heads, QUERY_TILE * group, KV_BLOCK), values).view(",
        "torch.bmm(weights.view(tiles * kv_heads, QUERY_TILE * group, KV_BLOCK).flip(2), values.flip(1)).view(",
    ),
    _attention(
        "softmax sum reversed", "weights.sum(-1, keepdim=True)", "weights.flip(-1).sum(-1, keepdim=True)"
    ),
    _attention(
        "softmax sum in two halves",
        "weights.sum(-1, keepdim=True)",
        "sum(half.sum(-1, keepdim=True) for half in weights.tensor_split(2, -1))",
    ),
    _attention(
        "output rescaled with fma", "acc * rescale + added, acc)", "torch.addcmul(added, acc, rescale), acc)"
    ),
    _attention("output times the inverse of the sum", "(acc / row_sum)", "(acc * (1.0 / row_sum))"),
    _attention(
        "scale applied to the scores",
        "(q[index].to(torch.float32) * scale)",
        "q[index].to(torch.float32)",
        "torch.bmm(queries, keys).view(tiles, kv_heads, QUERY_TILE, group, KV_BLOCK)",
        "torch.bmm(queries, keys).view(tiles, kv_heads, QUERY_TILE, group, KV_BLOCK) * scale",
    ),
    _logsumexp("sum in fp32", _TERMS, f"{_TERMS}.astype(np.float32)"),
    _logsumexp("sum reversed", f"np.cumsum({_TERMS})", f"np.cumsum({_TERMS}[::-1])"),
    _logsumexp("sum in pairs", f"np.cumsum({_TERMS})[-1]", f"{_TERMS}.sum()"),
    _noise("noise from log(1 - w) uncorrected", _NOISE, "(np.float32(0.0) - log_fp32(y))"),
    _noise("noise correction applied first", _NOISE, "(np.float32(0.0) - log_fp32(y)) * w / divisor"),
    _sample("top-p mass in fp32", _MASS, f"{_MASS}.astype(np.float32)"),
    _sample(
        "logits times 1 / temperature", "row / np.float32(temperature)", "row * np.float32(1 / temperature)"
    ),
)
