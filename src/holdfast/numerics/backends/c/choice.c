/* From logits to a token: greedy, or Gumbel-max over a kept set; also log-sum-exp and the k best.
 *
 * A row depends on itself alone: rows go to threads whole. Nothing is sorted: the edge of a top-k or top-p set is found
 * by descending through the bits of the logits (radix select), ties go to the lowest id.
 *
 * Noise is a function of (seed, position, token id):
 *
 *     key   = mix(mix(seed + G) ^ mix(position * G + C))        mix: the finaliser of splitmix64
 *     h     = mix(key + (id + 1) * G)
 *     w     = (upper half of h + 1/2) / 2^32, in fp32, at most 1 - 2^-24      uniform in (0, 1), fine near 0
 *     noise = -log(-log(1 - w))                                     Gumbel
 *
 * The large noises, which decide, come from small w, where fp32 is finest. */
#include <float.h>
#include <omp.h>

#include "kernels.h"
#include "lanes.h"

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
    /* log(1 - w): the quotient gives back what rounding 1 - w took away */
    const vf whole = select_v((vi)(y == one), one, one - y);
    const vf e = select_v((vi)(y == one), w, (splat(0.0f) - log_v(y)) * (w / whole));
    return splat(0.0f) - log_v(e);
}

void run_noise(float *out, int64_t seed, int64_t position, int64_t n) {
    const uint64_t key = noise_key((uint64_t)seed, (uint64_t)position);
    for (int64_t i = 0; i < n; i += VL) store_upto(out + i, gumbel(key, i), n - i, F32);
}

/* NaN counts as -inf, -0 as 0. */
INLINE float clean(float x) { return x != x ? -INFINITY : x + 0.0f; }

INLINE vf clean_v(vf v) { return select_v((vi)(v == v), v, splat(-INFINITY)) + splat(0.0f); }

/* Order of floats as order of unsigned integers. */
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
    float best = max_lanes(max_v(max_v(top[0], top[1]), max_v(top[2], top[3])));
    for (; i < n; i++) best = x[i] > best ? x[i] : best;
    for (i = 0; i + VL <= n && max_lanes(clean_v(load_v(x + i, F32))) < best; i += VL) {}
    for (; i < n; i++)
        if (x[i] == best) return i;
    return 0; /* a row of NaN alone */
}

/* The kept set: every id whose rank is above `edge`, and of those at the edge the ids up to `last_id`. */
typedef struct {
    uint32_t edge;
    int64_t last_id;
} Kept;

INLINE int keeps(const Kept *k, uint32_t rank, int64_t id) { return rank > k->edge || (rank == k->edge && id <= k->last_id); }

#define RADIX 2048
static const int SHIFT[3] = {21, 10, 0}, BITS[3] = {11, 11, 10};

/* The k best. Each round settles the next bits of the edge's rank; `ids` is room for those still in question. */
static Kept keep_top_k(const float *z, int64_t n, int64_t k, int32_t *ids) {
    uint32_t prefix = 0;
    int64_t left = k, open = n;
    for (int round = 0; round < 3; round++) {
        int32_t count[RADIX] = {0};
        const uint32_t mask = (1u << BITS[round]) - 1;
        for (int64_t i = 0; i < open; i++) count[(rank_of(z[round ? ids[i] : i]) >> SHIFT[round]) & mask]++;
        int64_t bin = mask;
        while (bin > 0 && count[bin] < left) left -= count[bin--];
        prefix |= (uint32_t)bin << SHIFT[round];
        int64_t still = 0;
        for (int64_t i = 0; i < open; i++) {
            const int32_t id = round ? ids[i] : (int32_t)i;
            ids[still] = id;
            still += ((rank_of(z[id]) >> SHIFT[round]) & mask) == (uint32_t)bin;
        }
        open = still;
    }
    return (Kept){prefix, ids[left - 1]}; /* in order of id, all at the edge */
}

/* The smallest set of the best, inside `from`, whose mass reaches top_p of the whole; p = exp(z - max). */
static Kept keep_top_p(const float *z, const float *p, int64_t n, Kept from, double top_p, int32_t *ids) {
    uint32_t prefix = 0;
    double need = -1.0;
    int64_t open = 0;
    for (int64_t i = 0; i < n; i++) {
        ids[open] = (int32_t)i;
        open += p[i] > 0.0f && keeps(&from, rank_of(z[i]), i);
    }
    for (int round = 0; round < 3; round++) {
        double mass[RADIX] = {0};
        const uint32_t mask = (1u << BITS[round]) - 1;
        for (int64_t i = 0; i < open; i++) mass[(rank_of(z[ids[i]]) >> SHIFT[round]) & mask] += p[ids[i]];
        if (round == 0) {
            double whole = 0.0;
            for (int64_t b = 0; b < RADIX; b++) whole += mass[b];
            need = top_p * whole;
        }
        int64_t bin = mask, lowest = -1;
        for (; bin >= 0; bin--) {
            if (mass[bin] > 0.0) lowest = bin;
            if (mass[bin] > 0.0 && mass[bin] >= need) break;
            need -= mass[bin];
        }
        if (bin < 0) bin = lowest; /* rounding left a trifle over: the whole set it is */
        prefix |= (uint32_t)bin << SHIFT[round];
        int64_t still = 0;
        for (int64_t i = 0; i < open; i++) {
            const int32_t id = ids[i];
            ids[still] = id;
            still += ((rank_of(z[id]) >> SHIFT[round]) & mask) == (uint32_t)bin;
        }
        open = still;
    }
    int64_t last = 0;
    while (last < open - 1 && (need -= p[ids[last]]) > 0.0) last++;
    return (Kept){prefix, ids[last]};
}

typedef struct {
    float temperature, top_p, min_p;
    int64_t top_k;
    uint64_t key;
} Choice;

