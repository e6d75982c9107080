"""Order changes in the sources of the Triton backend."""

from certification.planted.mutants import in_source

_norm = in_source("norm.py", "rms_norm", "add_rms_norm")
_rope = in_source("rope_store.py", "rope")
_silu = in_source("elementwise.py", "silu_mul")
_attention = in_source("attention/paged.py", "attention")
_small_m = in_source("gemms/small_m_gemm.py", "linear")
_library = in_source("gemms/gemm.py", "linear")

_ROTATE = "return tl.fma(low, cos, -(high * sin)), tl.fma(high, cos, low * sin)"
_SILU = "(gate32 / (1.0 + tl.exp(-gate32)))"


TRITON_MUTATIONS = (
    _norm(
        "squares of the other half fused", "tl.fma(low, low, high * high)", "tl.fma(high, high, low * low)"
    ),
    _norm(
        "folded in the middle to the end",
        "tl.static_range(10, LEVELS)",
        "tl.static_range(0, LEVELS)",
        "tl.static_range(LEVELS if LEVELS < 10 else 10)",
        "tl.static_range(0)",
    ),
    _norm("mean as sum / n", "tl.fma(total, 1.0 / WIDTH, eps)", "total / WIDTH + eps"),
    _norm(
        "1 / sqrt",
        "tl.math.rsqrt(tl.fma(total, 1.0 / WIDTH, eps))",
        "(1.0 / tl.math.sqrt(tl.fma(total, 1.0 / WIDTH, eps)))",
    ),
    _norm(
        "weight applied before rounding",
        "unit = (x * inverse).to(weight.dtype).to(tl.float32)",
        "unit = x * inverse",
    ),
    _rope("no fma", _ROTATE, "return low * cos - high * sin, high * cos + low * sin"),
    _rope(
        "the other product fused",
        _ROTATE,
        "return tl.fma(-high, sin, low * cos), tl.fma(low, sin, high * cos)",
    ),
    _silu("gate * (1 / (1 + e))", _SILU, "(gate32 * (1.0 / (1.0 + tl.exp(-gate32))))"),
    _silu("exp as a power of two", _SILU, "(gate32 / (1.0 + tl.exp2(-gate32 * 1.4426950408889634)))"),
    _silu("blocks of 1024", "_SILU_BLOCK = 2048", "_SILU_BLOCK = 1024"),
    _attention("KV blocks of 32", "KV_BLOCK = 64", "KV_BLOCK = 32"),
    _attention("splits of 128 positions", "SPLIT = 256", "SPLIT = 128"),
    _attention("splits of 512 positions", "SPLIT = 256", "SPLIT = 512"),
    _attention("one split", "SPLIT = 256", "SPLIT = 1 << 20"),
    _attention(
        "the split's product fused in the merge",
        "tl.fma(acc, rescale_2d, split_acc * split_scale_2d)",
        "tl.fma(split_acc, split_scale_2d, acc * rescale_2d)",
    ),
    _attention(
        "block sums apart",
        'split_acc = tl.dot(weights, block, split_acc * rescale, input_precision="ieee")',
        'split_acc = split_acc * rescale + tl.dot(weights, block, input_precision="ieee")',
        'split_acc = tl.dot(tl.trans(block), weights, split_acc * rescale, input_precision="ieee")',
        'split_acc = split_acc * rescale + tl.dot(tl.trans(block), weights, input_precision="ieee")',
    ),
    _attention(
        "softmax sum apart",
        'split_sum = tl.dot(weights, ones, split_sum * rescale, input_precision="ieee")',
        "split_sum = split_sum * rescale + tl.sum(weights.to(tl.float32), 1)[:, None]",
        'split_sum = tl.dot(ones, weights, split_sum * rescale, input_precision="ieee")',
        "split_sum = split_sum * rescale + tl.sum(weights.to(tl.float32), 0)[None, :]",
    ),
    in_source("attention/scores.py", "attention")(
        "output times the inverse of the sum",
        "result = acc / row_sum + 0.0",
        "result = acc * (1.0 / row_sum) + 0.0",
    ),
    in_source("sampler/logits.py", "logsumexp")("chunks of 2048", "CHUNK = 4096", "CHUNK = 2048"),
    in_source("sampler/sampling.py", "logsumexp")(
        "chunk in two halves",
        "tl.store(sums + at, tl.sum(tl.exp(x - base), 0))",
        (
            "terms = tl.exp(x - base)\n"
            "    low = tl.sum(tl.where(tl.arange(0, CHUNK) < CHUNK // 2, terms, 0.0), 0)\n"
            "    tl.store(sums + at, low + tl.sum(tl.where(tl.arange(0, CHUNK) < CHUNK // 2, 0.0, terms), 0))"
        ),
    ),
    in_source("sampler/gumbel.py", "sample")(
        "noise from log(1 - w) uncorrected",
        "-_log(y) * tl.math.div_rn(w, tl.where(y == 1.0, 1.0, 1.0 - y))",
        "-_log(y)",
    ),
    in_source("sampler/logits.py", "sample")(
        "logits times 1 / temperature",
        "clean(tl.math.div_rn(x, temperature + tl.zeros_like(x)))",
        "clean(x * (1.0 / temperature))",
    ),
    _small_m(
        "small-M GEMM: block sums apart",
        (
            "        total = tl.dot(\n"
            '            block, tl.load(inputs + start, mask=row_mask, other=0.0), total, input_precision="ieee"\n'
            "        )"
        ),
        '        total += tl.dot(block, tl.load(inputs + start, mask=row_mask, other=0.0), input_precision="ieee")',
    ),
    _small_m("small-M GEMM: K blocks of 64", "((256, 128, 64) if rows <= 16 else (128, 64))", "(64,)"),
    _library(
        "library GEMM: split-K 2",
        "        return F.linear(x, weight)\n",
        "        return _library_gemm(x, weight, 2).sum(0).to(x.dtype)\n",
    ),
    _library(
        "library GEMM: transposed",
        "        return F.linear(x, weight)\n",
        "        return torch.mm(weight, x.t()).t().contiguous()\n",
    ),
    _library(
        "library GEMM: batched form",
        "        return F.linear(x, weight)\n",
        "        return _library_gemm(x, weight, 1)[0].to(x.dtype)\n",
    ),
    in_source("gemms/partial_sums.py", "linear")(
        "partial sums added in reverse",
        "total = tl.load(data + offset, mask=mask, other=0.0).to(tl.float32)",
        (
            "last: tl.constexpr = SPLIT_K - 1 if SPLIT_K > 1 else 0\n"
            "    total = tl.load(data + last * split_rows.to(tl.int64) * WIDTH + offset, mask=mask, other=0.0)"
            ".to(tl.float32)"
        ),
        "tl.load(data + split * split_rows",
        "tl.load(data + (SPLIT_K - 1 - split) * split_rows",
    ),
)
