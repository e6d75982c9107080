/* Operations on single rows: norm, residual, rope, activation, soft cap, KV store.
 *
 * All arithmetic is fp32. Values are rounded to the dtype where the reference implementation
 * (Hugging Face) rounds, except in rope, which rounds once. Sums have the order of `Sum` (simd.h). */
#include "kernels.h"
#include "simd.h"

#define BY_DTYPE(dt, call)            \
    do {                              \
        if ((dt) == F32) call(F32);   \
        else if ((dt) == BF16) call(BF16); \
        else call(F16);               \
    } while (0)

/* x * 1/sqrt(mean(x^2) + eps), rounded, times the weight, rounded. */
INLINE void norm_row(void *out, const void *x, const void *weight, int64_t D, float eps, const int dt) {
    Sum sum = zero_sum();
    FOR_EACH_PART(D, const vf v = load_partial(at(x, i, dt), n, dt); sum.part[k] = fma_v(v, v, sum.part[k]);)
    const vf factor = splat(1.0f / __builtin_sqrtf(reduce_sum(sum) / (float)D + eps));
    FOR_EACH_VECTOR(D, {
        const vf unit = round_v(load_partial(at(x, i, dt), n, dt) * factor, dt);
        store_partial(at_mut(out, i, dt), unit * load_partial(at(weight, i, dt), n, dt), n, dt);
    })
}

/* The same with fp32 weights, rounded once. is_centered: the mean is subtracted first, as in a layer
 * norm without bias. out may be x. */
INLINE void norm_row_fp32(void *out, const void *x, const float *weight, int64_t D, float eps, const int is_centered, const int dt) {
    Sum total = zero_sum(), squares = zero_sum();
    vf mean = splat(0.0f);
    if (is_centered) {
        FOR_EACH_PART(D, total.part[k] = total.part[k] + load_partial(at(x, i, dt), n, dt);)
        mean = splat(reduce_sum(total) / (float)D);
    }
    FOR_EACH_PART(D, {
        vf v = load_partial(at(x, i, dt), n, dt) - mean;
        if (n < VL) v = first_lanes(v, n); /* the others are -mean */
        squares.part[k] = fma_v(v, v, squares.part[k]);
    })
    const vf inverse = splat(1.0f / __builtin_sqrtf(reduce_sum(squares) / (float)D + eps));
    FOR_EACH_VECTOR(D, {
        const vf v = (load_partial(at(x, i, dt), n, dt) - mean) * inverse;
        store_partial(at_mut(out, i, dt), v * load_partial(weight + i, n, F32), n, dt);
    })
}

/* By the dtype of the weights: wdt is dt or F32. */
INLINE void norm_any_row(void *out, const void *x, const void *weight, int64_t D, float eps, const int dt, int64_t wdt, int64_t is_centered) {
    if (is_centered) norm_row_fp32(out, x, weight, D, eps, 1, dt);
    else if (wdt != dt) norm_row_fp32(out, x, weight, D, eps, 0, dt);
    else norm_row(out, x, weight, D, eps, dt);
}

/* x [rows, heads, D], rows `row_stride` elements apart; out contiguous. */
void team_rms_norm(void *out, const void *x, int64_t row_stride, const void *weight, int64_t rows, int64_t heads,
                   int64_t D, double eps, int64_t dt, int64_t wdt, int64_t is_centered) {
#pragma omp for schedule(static) nowait
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++) {
#define CALL(d_) norm_any_row(at_mut(out, (r * heads + h) * D, d_), at(x, r * row_stride + h * D, d_), weight, D, (float)eps, d_, wdt, is_centered)
            BY_DTYPE(dt, CALL);
#undef CALL
        }
}

void run_rms_norm(void *out, const void *x, int64_t row_stride, const void *weight, int64_t rows, int64_t heads,
                  int64_t D, double eps, int64_t dt, int64_t wdt, int64_t is_centered, int64_t threads) {
    TEAM(threads, rows * heads * D > MIN_PARALLEL, team_rms_norm(out, x, row_stride, weight, rows, heads, D, eps, dt, wdt, is_centered));
}

INLINE void add_row(void *residual, const void *delta, int64_t D, const int dt) {
    FOR_EACH_VECTOR(D, {
        const vf sum = load_partial(at(residual, i, dt), n, dt) + load_partial(at(delta, i, dt), n, dt);
        store_partial(at_mut(residual, i, dt), sum, n, dt);
    })
}

