/* Recurrent layers: the gated delta rule, state spaces (Mamba 2), gated short convolutions, and the gated norm.
 *
 * A recurrence runs token by token in fp32, in every pass, so its bits do not depend on how a sequence is cut. A lane is a
 * column of the state: columns do not see each other, and each sums over the state's rows in their order.
 *
 *   1. The inputs of all tokens, replayed ones and new ones: convolution, SiLU, length, decay. By all threads, (token, piece).
 *   2. The recurrence of a block of columns, from the checkpoint to the last token. By all threads, (span, head, block).
 *
 * The log is read in the first part only, and written after it. */
#include "kernels.h"
#include "simd.h"

#define COLUMN_VECTORS (VL == 4 ? 4 : 2) /* whose sums stay in registers */
#define COLUMNS (COLUMN_VECTORS * VL)
#define BLOCK 32 /* columns of a head's state whose rows follow each other in memory */
#define L2_EPS 1e-6f

#define BY_DTYPE(dt, call)            \
    do {                              \
        if ((dt) == F32) call(F32);   \
        else if ((dt) == BF16) call(BF16); \
        else call(F16);               \
    } while (0)

/* ---- the tokens of a pass ---- */

/* Scratch memory of a pass: its tokens by number. Those of a span follow each other, from its checkpoint. */
RecurrentTokens recurrent_tokens(const int32_t *words, int64_t num_spans) {
    static __thread void *buffer;
    static __thread size_t capacity;
    const RecurrentSpan *spans = (const RecurrentSpan *)words;
    int64_t count = 0;
    for (int64_t s = 0; s < num_spans; s++)
        if (spans[s].slot >= 0) count += spans[s].start - spans[s].checkpoint + spans[s].end_row - spans[s].first_row;
    int32_t *const span_of = scratch(&buffer, &capacity, (size_t)(count + num_spans) * sizeof(int32_t));
    int32_t *const firsts = span_of + count;
    int64_t at = 0;
    for (int64_t s = 0; s < num_spans; s++) {
        const RecurrentSpan *one = &spans[s];
        firsts[s] = (int32_t)at;
        if (one->slot < 0) continue;
        for (int32_t p = one->checkpoint; p < one->start + one->end_row - one->first_row; p++) span_of[at++] = (int32_t)s;
    }
    return (RecurrentTokens){spans, span_of, firsts, num_spans, count};
}

INLINE int64_t stop_of(const RecurrentSpan *span) { return span->start + span->end_row - span->first_row; }

INLINE int64_t position_of(const RecurrentTokens *t, int64_t token) {
    const int64_t s = t->span_of[token];
    return t->spans[s].checkpoint + token - t->firsts[s];
}

/* The inputs of a position: in the log, or a row of the pass. NULL before position 0: zeros. */
INLINE const char *inputs_at(const Recurrent *a, const RecurrentSpan *span, int64_t position) {
    const int64_t es = size_of((int)a->dt);
    if (position < 0) return NULL;
    if (position < span->start) return (const char *)a->log + (span->slot * a->log_len + position % a->log_len) * a->log_width * es;
    return (const char *)a->x + (span->first_row + position - span->start) * a->stride * es;
}

static void team_zero_rows(const Recurrent *a) {
    const int64_t row = a->out_width * size_of((int)a->dt);
#pragma omp for schedule(static) nowait
    for (int64_t r = 0; r < a->rows; r++) memset((char *)a->out + r * row, 0, (size_t)row);
}

/* ---- the inputs of the recurrence ---- */

#define MAX_KERNEL 16
typedef struct {
    const char *taps[MAX_KERNEL]; /* the inputs that the convolution of a token reads, the oldest first; NULL: zeros */
} Window;

INLINE Window window_at(const Recurrent *a, const RecurrentSpan *span, int64_t position) {
    Window w;
    for (int64_t j = 0; j < a->kernel; j++) w.taps[j] = inputs_at(a, span, position - a->kernel + 1 + j);
    return w;
}

INLINE vf silu_v(vf x) { return x / (splat(1.0f) + exp_v(splat(0.0f) - x)); }

