"""Order changes in the sources of the C kernels."""

from certification.planted.mutants import Mutation, in_source

_gemm = in_source("linear.c", "linear")
_attention = in_source("attention.c", "attention")
_norm = in_source("rowwise.c", "rms_norm", "add_rms_norm")
_rope = in_source("rowwise.c", "rope")
_silu = in_source("rowwise.c", "silu_mul")
_logsumexp = in_source("sampling.c", "logsumexp")
_sample = in_source("sampling.c", "sample")

_K_LOOP = "    for (; k < K; k += 4) {\n#if VL == 4\n        vf xv[MR];"
_K_END = "    float sums[MR * 8 * VL];"
_EACH_SUM = "UNROLL for (int r = 0; r < rows; r++) UNROLL for (int c = 0; c < 2 * panels; c++)"


def _in_blocks(name: str, boundary: str) -> Mutation:
    """The running sums are set aside wherever the condition on k holds, and added in order."""
    set_aside = "aside[r][c] = aside[r][c] + acc[r][c], acc[r][c] = splat(0.0f);"
    loop = _K_LOOP.replace("{\n", f"{{\n        if ({boundary}) {_EACH_SUM} {set_aside}\n", 1)
    return _gemm(
        name,
        _K_LOOP,
        f"    vf aside[MR][8];\n    {_EACH_SUM} aside[r][c] = splat(0.0f);\n{loop}",
        _K_END,
        f"    {_EACH_SUM} acc[r][c] = aside[r][c] + acc[r][c];\n{_K_END}",
    )


_LINEAR = (
    _in_blocks("K in two halves", "k == K / 8 * 4"),
    _in_blocks("blocks of 16 in sequence", "k % 16 == 0"),
    _in_blocks("blocks of 128 in sequence", "k % 128 == 0"),
    _in_blocks("K in two halves, wide tiles only", "panels > 1 && k == K / 8 * 4"),
    _in_blocks(
        "K in two halves, last panel of N only", "column + 2 * panels * VL >= out->N && k == K / 8 * 4"
    ),
    _in_blocks("K in two halves, tiles of five rows only", "rows == 5 && k == K / 8 * 4"),
    _gemm(
        "K backwards in steps of four",
        "const int is_ahead = VL == 4 && panels == 1;",
        "const int is_ahead = 0;",
        _K_LOOP,
        _K_LOOP.replace("; k < K; k += 4", "k = K - 4; k >= 0; k -= 4"),
    ),
    _gemm(
        "bias added first",
        "acc[r][c] = splat(0.0f);\n    vf now",
        (
            "acc[r][c] = out->bias && out->N > column + c * VL\n"
            "            ? load_partial(out->bias + column + c * VL, out->N - column - c * VL, F32) : splat(0.0f);\n"
            "    vf now"
        ),
        "if (out->bias) v = v + load_partial(out->bias + column + c, n, F32);",
        "",
    ),
)

_SCORES = (
    "    for (int64_t d = 0; d < D; d += 4) {\n        prefetch(&ahead);\n#if VL == 4\n        vf qv[4];"
)
_SCORES_END = (
    "    UNROLL for (int i = 0; i < n; i++)\n"
    "        UNROLL for (int v = 0; v < vectors; v++) store_v(s + i * BLOCK + v * VL, acc[i][v], F32);"
)
_EACH_SCORE = "UNROLL for (int i = 0; i < n; i++) UNROLL for (int v = 0; v < vectors; v++)"
_OUTPUT = "load_v(o + i * MAX_DIM + d + v * VL, F32)"