/* residual += scale * delta, the product rounded. */
INLINE void add_scaled_row(void *residual, const void *delta, int64_t D, float scale, const int dt) {
    FOR_EACH_VECTOR(D, {
        const vf scaled = round_v(load_partial(at(delta, i, dt), n, dt) * splat(scale), dt);
        store_partial(at_mut(residual, i, dt), load_partial(at(residual, i, dt), n, dt) + scaled, n, dt);
    })
}

/* residual += scale * norm(delta); out = norm(residual). Without its weight a norm is the identity. */
INLINE void add_norm_row(void *out, void *residual, const void *delta, const AddNorm *a, const int dt) {
    if (a->delta_norm) {
        norm_any_row(out, delta, a->delta_norm, a->D, (float)a->eps, dt, a->wdt, a->is_centered);
        delta = out;
    }
    if (a->scale == 1.0) add_row(residual, delta, a->D, dt);
    else add_scaled_row(residual, delta, a->D, (float)a->scale, dt);
    if (a->weight) norm_any_row(out, residual, a->weight, a->D, (float)a->eps, dt, a->wdt, a->is_centered);
    else memcpy(out, residual, (size_t)(a->D * size_of(dt)));
}

void team_add_rms_norm(const AddNorm *a) {
    const int64_t D = a->D;
#pragma omp for schedule(static) nowait
    for (int64_t r = 0; r < a->rows; r++) {
#define CALL(d_) add_norm_row(at_mut(a->out, r * D, d_), at_mut(a->residual, r * D, d_), at(a->delta, r * D, d_), a, d_)
        BY_DTYPE(a->dt, CALL);
#undef CALL
    }
}

void run_add_rms_norm(const AddNorm *a) { TEAM(a->threads, a->rows * a->D > MIN_PARALLEL, team_add_rms_norm(a)); }

/* One head, rotate-half. */
INLINE void rope_head(void *x, const float *cos, const float *sin, int64_t half, const int dt) {
    FOR_EACH_VECTOR(half, {
        const vf a = load_partial(at(x, i, dt), n, dt), b = load_partial(at(x, half + i, dt), n, dt);
        const vf c = load_partial(cos + i, n, F32), s = load_partial(sin + i, n, F32);
        store_partial(at_mut(x, i, dt), fma_v(a, c, splat(0.0f) - b * s), n, dt);
        store_partial(at_mut(x, half + i, dt), fma_v(b, c, a * s), n, dt);
    })
}

void team_rope(void *q, int64_t q_stride, int64_t q_heads, void *k, int64_t k_stride, int64_t k_heads, const float *cos,
               const float *sin, int64_t rows, int64_t D, int64_t dt) {
    const int64_t half = D / 2;
#pragma omp for schedule(static) nowait
    for (int64_t r = 0; r < rows; r++) {
        const float *c = cos + r * half, *s = sin + r * half;
#define Q(d_) rope_head(at_mut(q, r * q_stride + h * D, d_), c, s, half, d_)
#define K(d_) rope_head(at_mut(k, r * k_stride + h * D, d_), c, s, half, d_)
        for (int64_t h = 0; h < q_heads; h++) BY_DTYPE(dt, Q);
        for (int64_t h = 0; h < k_heads; h++) BY_DTYPE(dt, K);
#undef Q
#undef K
    }
}

void run_rope(void *q, int64_t q_stride, int64_t q_heads, void *k, int64_t k_stride, int64_t k_heads,
              const float *cos, const float *sin, int64_t rows, int64_t D, int64_t dt, int64_t threads) {
    TEAM(threads, rows * (q_heads + k_heads) * D > MIN_PARALLEL, team_rope(q, q_stride, q_heads, k, k_stride, k_heads, cos, sin, rows, D, dt));
}

#define STAGE_LEN 64

/* stage = 1 + e^stage; elements up to the next multiple of SUM_LANES may change. */
INLINE void add_exp(float stage[STAGE_LEN], int64_t count) {
    for (int64_t base = 0; base < count; base += SUM_LANES) {
        vf e[SUM_PARTS];
        UNROLL for (int k = 0; k < SUM_PARTS; k++) e[k] = load_v(stage + base + k * VL, F32);
        exp_all(e, SUM_PARTS);
        UNROLL for (int k = 0; k < SUM_PARTS; k++) store_v(stage + base + k * VL, splat(1.0f) + e[k], F32);
    }
}