/* log(1 + e^x), by max(x, 0) + log1p(e^-|x|). log1p(e) is log(u) e / (u - 1) with u = 1 + e, which corrects u's rounding. */
INLINE vf softplus_v(vf x) {
    const vf e = exp_v((vf)((vi)x | (vi)splat(-0.0f))), u = splat(1.0f) + e, rest = u - splat(1.0f);
    const vi is_small = (vi)(rest == splat(0.0f));
    const vf corrected = log_v(u) * (e / select_v(is_small, splat(1.0f), rest));
    return max_v(x, splat(0.0f)) + select_v(is_small, e, corrected);
}

/* Columns first .. first + count - 1 of a token after the convolution and SiLU. */
INLINE void convolve(float *out, const Recurrent *a, const Window *w, int64_t first, int64_t count, const int dt) {
    FOR_EACH_VECTOR(count, {
        vf sum = a->conv_bias ? load_partial(a->conv_bias + first + i, n, F32) : splat(0.0f);
        for (int64_t j = 0; j < a->kernel; j++)
            if (w->taps[j]) sum = fma_v(load_partial(a->conv + j * a->conv_width + first + i, n, F32), load_partial(at(w->taps[j], first + i, dt), n, dt), sum);
        store_partial(out + i, silu_v(sum), n, F32);
    })
}

/* x = x * scale / sqrt(sum of x^2 + eps). */
INLINE void scale_to_length(float *x, int64_t count, float scale) {
    Sum sum = zero_sum();
    FOR_EACH_PART(count, const vf v = load_partial(x + i, n, F32); sum.part[k] = fma_v(v, v, sum.part[k]);)
    const vf factor = splat(scale / __builtin_sqrtf(reduce_sum(sum) + L2_EPS));
    FOR_EACH_VECTOR(count, store_partial(x + i, load_partial(x + i, n, F32) * factor, n, F32);)
}

/* decays[h], by which the state is multiplied, and factors[h]: beta of the delta rule, dt of a state space. */
INLINE void scalars_of(float *decays, float *factors, const Recurrent *a, const char *inputs, const int dt) {
    const int64_t H = a->heads;
    FOR_EACH_VECTOR(H, {
        const vf first = load_partial(at(inputs, a->conv_width + i, dt), n, dt);
        vf step = softplus_v(first + load_partial(a->dt_bias + i, n, F32)), factor;
        if (a->is_delta) {
            const vf b = load_partial(at(inputs, a->conv_width + H + i, dt), n, dt);
            factor = splat((float)a->beta_scale) / (splat(1.0f) + exp_v(splat(0.0f) - b));
        } else {
            step = select_v((vi)(step < splat((float)a->dt_min)), splat((float)a->dt_min), step);
            step = select_v((vi)(step > splat((float)a->dt_max)), splat((float)a->dt_max), step);
            factor = step;
        }
        store_partial(decays + i, exp_v(step * load_partial(a->decay + i, n, F32)), n, F32);
        store_partial(factors + i, factor, n, F32);
    })
}

/* Where the parts of a prepared token are. Its columns are those of the convolution, then decays and factors. */
INLINE int64_t keys_at(const Recurrent *a) { return a->is_delta ? a->groups * a->state_rows : a->out_width; }
INLINE int64_t queries_at(const Recurrent *a) { return a->is_delta ? 0 : a->out_width + a->groups * a->state_rows; }
INLINE int64_t values_at(const Recurrent *a) { return a->is_delta ? 2 * a->groups * a->state_rows : 0; }
INLINE int64_t prepared_width(const Recurrent *a) { return ceil_to(a->conv_width + 2 * a->heads, 16); }