_ATTENTIONS = (
    _attention("KV blocks of 32", "#define BLOCK 64", "#define BLOCK 32"),
    _attention("KV blocks of 128", "#define BLOCK 64", "#define BLOCK 128"),
    _attention(
        "KV blocks in reverse",
        "for (int64_t start = begin; start < end; start += BLOCK) {\n        Block b = next;",
        (
            "for (int64_t start = (end - 1) / BLOCK * BLOCK; start >= begin; start -= BLOCK) {\n"
            "        Block b = locate_block(a, t, start, end);"
        ),
    ),
    _attention(
        "KV blocks from the window's first page",
        "begin = first_block(a, a->positions[t->row]);",
        "begin = w->first[0] / a->page * a->page;",
    ),
    _attention(
        "QK dot in two halves",
        _SCORES,
        f"    vf aside[4][4];\n    {_EACH_SCORE} aside[i][v] = splat(0.0f);\n"
        + _SCORES.replace(
            "{\n",
            f"{{\n        if (d == D / 8 * 4) {_EACH_SCORE} aside[i][v] = acc[i][v], acc[i][v] = splat(0.0f);\n",
            1,
        ),
        _SCORES_END,
        f"    {_EACH_SCORE} acc[i][v] = aside[i][v] + acc[i][v];\n{_SCORES_END}",
    ),
    _attention(
        "PV sum in reverse",
        "for (; j + 4 <= j1; j += 4) {",
        "for (; 0;) {",
        "for (; j < j1; j++) {",
        "for (j = j1 - 1; j >= j0; j--) {",
    ),
    _attention(
        "PV sum of a block apart",
        f"acc[i][v] = {_OUTPUT};",
        "acc[i][v] = splat(0.0f);",
        "store_v(o + i * MAX_DIM + d + v * VL, acc[i][v], F32);",
        f"store_v(o + i * MAX_DIM + d + v * VL, {_OUTPUT} + acc[i][v], F32);",
    ),
    _attention(
        "softmax sum in reverse",
        "for (int64_t j = from; j < to; j += SUM_LANES) {\n        vf p",
        "for (int64_t j = to - SUM_LANES; j >= from; j -= SUM_LANES) {\n        vf p",
    ),
    _attention(
        "softmax sum rescaled without fma",
        "__builtin_fmaf(w->l[i], rescale[0], reduce_sum(sum))",
        "w->l[i] * rescale[0] + reduce_sum(sum)",
    ),
    _attention("output times the inverse of the sum", "/ splat(w->l[i]);", "* splat(1.0f / w->l[i]);"),
)

_SQUARES = "FOR_EACH_PART(D, const vf v = load_partial(at(x, i, dt), n, dt); sum.part[k] = fma_v(v, v, sum.part[k]);)"
_EACH_PART = "UNROLL for (int k = 0; k < SUM_PARTS; k++)"
_ROWWISE = (
    _norm(
        "squares in two accumulators",
        _SQUARES,
        "Sum odd = sum; "
        + _SQUARES.replace(
            "sum.part[k] = fma_v(v, v, sum.part[k]);",
            "Sum *at_i = i / SUM_LANES % 2 ? &odd : &sum; at_i->part[k] = fma_v(v, v, at_i->part[k]);",
        )
        + f" {_EACH_PART} sum.part[k] = sum.part[k] + odd.part[k];",
    ),
    _norm(
        "squares in blocks of 64",
        _SQUARES,
        "Sum aside = sum; "
        + _SQUARES.replace(
            "sum.part[k] = fma",
            "if (base % 64 == 0) aside.part[k] = aside.part[k] + sum.part[k], sum.part[k] = splat(0.0f); "
            "sum.part[k] = fma",
        )
        + f" {_EACH_PART} sum.part[k] = aside.part[k] + sum.part[k];",
    ),
    _norm(
        "squares rounded, no fma",
        _SQUARES,
        _SQUARES.replace("fma_v(v, v, sum.part[k])", "sum.part[k] + v * v"),
    ),
    _norm("mean as sum * (1 / n)", "reduce_sum(sum) / (float)D", "reduce_sum(sum) * (1.0f / (float)D)"),
    _norm(
        "inverse root in fp64",
        "1.0f / __builtin_sqrtf(reduce_sum(sum) / (float)D + eps)",
        "(float)(1.0 / __builtin_sqrt((double)(reduce_sum(sum) / (float)D + eps)))",
    ),
    _norm(
        "weight applied before rounding",
        "const vf unit = round_v(load_partial(at(x, i, dt), n, dt) * factor, dt);",
        "const vf unit = load_partial(at(x, i, dt), n, dt) * factor;",
    ),
    _rope(
        "no fma", "fma_v(a, c, splat(0.0f) - b * s)", "a * c - b * s", "fma_v(b, c, a * s)", "b * c + a * s"
    ),
    _rope(
        "the other product fused",
        "fma_v(a, c, splat(0.0f) - b * s)",
        "fma_v(splat(0.0f) - b, s, a * c)",
        "fma_v(b, c, a * s)",
        "fma_v(a, s, b * c)",
    ),
    _silu(
        "gate * (1 / (1 + e))",
        "round_v(gate / load_v(stage + i, F32), dt)",
        "round_v(gate * (splat(1.0f) / load_v(stage + i, F32)), dt)",
    ),
    _silu(
        "silu rounded after the product",
        "round_v(gate / load_v(stage + i, F32), dt)",
        "gate / load_v(stage + i, F32)",
    ),
    _silu("stages of 32", "#define STAGE_LEN 64", "#define STAGE_LEN 32"),
)

