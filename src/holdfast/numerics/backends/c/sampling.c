/* From logits to a token: greedy, or Gumbel-max over the kept set. Also log-sum-exp and the
 * top-k logits.
 *
 * A row depends on itself alone. Nothing is sorted: the
 * top-k or top-p threshold is found by radix select over the bits of the logits. Ties go to the
 * lowest id.
 *
 * The Gumbel noise is a function of (seed, position, token id):
 *
 *     key   = mix(mix(seed + G) ^ mix(position * G + C))        mix: the finaliser of splitmix64
 *     h     = mix(key + (id + 1) * G)
 *     w     = (upper half of h + 1/2) / 2^32, in fp32, at most 1 - 2^-24      uniform in (0, 1)
 *     noise = -log(-log(1 - w))                                     Gumbel
 *
 * Large noise values decide the sample. They come from small w, where fp32 has its finest
 * resolution. */
#include <float.h>

#include "kernels.h"
#include "simd.h"

#define NO_TOKEN -1
#define GOLDEN 0x9e3779b97f4a7c15ull
#define NOISE_MAX 22.9f /* -log(-log(1 - w)) at the smallest w, 2^-33 */

INLINE uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

INLINE uint64_t noise_key(uint64_t seed, uint64_t position) {
    return mix(mix(seed + GOLDEN) ^ mix(position * GOLDEN + 0xd1b54a32d192ed03ull));
}

INLINE vf gumbel(uint64_t key, int64_t id) {
    float lanes[VL];
    for (int i = 0; i < VL; i++) {
        const uint64_t h = mix(key + (uint64_t)(id + i + 1) * GOLDEN);
        const float w = ((float)(h >> 32) + 0.5f) * 0x1p-32f;
        lanes[i] = w < 0.99999994f ? w : 0.99999994f;
    }
    const vf w = load_v(lanes, F32), one = splat(1.0f), y = one - w;
    /* log(1 - w): w / (1 - y) corrects the rounding error of y = 1 - w */
    const vf divisor = select_v((vi)(y == one), one, one - y);
    const vf e = select_v((vi)(y == one), w, (splat(0.0f) - log_v(y)) * (w / divisor));
    return splat(0.0f) - log_v(e);
}

void run_noise(float *out, int64_t seed, int64_t position, int64_t n) {
    const uint64_t key = noise_key((uint64_t)seed, (uint64_t)position);
    for (int64_t i = 0; i < n; i += VL) store_partial(out + i, gumbel(key, i), n - i, F32);
}

/* NaN counts as -inf, -0 as 0. */
INLINE float clean(float x) { return x != x ? -INFINITY : x + 0.0f; }

INLINE vf clean_v(vf v) { return select_v((vi)(v == v), v, splat(-INFINITY)) + splat(0.0f); }

INLINE int is_finite(float x) { return x >= -FLT_MAX && x <= FLT_MAX; }