INLINE void prepare_piece(float *row, const Recurrent *a, const Window *w, int64_t piece, const int dt) {
    const int64_t num_keys = 2 * a->groups, Dk = a->state_rows;
    if (piece < num_keys) { /* q of each group, then k; b and c of a state space */
        const int64_t first = piece * Dk + (a->is_delta ? 0 : a->out_width);
        convolve(row + first, a, w, first, Dk, dt);
        if (a->is_delta) scale_to_length(row + first, Dk, piece < a->groups ? 1.0f / __builtin_sqrtf((float)Dk) : 1.0f);
        return;
    }
    if (piece == num_keys) scalars_of(row + a->conv_width, row + a->conv_width + a->heads, a, w->taps[a->kernel - 1], dt);
    const int64_t first = (piece - num_keys) * PART_LEN;
    convolve(row + values_at(a) + first, a, w, values_at(a) + first, min64(PART_LEN, a->out_width - first), dt);
}

static void team_prepare(const Recurrent *a, const RecurrentTokens *t) {
    const int64_t pieces = 2 * a->groups + ceil_to(a->out_width, PART_LEN) / PART_LEN, width = prepared_width(a);
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < t->count * pieces; i++) {
        const int64_t token = i / pieces;
        const Window w = window_at(a, &t->spans[t->span_of[token]], position_of(t, token));
#define CALL(d_) prepare_piece(a->prepared + token * width, a, &w, i % pieces, d_)
        BY_DTYPE(a->dt, CALL);
#undef CALL
    }
}

/* ---- the recurrence ---- */

#define EACH_COLUMN UNROLL for (int c = 0; c < COLUMN_VECTORS; c++)

/* The state of a head is in blocks of columns, one after the other: [state_rows, BLOCK], the last one narrower. A pass works on
 * a whole block in place if it stores the state of the last token, else on a copy of full width. */
static void copy_block(float *copy, const float *state, int64_t width, int64_t rows) {
    for (int64_t i = 0; i < rows; i++) {
        memset(copy + i * BLOCK, 0, BLOCK * sizeof(float));
        memcpy(copy + i * BLOCK, state + i * width, (size_t)width * sizeof(float));
    }
}

static void copy_columns(float *state, int64_t width, const float *copy, int64_t count, int64_t rows) {
    for (int64_t i = 0; i < rows; i++) memcpy(state + i * width, copy + i * BLOCK, (size_t)count * sizeof(float));
}

/* seen = S^T k */
INLINE void look(vf *seen, const float *s, const float *k, int64_t rows) {
    EACH_COLUMN seen[c] = splat(0.0f);
    for (int64_t i = 0; i < rows; i++) EACH_COLUMN seen[c] = fma_v(splat(k[i]), load_v(s + i * BLOCK + c * VL, F32), seen[c]);
}

/* S = decay S + k added^T; result = S^T q; seen = S^T next_k, of the token after it. */
INLINE void step(float *s, vf *result, vf *seen, const vf *added, float decay, const float *k, const float *q, const float *next_k, int64_t rows) {
    const vf factor = splat(decay);
    vf sum[COLUMN_VECTORS], next[COLUMN_VECTORS];
    EACH_COLUMN sum[c] = next[c] = splat(0.0f);
    for (int64_t i = 0; i < rows; i++) {
        const vf ki = splat(k[i]), qi = splat(q[i]), ni = splat(next_k ? next_k[i] : 0.0f);
        EACH_COLUMN {
            const vf v = fma_v(ki, added[c], load_v(s + i * BLOCK + c * VL, F32) * factor);
            store_v(s + i * BLOCK + c * VL, v, F32);
            sum[c] = fma_v(qi, v, sum[c]);
            if (next_k) next[c] = fma_v(ni, v, next[c]);
        }
    }
    EACH_COLUMN result[c] = sum[c], seen[c] = next[c];
}

typedef struct {
    float *state, *block; /* the same, or a copy */
    int64_t width;
} Place;

/* Columns first .. first + COLUMNS - 1 of a head, of which `count` exist, over all tokens of a span. s: the first of them in the
 * block. */