_SAMPLING = (
    _logsumexp("blocks of 1024", "#define SUM_LEN 4096", "#define SUM_LEN 1024"),
    _logsumexp(
        "blocks added in fp32",
        "    double sum = 0.0;\n    for (int64_t i",
        "    float sum = 0.0f;\n    for (int64_t i",
    ),
    _logsumexp(
        "two accumulators",
        f"        {_EACH_PART} sum.part[k] = sum.part[k] + e[k];\n    }}\n",
        (
            "        Sum *half = base / SUM_LANES % 2 ? &odd : &sum;\n"
            f"        {_EACH_PART} half->part[k] = half->part[k] + e[k];\n    }}\n"
            f"    {_EACH_PART} sum.part[k] = sum.part[k] + odd.part[k];\n"
        ),
        "    Sum sum = zero_sum();\n    int64_t base",
        "    Sum sum = zero_sum(), odd = zero_sum();\n    int64_t base",
    ),
    _sample(
        "noise from log(1 - w) uncorrected",
        "(splat(0.0f) - log_v(y)) * (w / divisor)",
        "(splat(0.0f) - log_v(y))",
    ),
    _sample(
        "noise correction applied first",
        "(splat(0.0f) - log_v(y)) * (w / divisor)",
        "(splat(0.0f) - log_v(y)) * w / divisor",
    ),
    _sample(
        "top-p mass in fp32",
        "double mass[RADIX] = {0};",
        "float mass[RADIX] = {0};",
        "double total_mass = 0.0;",
        "float total_mass = 0.0f;",
    ),
    _sample(
        "logits times 1 / temperature",
        "const vf divisor = splat(temperature);",
        "const vf divisor = splat(1.0f / temperature);",
        "load_partial(logits + i, n, F32) / divisor",
        "load_partial(logits + i, n, F32) * divisor",
    ),
)

_HEADER = (
    in_source("simd.h", "silu_mul", "attention", "logsumexp")(
        "exp with another last step",
        "p[i] = fma_v(p[i], r[i] * r[i], r[i]);",
        "p[i] = p[i] * (r[i] * r[i]) + r[i];",
    ),
    in_source("simd.h", "rms_norm", "add_rms_norm", "attention", "logsumexp")(
        "lanes added from the first to the last",
        "INLINE float reduce_sum(const Sum sum) {\n",
        (
            "INLINE float reduce_sum(const Sum sum) {\n"
            "    float each[SUM_LANES];\n    memcpy(each, &sum, sizeof each);\n"
            "    for (int i = 1; i < SUM_LANES; i++) each[0] += each[i];\n    if (1) return each[0];\n"
        ),
    ),
    in_source("simd.h", "linear", "attention")(
        "products rounded, no fma",
        "acc = vfmaq_laneq_f32(acc, w, name, lane)",
        "acc = acc + vmulq_laneq_f32(w, name, lane)",
        "acc = fma_v(w, splat((p)[lane]), acc)",
        "acc = acc + w * splat((p)[lane])",
    ),
)

C_MUTATIONS = (*_LINEAR, *_ATTENTIONS, *_ROWWISE, *_SAMPLING, *_HEADER)