/* An unsigned integer that sorts as the float does. */
INLINE uint32_t rank_of(float x) {
    uint32_t u;
    memcpy(&u, &x, 4);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

static int64_t argmax(const float *x, int64_t n) {
    vf top[4] = {splat(-INFINITY), splat(-INFINITY), splat(-INFINITY), splat(-INFINITY)};
    int64_t i = 0;
    for (; i + 4 * VL <= n; i += 4 * VL)
        UNROLL for (int k = 0; k < 4; k++) {
            const vf v = load_v(x + i + k * VL, F32);
            top[k] = select_v((vi)(v > top[k]), v, top[k]);
        }
    float best = reduce_max(max_number_v(max_number_v(top[0], top[1]), max_number_v(top[2], top[3])));
    for (; i < n; i++) best = x[i] > best ? x[i] : best;
    for (i = 0; i + VL <= n && reduce_max(clean_v(load_v(x + i, F32))) < best; i += VL) {}
    for (; i < n; i++)
        if (x[i] == best) return i;
    return 0; /* all NaN */
}

/* The kept tokens: rank above `threshold`, or at the threshold with an id of at most `last_id`. */
typedef struct {
    uint32_t threshold;
    int64_t last_id;
} KeptSet;

INLINE int keeps(const KeptSet *k, uint32_t rank, int64_t id) { return rank > k->threshold || (rank == k->threshold && id <= k->last_id); }

#define RADIX 2048
static const int SHIFT[3] = {21, 10, 0}, BITS[3] = {11, 11, 10};

/* The k largest. Each round fixes the next bits of the threshold. `ids` is scratch for the
 * undecided tokens. */
static KeptSet keep_top_k(const float *z, int64_t n, int64_t k, int32_t *ids) {
    uint32_t prefix = 0;
    int64_t num_needed = k, num_open = n;
    for (int round = 0; round < 3; round++) {
        int32_t count[RADIX] = {0};
        const uint32_t mask = (1u << BITS[round]) - 1;
        for (int64_t i = 0; i < num_open; i++) count[(rank_of(z[round ? ids[i] : i]) >> SHIFT[round]) & mask]++;
        int64_t bin = mask;
        while (bin > 0 && count[bin] < num_needed) num_needed -= count[bin--];
        prefix |= (uint32_t)bin << SHIFT[round];
        int64_t num_left = 0;
        for (int64_t i = 0; i < num_open; i++) {
            const int32_t id = round ? ids[i] : (int32_t)i;
            ids[num_left] = id;
            num_left += ((rank_of(z[id]) >> SHIFT[round]) & mask) == (uint32_t)bin;
        }
        num_open = num_left;
    }
    return (KeptSet){prefix, ids[num_needed - 1]}; /* all at the threshold, in order of id */
}

/* The smallest set of the best tokens of `from` whose mass reaches top_p of the total; p = exp(z
 * - max). */
static KeptSet keep_top_p(const float *z, const float *p, int64_t n, KeptSet from, double top_p, int32_t *ids) {
    uint32_t prefix = 0;
    double needed = -1.0;
    int64_t num_open = 0;
    for (int64_t i = 0; i < n; i++) {
        ids[num_open] = (int32_t)i;
        num_open += p[i] > 0.0f && keeps(&from, rank_of(z[i]), i);
    }
    for (int round = 0; round < 3; round++) {
        double mass[RADIX] = {0};
        const uint32_t mask = (1u << BITS[round]) - 1;
        for (int64_t i = 0; i < num_open; i++) mass[(rank_of(z[ids[i]]) >> SHIFT[round]) & mask] += p[ids[i]];
        if (round == 0) {
            double total_mass = 0.0;
            for (int64_t b = 0; b < RADIX; b++) total_mass += mass[b];
            needed = top_p * total_mass;
        }
        int64_t bin = mask, lowest_bin = -1;
        for (; bin >= 0; bin--) {
            if (mass[bin] > 0.0) lowest_bin = bin;
            if (mass[bin] > 0.0 && mass[bin] >= needed) break;
            needed -= mass[bin];
        }
        if (bin < 0) bin = lowest_bin; /* not reached because of rounding: keep the whole set */
        prefix |= (uint32_t)bin << SHIFT[round];
        int64_t num_left = 0;
        for (int64_t i = 0; i < num_open; i++) {
            const int32_t id = ids[i];
            ids[num_left] = id;
            num_left += ((rank_of(z[id]) >> SHIFT[round]) & mask) == (uint32_t)bin;
        }
        num_open = num_left;
    }
    int64_t last = 0;
    while (last < num_open - 1 && (needed -= p[ids[last]]) > 0.0) last++;
    return (KeptSet){prefix, ids[last]};
}

typedef struct {
    float temperature, top_p, min_p;
    int64_t top_k;
    uint64_t key;
} SamplingParams;

INLINE float gumbel_one(uint64_t key, int64_t id) {
    float lanes[VL];
    store_v(lanes, gumbel(key, id), F32);
    return lanes[0];
}

/* The argmax of z + noise over the kept set; `argmax_id` has the largest z. The noise is less
 * than -log(w), which is less than ln 2 times (leading zeros of h + 1). That bound excludes most
 * ids before a logarithm is computed. */
static int64_t argmax_noisy(const float *z, const float *p, int64_t n, const SamplingParams *c, const KeptSet *kept, int64_t argmax_id) {
    int64_t best_id = argmax_id;
    float best = z[argmax_id] + gumbel_one(c->key, argmax_id);
    for (int64_t i = 0; i < n; i++) {
        const float x = z[i];
        if (x + NOISE_MAX < best) continue;
        const uint32_t h = (uint32_t)(mix(c->key + (uint64_t)(i + 1) * GOLDEN) >> 32);
        if (x + (float)(__builtin_clz(h | 1u) + 1) * 0.6931472f + 0.001f < best) continue;
        if ((kept && !keeps(kept, rank_of(x), i)) || (p && p[i] < c->min_p) || x == -INFINITY) continue;
        const float noisy = x + gumbel_one(c->key, i);
        if (noisy > best || (noisy == best && i < best_id)) {
            best = noisy;
            best_id = i;
        }
    }
    return best_id;
}

static void apply_temperature(float *z, const float *logits, int64_t count, float temperature) {
    const vf divisor = splat(temperature);
    FOR_EACH_VECTOR(count, store_partial(z + i, clean_v(load_partial(logits + i, n, F32) / divisor), n, F32);)
}

static void exp_minus_max(float *p, const float *z, int64_t count, float top) {
    FOR_EACH_VECTOR(count, store_partial(p + i, exp_v(load_partial(z + i, n, F32) - splat(top)), n, F32);)
}

static int64_t sample_row(const float *logits, int64_t n, const SamplingParams *c, float *z, float *p, int32_t *ids) {
    const int64_t argmax_id = argmax(logits, n);
    if (!(logits[argmax_id] > -INFINITY)) return NO_TOKEN;
    if (!(c->temperature > 0.0f)) return argmax_id;
    apply_temperature(z, logits, n, c->temperature);
    const float top = z[argmax_id];
    if (!is_finite(top)) return argmax_id;
    if (!(c->min_p <= 1.0f)) return NO_TOKEN;
    const int has_top_p = c->top_p < 1.0f, has_min_p = c->min_p > 0.0f;
    if (has_top_p || has_min_p)
        exp_minus_max(p, z, n, top);
    KeptSet kept = {0, n - 1};
    const int has_top_k = c->top_k > 0 && c->top_k < n;
    if (has_top_k) kept = keep_top_k(z, n, c->top_k, ids);
    if (has_top_p) kept = keep_top_p(z, p, n, kept, c->top_p, ids);
    return argmax_noisy(z, has_min_p ? p : NULL, n, c, has_top_k || has_top_p ? &kept : NULL, argmax_id);
}

static float *row_scratch(int64_t n) {
    static __thread void *buffer;
    static __thread size_t capacity;
    return scratch(&buffer, &capacity, (size_t)n * 12 + 256);
}

void run_sample(int64_t *out, const float *logits, int64_t rows, int64_t n, const float *temperature,
                const int32_t *top_k, const float *top_p, const float *min_p, const int64_t *seeds,
                const int64_t *positions, int64_t threads) {
#pragma omp parallel num_threads((int)threads) if (rows > 1 && rows * n > MIN_PARALLEL)
    {
        DEFAULT_FP;
#pragma omp for schedule(dynamic, 1) nowait
        for (int64_t r = 0; r < rows; r++) {
            float *z = row_scratch(n);
            const SamplingParams c = {temperature[r], top_p[r], min_p[r], top_k[r], noise_key((uint64_t)seeds[r], (uint64_t)positions[r])};
            out[r] = sample_row(logits + r * n, n, &c, z, z + n, (int32_t *)(z + 2 * n));
        }
    }
}

/* The sum of e^(x - top), in the order of `Sum` (simd.h). */
static float sum_of_exp(const float *x, int64_t count, float top) {
    Sum sum = zero_sum();
    int64_t base = 0;
    for (; base + SUM_LANES <= count; base += SUM_LANES) {
        vf e[SUM_PARTS];
        UNROLL for (int k = 0; k < SUM_PARTS; k++) e[k] = load_v(x + base + k * VL, F32) - splat(top);
        exp_all(e, SUM_PARTS);
        UNROLL for (int k = 0; k < SUM_PARTS; k++) sum.part[k] = sum.part[k] + e[k];
    }
    UNROLL for (int k = 0; k < SUM_PARTS; k++) {
        const int64_t i = base + k * VL, n = count - i;
        if (n > 0) sum.part[k] = sum.part[k] + first_lanes(exp_v(load_partial(x + i, n, F32) - splat(top)), min64(n, VL));
    }
    return reduce_sum(sum);
}

/* max + log(sum exp(x - max)); blocks of SUM_LEN are summed in fp32, each by one thread, then in fp64. */
#define SUM_LEN 4096
typedef struct {
    const float *logits; /* [rows, n] */
    int64_t rows, n, parts;
    int64_t *ids; /* [rows], of the largest logits */
    float *sums;  /* [rows, parts] */
} LogSumExp;

static float *sums_scratch(int64_t count) {
    static __thread void *buffer;
    static __thread size_t capacity;
    return scratch(&buffer, &capacity, (size_t)count * sizeof(float));
}

INLINE float top_of(const LogSumExp *l, int64_t r) { return clean(l->logits[r * l->n + l->ids[r]]); }

/* Write ids and sums, with a barrier at the end. */
static void team_sums(const LogSumExp *l) {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < l->rows; r++) l->ids[r] = argmax(l->logits + r * l->n, l->n);
#pragma omp for schedule(static)
    for (int64_t i = 0; i < l->rows * l->parts; i++) {
        const int64_t r = i / l->parts, start = i % l->parts * SUM_LEN;
        const float top = top_of(l, r);
        if (is_finite(top)) l->sums[i] = sum_of_exp(l->logits + r * l->n + start, min64(l->n - start, SUM_LEN), top);
    }
}