INLINE void run_columns(const Recurrent *a, const RecurrentTokens *t, int64_t span_index, int64_t head, int64_t first, const Place *place, float *s, const int is_delta, const int dt) {
    const RecurrentSpan *span = &t->spans[span_index];
    const int64_t Dk = a->state_rows, Dv = a->columns, count = Dv - first, width = prepared_width(a);
    const int64_t group = (a->is_delta == 2 ? head % a->groups : head / (a->heads / a->groups)) * Dk, stop = stop_of(span);
    const float *row = a->prepared + t->firsts[span_index] * width;
    vf seen[COLUMN_VECTORS], added[COLUMN_VECTORS], result[COLUMN_VECTORS], value[COLUMN_VECTORS];
    if (is_delta) look(seen, s, row + keys_at(a) + group, Dk);
    for (int64_t p = span->checkpoint; p < stop; p++, row += width) {
        const float decay = row[a->conv_width + head], factor = row[a->conv_width + a->heads + head];
        const float *k = row + keys_at(a) + group, *v = row + values_at(a) + head * Dv + first;
        EACH_COLUMN {
            const int64_t n = count - c * VL;
            value[c] = n > 0 ? load_partial(v + c * VL, n, F32) : splat(0.0f);
            added[c] = value[c];
            if (is_delta) added[c] = added[c] - splat(decay) * seen[c];
            added[c] = splat(factor) * added[c];
        }
        step(s, result, seen, added, decay, k, row + queries_at(a) + group, is_delta && p + 1 < stop ? k + width : NULL, Dk);
        if (p + 1 == span->store && place->block != place->state) {
            const int64_t at = s - place->block;
            copy_columns(place->state + at, place->width, s, min64(COLUMNS, place->width - at), Dk);
        }
        if (p < span->start) continue;
        const int64_t out = (span->first_row + p - span->start) * a->out_width + head * Dv + first;
        EACH_COLUMN {
            const int64_t n = count - c * VL;
            if (!is_delta) result[c] = fma_v(splat(a->skip[head]), value[c], result[c]);
            if (n > 0) store_partial(at_mut(a->out, out + c * VL, dt), result[c], n, dt);
        }
    }
}

static void run_block(const Recurrent *a, const RecurrentTokens *t, int64_t span_index, int64_t head, int64_t block_index, float *copy) {
    const RecurrentSpan *span = &t->spans[span_index];
    const int64_t Dk = a->state_rows, first = block_index * BLOCK, width = min64(BLOCK, a->columns - first);
    float *const state = a->state + (span->slot * a->heads + head) * Dk * a->columns + first * Dk;
    const int is_in_place = span->store == stop_of(span) && width == BLOCK;
    const Place place = {state, is_in_place ? state : copy, width};
    if (!span->checkpoint) memset(place.block, 0, (size_t)(Dk * BLOCK) * sizeof(float));
    else if (!is_in_place) copy_block(copy, state, width, Dk);
    for (int64_t c = 0; c < width; c += COLUMNS) {
#define DELTA(d_) run_columns(a, t, span_index, head, first + c, &place, place.block + c, 1, d_)
#define SPACE(d_) run_columns(a, t, span_index, head, first + c, &place, place.block + c, 0, d_)
        if (a->is_delta) BY_DTYPE(a->dt, DELTA);
        else BY_DTYPE(a->dt, SPACE);
#undef DELTA
#undef SPACE
    }
}

static void team_recur(const Recurrent *a, const RecurrentTokens *t) {
    static __thread void *buffer;
    static __thread size_t capacity;
    float *const copy = scratch(&buffer, &capacity, (size_t)(a->state_rows * BLOCK) * sizeof(float));
    const int64_t blocks = ceil_to(a->columns, BLOCK) / BLOCK, units = t->num_spans * a->heads * blocks;
#pragma omp for schedule(dynamic) nowait
    for (int64_t unit = 0; unit < units; unit++) {
        const int64_t s = unit / blocks / a->heads;
        if (t->spans[s].slot >= 0) run_block(a, t, s, unit / blocks % a->heads, unit % blocks, copy);
    }
}

/* Whether a token is one of the span's last ones, as many as its log holds. */
INLINE int is_logged(const Recurrent *a, const RecurrentSpan *span, int64_t position) {
    return position >= max64(span->start, stop_of(span) - a->log_len);
}