INLINE float gumbel_one(uint64_t key, int64_t id) {
    float lanes[VL];
    store_v(lanes, gumbel(key, id), F32);
    return lanes[0];
}

/* The best of z + noise over the kept set, `first` being the best z. Noise is below -log(w), and that below ln 2 for each
 * leading zero of h and one more: most ids are ruled out by that, before any logarithm is taken. */
static int64_t best_noisy(const float *z, const float *p, int64_t n, const Choice *c, const Kept *kept, int64_t first) {
    int64_t winner = first;
    float best = z[first] + gumbel_one(c->key, first);
    for (int64_t i = 0; i < n; i++) {
        const float x = z[i];
        if (x + NOISE_MAX < best) continue;
        const uint32_t h = (uint32_t)(mix(c->key + (uint64_t)(i + 1) * GOLDEN) >> 32);
        if (x + (float)(__builtin_clz(h | 1u) + 1) * 0.6931472f + 0.001f < best) continue;
        if ((kept && !keeps(kept, rank_of(x), i)) || (p && p[i] < c->min_p) || x == -INFINITY) continue;
        const float noisy = x + gumbel_one(c->key, i);
        if (noisy > best || (noisy == best && i < winner)) {
            best = noisy;
            winner = i;
        }
    }
    return winner;
}

static void scale(float *z, const float *logits, int64_t count, float temperature) {
    const vf divisor = splat(temperature);
    EACH_VECTOR(count, store_upto(z + i, clean_v(load_upto(logits + i, n, F32) / divisor), n, F32);)
}

static void exp_below(float *p, const float *z, int64_t count, float top) {
    EACH_VECTOR(count, store_upto(p + i, exp_v(load_upto(z + i, n, F32) - splat(top)), n, F32);)
}

static int64_t choose_row(const float *logits, int64_t n, const Choice *c, float *z, float *p, int32_t *ids) {
    const int64_t first = argmax(logits, n);
    if (!(c->temperature > 0.0f)) return first;
    scale(z, logits, n, c->temperature);
    const float top = z[first];
    if (!(fabsf(top) <= FLT_MAX)) return first;
    const int by_mass = c->top_p < 1.0f, by_ratio = c->min_p > 0.0f;
    if (by_mass || by_ratio)
        exp_below(p, z, n, top);
    Kept kept = {0, n - 1};
    const int by_count = c->top_k > 0 && c->top_k < n;
    if (by_count) kept = keep_top_k(z, n, c->top_k, ids);
    if (by_mass) kept = keep_top_p(z, p, n, kept, c->top_p, ids);
    return best_noisy(z, by_ratio ? p : NULL, n, c, by_count || by_mass ? &kept : NULL, first);
}

static float *row_scratch(int64_t n) {
    static __thread void *slot;
    static __thread size_t have;
    return scratch(&slot, &have, (size_t)n * 12 + 256);
}

void run_choose(int64_t *out, const float *logits, int64_t rows, int64_t n, const float *temperature,
                const int32_t *top_k, const float *top_p, const float *min_p, const int64_t *seeds,
                const int64_t *positions, int64_t threads) {
#pragma omp parallel for num_threads((int)threads) schedule(dynamic, 1) if (rows > 1)
    for (int64_t r = 0; r < rows; r++) {
        float *z = row_scratch(n);
        const Choice c = {temperature[r], top_p[r], min_p[r], top_k[r], noise_key((uint64_t)seeds[r], (uint64_t)positions[r])};
        out[r] = choose_row(logits + r * n, n, &c, z, z + n, (int32_t *)(z + 2 * n));
    }
}

/* max + log(sum exp(x - max)); blocks of 4096 are summed in fp32 lanes, the blocks in fp64. */
static float logsumexp_row(const float *x, int64_t n) {
    const float top = clean(x[argmax(x, n)]);
    if (!(fabsf(top) <= FLT_MAX)) return top;
    double sum = 0.0;
    for (int64_t start = 0; start < n; start += 4096) {
        const int64_t end = min64(n, start + 4096);
        vf part = splat(0.0f);
        int64_t i = start;
        for (; i + VL <= end; i += VL) part = part + exp_v(load_v(x + i, F32) - splat(top));
        sum += sum_lanes(part);
        if (i < end) {
            float tail[VL];
            store_v(tail, exp_v(load_part(x + i, end - i, F32) - splat(top)), F32);
            for (int64_t k = 0; k < end - i; k++) sum += tail[k];
        }
    }
    return (float)((double)top + log(sum));
}

void run_logsumexp(float *out, const float *logits, int64_t rows, int64_t n, int64_t threads) {
#pragma omp parallel for num_threads((int)threads) schedule(static) if (rows > 1)
    for (int64_t r = 0; r < rows; r++) out[r] = logsumexp_row(logits + r * n, n);
}

/* The k best of a row, in order; an entry is better by value, then by lower id. */
static void top_row(const float *x, int64_t n, int64_t k, float *values, int64_t *ids) {
    int64_t have = 0;
    for (int64_t i = 0; i < n; i++) {
        const float v = clean(x[i]);
        if (have == k && !(v > values[k - 1])) continue;
        int64_t at = have < k ? have++ : k - 1;
        for (; at > 0 && v > values[at - 1]; at--) {
            values[at] = values[at - 1];
            ids[at] = ids[at - 1];
        }
        values[at] = v;
        ids[at] = i;
    }
}

void run_top(float *values, int64_t *ids, const float *logits, int64_t rows, int64_t n, int64_t k, int64_t threads) {
#pragma omp parallel for num_threads((int)threads) schedule(static) if (rows > 1)
    for (int64_t r = 0; r < rows; r++) top_row(logits + r * n, n, k, values + r * k, ids + r * k);
}
