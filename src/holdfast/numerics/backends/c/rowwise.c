/* What is done to each row by itself: norm, residual, rotary positions, activation, storing keys and values.
 *
 * Inside everything is fp32; the places where a value is rounded to the dtype are those of the reference
 * implementation (Hugging Face), except rope, which rounds once. Sums run over VL lanes and then one fixed tree. */
#include <omp.h>

#include "kernels.h"
#include "lanes.h"

#define PER_THREAD 16384 /* fewer elements than this do not repay waking the other threads */

#define BY_DTYPE(dt, call)            \
    do {                              \
        if ((dt) == F32) call(F32);   \
        else if ((dt) == BF16) call(BF16); \
        else call(F16);               \
    } while (0)

/* x * 1/sqrt(mean(x^2) + eps), rounded, times the weight, rounded. */
INLINE void norm_row(void *out, const void *x, const void *weight, int64_t D, float eps, const int dt) {
    vf sum = splat(0.0f);
    EACH_VECTOR(D, const vf v = load_upto(at(x, i, dt), n, dt); sum = fma_v(v, v, sum);)
    const vf factor = splat(1.0f / sqrtf(sum_lanes(sum) / (float)D + eps));
    EACH_VECTOR(D, {
        const vf unit = round_v(load_upto(at(x, i, dt), n, dt) * factor, dt);
        store_upto(at_mut(out, i, dt), unit * load_upto(at(weight, i, dt), n, dt), n, dt);
    })
}

/* x [rows, heads, D], rows `row_stride` elements apart; out contiguous. */
void run_rms_norm(void *out, const void *x, int64_t row_stride, const void *weight, int64_t rows, int64_t heads,
                  int64_t D, double eps, int64_t dt, int64_t threads) {
#pragma omp parallel for num_threads((int)threads) schedule(static) if (rows * heads * D > PER_THREAD)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++) {
#define CALL(d_) norm_row(at_mut(out, (r * heads + h) * D, d_), at(x, r * row_stride + h * D, d_), weight, D, (float)eps, d_)
            BY_DTYPE(dt, CALL);
#undef CALL
        }
}

INLINE void add_row(void *residual, const void *delta, int64_t D, const int dt) {
    EACH_VECTOR(D, {
        const vf sum = load_upto(at(residual, i, dt), n, dt) + load_upto(at(delta, i, dt), n, dt);
        store_upto(at_mut(residual, i, dt), sum, n, dt);
    })
}

void run_add_rms_norm(void *out, void *residual, const void *delta, const void *weight, int64_t rows, int64_t D,
                      double eps, int64_t dt, int64_t threads) {
#pragma omp parallel for num_threads((int)threads) schedule(static) if (rows * D > PER_THREAD)
    for (int64_t r = 0; r < rows; r++) {
#define CALL(d_)                                                             \
    do {                                                                     \
        add_row(at_mut(residual, r * D, d_), at(delta, r * D, d_), D, d_);   \
        norm_row(at_mut(out, r * D, d_), at(residual, r * D, d_), weight, D, (float)eps, d_); \
    } while (0)
        BY_DTYPE(dt, CALL);
#undef CALL
    }
}

/* One head: the first half is turned against the second. */
INLINE void rope_head(void *x, const float *cos, const float *sin, int64_t half, const int dt) {
    EACH_VECTOR(half, {
        const vf a = load_upto(at(x, i, dt), n, dt), b = load_upto(at(x, half + i, dt), n, dt);
        const vf c = load_upto(cos + i, n, F32), s = load_upto(sin + i, n, F32);
        store_upto(at_mut(x, i, dt), fma_v(a, c, splat(0.0f) - b * s), n, dt);
        store_upto(at_mut(x, half + i, dt), fma_v(b, c, a * s), n, dt);
    })
}

void run_rope(void *q, int64_t q_stride, int64_t q_heads, void *k, int64_t k_stride, int64_t k_heads,
              const float *cos, const float *sin, int64_t rows, int64_t D, int64_t dt, int64_t threads) {
    const int64_t half = D / 2;
#pragma omp parallel for num_threads((int)threads) schedule(static) if (rows * (q_heads + k_heads) * D > PER_THREAD)
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

#define STRETCH 64

/* In stages over a short stretch: one long chain of operations for each vector would leave the pipes waiting. */
INLINE void silu_row(void *out, const void *gate_up, int64_t width, const int dt) {
    float kept[STRETCH];
    for (int64_t start = 0; start < width; start += STRETCH) {
        const int64_t count = min64(STRETCH, width - start);
        EACH_VECTOR(count, {
            const vf gate = load_upto(at(gate_up, start + i, dt), n, dt);
            store_v(kept + i, splat(1.0f) + exp_v(splat(0.0f) - gate), F32);
        })
        EACH_VECTOR(count, {
            const vf gate = load_upto(at(gate_up, start + i, dt), n, dt);
            store_v(kept + i, round_v(gate / load_v(kept + i, F32), dt), F32);
        })
        EACH_VECTOR(count, {
            const vf up = load_upto(at(gate_up, width + start + i, dt), n, dt);
            store_upto(at_mut(out, start + i, dt), load_v(kept + i, F32) * up, n, dt);
        })
    }
}

void run_silu_mul(void *out, const void *gate_up, int64_t rows, int64_t width, int64_t dt, int64_t threads) {
#pragma omp parallel for num_threads((int)threads) schedule(static) if (rows * width > PER_THREAD / 4)
    for (int64_t r = 0; r < rows; r++) {
#define CALL(d_) silu_row(at_mut(out, r * width, d_), at(gate_up, r * 2 * width, d_), width, d_)
        BY_DTYPE(dt, CALL);
#undef CALL
    }
}

/* k, v [rows, heads, D] into keys [pages, heads, D, page] and values [pages, heads, page, D]; slot -1 is skipped. */
void run_store(void *keys, void *values, const void *k, int64_t k_stride, const void *v, int64_t v_stride,
               const int64_t *slots, int64_t rows, int64_t heads, int64_t D, int64_t page, int64_t dt,
               int64_t threads) {
    const int64_t es = size_of((int)dt);
#pragma omp parallel for num_threads((int)threads) schedule(static) if (rows * heads * D > PER_THREAD)
    for (int64_t r = 0; r < rows; r++) {
        if (slots[r] < 0) continue;
        const int64_t number = slots[r] / page, offset = slots[r] % page;
        for (int64_t h = 0; h < heads; h++) {
            const int64_t base = (number * heads + h) * D * page;
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