INLINE char *log_entry(const Recurrent *a, const RecurrentSpan *span, int64_t position) {
    return (char *)a->log + (span->slot * a->log_len + position % a->log_len) * a->log_width * size_of((int)a->dt);
}

static void team_write_log(const Recurrent *a, const RecurrentTokens *t) {
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < t->count; i++) {
        const RecurrentSpan *span = &t->spans[t->span_of[i]];
        const int64_t p = position_of(t, i);
        if (is_logged(a, span, p)) memcpy(log_entry(a, span, p), inputs_at(a, span, p), (size_t)(a->log_width * size_of((int)a->dt)));
    }
}

int64_t recurrent_bytes(const Recurrent *a, const RecurrentTokens *t) { return t->count * prepared_width(a) * (int64_t)sizeof(float); }

void team_recurrence(const Recurrent *a, const RecurrentTokens *t) {
    team_zero_rows(a);
    team_prepare(a, t);
    BARRIER
    team_write_log(a, t);
    team_recur(a, t);
}

void run_recurrence(const Recurrent *arguments, int64_t threads) {
    static __thread void *buffer;
    static __thread size_t capacity;
    Recurrent a = *arguments;
    const RecurrentTokens tokens = recurrent_tokens(a.spans, a.num_spans);
    a.prepared = scratch(&buffer, &capacity, (size_t)recurrent_bytes(&a, &tokens));
    TEAM(threads, tokens.count * a.out_width * a.state_rows > MIN_PARALLEL_PRODUCTS, team_recurrence(&a, &tokens));
}

/* ---- short convolutions ---- */

/* rounded(b * x) of a row of the pass, from column `first`: what the log holds. */
INLINE vf product_at(const Recurrent *a, const char *row, int64_t column, int64_t n, const int dt) {
    const int64_t W = a->conv_width;
    return round_v(load_partial(at(row, column, dt), n, dt) * load_partial(at(row, 2 * W + column, dt), n, dt), dt);
}

INLINE void short_conv_piece(const Recurrent *a, const RecurrentSpan *span, int64_t position, int64_t first, int64_t count, const int dt) {
    const int64_t W = a->conv_width, out = (span->first_row + position - span->start) * W;
    const Window w = window_at(a, span, position);
    FOR_EACH_VECTOR(count, {
        const int64_t column = first + i;
        vf sum = a->conv_bias ? load_partial(a->conv_bias + column, n, F32) : splat(0.0f);
        for (int64_t j = 0; j < a->kernel; j++) {
            if (!w.taps[j]) continue;
            const int is_past = position - a->kernel + 1 + j < span->start;
            const vf product = is_past ? load_partial(at(w.taps[j], column, dt), n, dt) : product_at(a, w.taps[j], column, n, dt);
            sum = fma_v(load_partial(a->conv + j * W + column, n, F32), product, sum);
        }
        const vf c = load_partial(at(w.taps[a->kernel - 1], W + column, dt), n, dt);
        store_partial(at_mut(a->out, out + column, dt), c * sum, n, dt);
    })
}

INLINE void log_product(const Recurrent *a, const RecurrentSpan *span, int64_t position, const int dt) {
    const char *row = inputs_at(a, span, position);
    char *entry = log_entry(a, span, position);
    FOR_EACH_VECTOR(a->conv_width, store_partial(at_mut(entry, i, dt), product_at(a, row, i, n, dt), n, dt);)
}

void team_short_conv(const Recurrent *a, const RecurrentTokens *t) {
    const int64_t pieces = ceil_to(a->conv_width, PART_LEN) / PART_LEN;
    team_zero_rows(a);
    BARRIER
#pragma omp for schedule(static)
    for (int64_t i = 0; i < t->count * pieces; i++) {
        const RecurrentSpan *span = &t->spans[t->span_of[i / pieces]];
        const int64_t p = position_of(t, i / pieces), first = i % pieces * PART_LEN, count = min64(PART_LEN, a->conv_width - first);
        if (p < span->start) continue;
#define CALL(d_) short_conv_piece(a, span, p, first, count, d_)
        BY_DTYPE(a->dt, CALL);
#undef CALL
    }
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < t->count; i++) {
        const RecurrentSpan *span = &t->spans[t->span_of[i]];
        const int64_t p = position_of(t, i);
        if (!is_logged(a, span, p)) continue;
#define CALL(d_) log_product(a, span, p, d_)
        BY_DTYPE(a->dt, CALL);
#undef CALL
    }
}