static float logsumexp_row(const LogSumExp *l, int64_t r) {
    const float top = top_of(l, r);
    if (!is_finite(top)) return top;
    double sum = 0.0;
    for (int64_t i = 0; i < l->parts; i++) sum += l->sums[r * l->parts + i];
    return (float)((double)top + log_fp64(sum));
}

void run_logsumexp(float *out, const float *logits, int64_t rows, int64_t n, int64_t threads) {
    static __thread void *buffer;
    static __thread size_t capacity;
    int64_t *ids = scratch(&buffer, &capacity, (size_t)rows * sizeof(int64_t));
    const int64_t parts = ceil_to(n, SUM_LEN) / SUM_LEN;
    const LogSumExp l = {logits, rows, n, parts, ids, sums_scratch(rows * parts)};
    TEAM(threads, rows * n > MIN_PARALLEL, team_sums(&l));
    for (int64_t r = 0; r < rows; r++) out[r] = logsumexp_row(&l, r);
}

/* The largest logit of each row, and its log-softmax. */
void run_greedy(int64_t *ids, float *logprobs, const float *logits, int64_t rows, int64_t n, int64_t threads) {
    const int64_t parts = ceil_to(n, SUM_LEN) / SUM_LEN;
    const LogSumExp l = {logits, rows, n, parts, ids, sums_scratch(rows * parts)};
    TEAM(threads, rows * n > MIN_PARALLEL, team_sums(&l));
    for (int64_t r = 0; r < rows; r++) {
        const float top = logits[r * n + ids[r]];
        logprobs[r] = top - logsumexp_row(&l, r);
        if (!(top > -INFINITY)) ids[r] = NO_TOKEN;
    }
}

/* The k largest of a row, in order of value, then of lower id. */
static void topk_row(const float *x, int64_t n, int64_t k, float *values, int64_t *ids) {
    int64_t capacity = 0;
    for (int64_t i = 0; i < n; i++) {
        const float v = clean(x[i]);
        if (capacity == k && !(v > values[k - 1])) continue;
        int64_t at = capacity < k ? capacity++ : k - 1;
        for (; at > 0 && v > values[at - 1]; at--) {
            values[at] = values[at - 1];
            ids[at] = ids[at - 1];
        }
        values[at] = v;
        ids[at] = i;
    }
}

void run_topk(float *values, int64_t *ids, const float *logits, int64_t rows, int64_t n, int64_t k, int64_t threads) {
#pragma omp parallel num_threads((int)threads) if (rows > 1 && rows * n > MIN_PARALLEL)
    {
        DEFAULT_FP;
#pragma omp for schedule(static) nowait
        for (int64_t r = 0; r < rows; r++) topk_row(logits + r * n, n, k, values + r * k, ids + r * k);
    }
}