/* rounded(gate * sigmoid(z)) * up. z is gate for SiLU. For GELU in its tanh form it is
 * 2 sqrt(2 / pi) (gate + 0.044715 gate^3), because (1 + tanh(u)) / 2 = sigmoid(2 u).
 *
 * Elements first .. end-1 of a row, in stages of STAGE_LEN: one long dependency chain per vector would
 * stall the pipelines. */
INLINE void activate_row(void *out, const void *gate_up, int64_t width, int64_t first, int64_t end, const int is_gelu, const int dt) {
    float stage[STAGE_LEN] = {0.0f};
    for (int64_t start = first; start < end; start += STAGE_LEN) {
        const int64_t count = min64(STAGE_LEN, end - start);
        FOR_EACH_VECTOR(count, {
            vf gate = load_partial(at(gate_up, start + i, dt), n, dt);
            if (is_gelu) gate = gate * fma_v(gate * gate, splat(0.0713548163f), splat(1.5957691216f));
            store_v(stage + i, splat(0.0f) - gate, F32);
        })
        add_exp(stage, count);
        FOR_EACH_VECTOR(count, {
            const vf gate = load_partial(at(gate_up, start + i, dt), n, dt);
            store_v(stage + i, round_v(gate / load_v(stage + i, F32), dt), F32);
        })
        FOR_EACH_VECTOR(count, {
            const vf up = load_partial(at(gate_up, width + start + i, dt), n, dt);
            store_partial(at_mut(out, start + i, dt), load_v(stage + i, F32) * up, n, dt);
        })
    }
}

void team_activation_mul(void *out, const void *gate_up, int64_t rows, int64_t width, int64_t is_gelu, int64_t dt) {
    const int64_t parts = ceil_to(width, PART_LEN) / PART_LEN;
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < rows * parts; i++) {
        const int64_t r = i / parts, first = i % parts * PART_LEN, end = min64(width, first + PART_LEN);
#define SILU(d_) activate_row(at_mut(out, r * width, d_), at(gate_up, r * 2 * width, d_), width, first, end, 0, d_)
#define GELU(d_) activate_row(at_mut(out, r * width, d_), at(gate_up, r * 2 * width, d_), width, first, end, 1, d_)
        if (is_gelu) BY_DTYPE(dt, GELU);
        else BY_DTYPE(dt, SILU);
#undef SILU
#undef GELU
    }
}

void run_activation_mul(void *out, const void *gate_up, int64_t rows, int64_t width, int64_t is_gelu, int64_t dt, int64_t threads) {
    TEAM(threads, rows * width > MIN_PARALLEL / 4, team_activation_mul(out, gate_up, rows, width, is_gelu, dt));
}

/* x squared where x is positive, else 0; a NaN stays one. */
INLINE void square_positive(void *out, const void *x, int64_t count, const int dt) {
    FOR_EACH_VECTOR(count, {
        const vf value = load_partial(at(x, i, dt), n, dt);
        const vf positive = select_v((vi)(value < splat(0.0f)), splat(0.0f), value);
        store_partial(at_mut(out, i, dt), positive * positive, n, dt);
    })
}

void team_positive_squares(void *out, const void *x, int64_t rows, int64_t width, int64_t dt) {
    const int64_t total = rows * width;
#pragma omp for schedule(static) nowait
    for (int64_t first = 0; first < total; first += PART_LEN) {
#define CALL(d_) square_positive(at_mut(out, first, d_), at(x, first, d_), min64(PART_LEN, total - first), d_)
        BY_DTYPE(dt, CALL);
#undef CALL
    }
}

/* A NaN is neither above nor below a limit. */
INLINE vf limit_v(vf x, float low, float high) {
    x = select_v((vi)(x > splat(high)), splat(high), x);
    return select_v((vi)(x < splat(low)), splat(low), x);
}