void run_short_conv(const Recurrent *a, int64_t threads) {
    const RecurrentTokens tokens = recurrent_tokens(a->spans, a->num_spans);
    TEAM(threads, a->rows * a->conv_width > MIN_PARALLEL, team_short_conv(a, &tokens));
}

/* ---- gates ---- */

/* A group of columns of a row: its norm times the weight and silu(gate). Without weight: x * silu(gate). */
INLINE void gated_norm_group(const GatedNorm *a, int64_t row, int64_t first, int64_t D, const int gates_first, const int dt) {
    const void *x = at(a->x, row * a->width + first, dt), *gate = at(a->gate, row * a->stride + first, dt);
    const float *weight = a->weight && !a->is_shared ? a->weight + first : a->weight;
    void *out = at_mut(a->out, row * a->width + first, dt);
    vf factor = splat(1.0f);
    if (weight) {
        Sum sum = zero_sum();
        FOR_EACH_PART(D, {
            vf v = load_partial(at(x, i, dt), n, dt);
            if (gates_first) v = v * silu_v(load_partial(at(gate, i, dt), n, dt));
            sum.part[k] = fma_v(v, v, sum.part[k]);
        })
        factor = splat(1.0f / __builtin_sqrtf(reduce_sum(sum) / (float)D + (float)a->eps));
    }
    FOR_EACH_VECTOR(D, {
        const vf v = load_partial(at(x, i, dt), n, dt), silu = silu_v(load_partial(at(gate, i, dt), n, dt));
        vf scale = factor;
        if (weight) scale = scale * load_partial(weight + i, n, F32);
        store_partial(at_mut(out, i, dt), v * silu * scale, n, dt);
    })
}

void team_gated_norm(const GatedNorm *a) {
    const int64_t group = a->weight ? a->group : min64(a->width, PART_LEN), groups = ceil_to(a->width, group) / group;
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < a->rows * groups; i++) {
        const int64_t row = i / groups, first = i % groups * group, D = min64(group, a->width - first);
#define FIRST(d_) gated_norm_group(a, row, first, D, 1, d_)
#define AFTER(d_) gated_norm_group(a, row, first, D, 0, d_)
        if (a->gates_first) BY_DTYPE(a->dt, FIRST);
        else BY_DTYPE(a->dt, AFTER);
#undef FIRST
#undef AFTER
    }
}

void run_gated_norm(const GatedNorm *a, int64_t threads) { TEAM(threads, a->rows * a->width > MIN_PARALLEL / 4, team_gated_norm(a)); }

/* x / (1 + e^-gate) */
INLINE void sigmoid_mul_row(void *out, const void *x, const void *gate, int64_t width, const int dt) {
    FOR_EACH_VECTOR(width, {
        const vf e = exp_v(splat(0.0f) - load_partial(at(gate, i, dt), n, dt));
        store_partial(at_mut(out, i, dt), load_partial(at(x, i, dt), n, dt) / (splat(1.0f) + e), n, dt);
    })
}

void team_sigmoid_mul(void *out, const void *x, const void *gate, int64_t stride, int64_t rows, int64_t width, int64_t dt) {
#pragma omp for schedule(static) nowait
    for (int64_t r = 0; r < rows; r++) {
#define CALL(d_) sigmoid_mul_row(at_mut(out, r * width, d_), at(x, r * width, d_), at(gate, r * stride, d_), width, d_)
        BY_DTYPE(dt, CALL);
#undef CALL
    }
}

void run_sigmoid_mul(void *out, const void *x, const void *gate, int64_t stride, int64_t rows, int64_t width, int64_t dt, int64_t threads) {
    TEAM(threads, rows * width > MIN_PARALLEL / 4, team_sigmoid_mul(out, x, gate, stride, rows, width, dt));
}