/* gate * sigmoid(alpha * gate) * (up + 1) of limited gate and up, rounded once. */
INLINE void swiglu_row(void *out, const void *gate_up, int64_t width, float alpha, float limit, const int dt) {
    float stage[STAGE_LEN] = {0.0f};
    for (int64_t start = 0; start < width; start += STAGE_LEN) {
        const int64_t count = min64(STAGE_LEN, width - start);
        FOR_EACH_VECTOR(count, {
            const vf gate = limit_v(load_partial(at(gate_up, start + i, dt), n, dt), -INFINITY, limit);
            store_v(stage + i, gate * splat(-alpha), F32);
        })
        add_exp(stage, count);
        FOR_EACH_VECTOR(count, {
            const vf gate = limit_v(load_partial(at(gate_up, start + i, dt), n, dt), -INFINITY, limit);
            const vf up = limit_v(load_partial(at(gate_up, width + start + i, dt), n, dt), -limit, limit);
            const vf activated = gate / load_v(stage + i, F32);
            store_partial(at_mut(out, start + i, dt), activated * (up + splat(1.0f)), n, dt);
        })
    }
}

void run_swiglu_mul(void *out, const void *gate_up, int64_t rows, int64_t width, double alpha, double limit, int64_t dt,
                    int64_t threads) {
#pragma omp parallel num_threads((int)threads) if (rows * width > MIN_PARALLEL / 4)
    {
        DEFAULT_FP;
#pragma omp for schedule(static) nowait
        for (int64_t r = 0; r < rows; r++) {
#define CALL(d_) swiglu_row(at_mut(out, r * width, d_), at(gate_up, r * 2 * width, d_), width, (float)alpha, (float)limit, d_)
            BY_DTYPE(dt, CALL);
#undef CALL
        }
    }
}

/* x = cap * tanh(x / cap), in place. */
void run_soft_cap(float *x, int64_t count, double cap, int64_t threads) {
#pragma omp parallel num_threads((int)threads) if (count > MIN_PARALLEL)
    {
        DEFAULT_FP;
#pragma omp for schedule(static) nowait
        for (int64_t start = 0; start < count; start += 4096) {
            float *part = x + start;
            const int64_t end = min64(4096, count - start);
            FOR_EACH_VECTOR(end, store_partial(part + i, soft_cap_v(load_partial(part + i, n, F32), (float)cap), n, F32);)
        }
    }
}

/* x = e^x, in place. */
void run_exp(float *x, int64_t count, int64_t threads) {
#pragma omp parallel num_threads((int)threads) if (count > MIN_PARALLEL)
    {
        DEFAULT_FP;
#pragma omp for schedule(static) nowait
        for (int64_t start = 0; start < count; start += 4096) {
            float *part = x + start;
            const int64_t end = min64(4096, count - start);
            FOR_EACH_VECTOR(end, store_partial(part + i, exp_v(load_partial(part + i, n, F32)), n, F32);)
        }
    }
}

/* k, v [rows, heads, D] into keys [pages, heads, D, page] and values [pages, heads, page, D];
 * slot -1 is skipped. */
void team_store_kv(void *keys, void *values, const void *k, int64_t k_stride, const void *v, int64_t v_stride,
                   const int64_t *slots, int64_t rows, int64_t heads, int64_t D, int64_t page, int64_t dt) {
    const int64_t es = size_of((int)dt);
#pragma omp for schedule(static) nowait
    for (int64_t r = 0; r < rows; r++) {
        if (slots[r] < 0) continue;
        const int64_t page_index = slots[r] / page, offset = slots[r] % page;
        for (int64_t h = 0; h < heads; h++) {
            const int64_t base = (page_index * heads + h) * D * page;
            const char *key = (const char *)k + (r * k_stride + h * D) * es;
            const char *value = (const char *)v + (r * v_stride + h * D) * es;
            memcpy((char *)values + (base + offset * D) * es, value, (size_t)(D * es));
            if (es == 4)
                for (int64_t d = 0; d < D; d++) ((uint32_t *)keys)[base + d * page + offset] = ((const uint32_t *)key)[d];
            else
                for (int64_t d = 0; d < D; d++) ((uint16_t *)keys)[base + d * page + offset] = ((const uint16_t *)key)[d];
        }
    }
}

void run_store_kv(void *keys, void *values, const void *k, int64_t k_stride, const void *v, int64_t v_stride,
                  const int64_t *slots, int64_t rows, int64_t heads, int64_t D, int64_t page, int64_t dt, int64_t threads) {
    TEAM(threads, rows * heads * D > MIN_PARALLEL, team_store_kv(keys, values, k, k_stride, v, v_stride, slots, rows, heads, D, page, dt));
}
