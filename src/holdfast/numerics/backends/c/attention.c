/* Causal attention through page tables, with bits that depend on the query and its own sequence alone.
 *
 * A query at position p looks at first .. p, where first = max(0, p - window + 1). Positions are cut into blocks of 64
 * from position 0, whatever the page size. Block by block, in order:
 *
 *     s[j]  = sum over d of q[d] * key[d][j]           one fma chain over d; lanes are positions
 *     m'    = max(m, max s)                            masked positions are -inf, by selection
 *     p[j]  = exp(s[j] - m')                           0 where masked
 *     l     = l * exp(m - m') + sum p
 *     o[d]  = o[d] * exp(m - m') + sum over j of p[j] * value[j][d]     one fma chain over j, unmasked j only
 *
 * Queries of a tile (several rows of a span, the query heads of one kv head) share the loads and nothing else: a masked
 * position is never multiplied, so whatever lies in it cannot be felt. Decode is a tile of one row. */
#include <omp.h>

#include "kernels.h"
#include "lanes.h"

#define BLOCK 64
#define BLOCK_VECTORS (BLOCK / VL)
#define MAX_QUERIES 32
#define MAX_DIM 256

typedef struct {
    const char *q;
    const char *keys, *values;
    char *out;
    const int64_t *positions;
    const int32_t *span_starts, *page_table;
    int64_t q_stride, heads, kv_heads, D, page, spans, max_pages, window;
    float scale;
    int dt;
} Attention;

/* Some queries of one kv head: rows row .. row+rows-1 of a span, `group` query heads from head on. */
typedef struct {
    int64_t span, row, rows, kv_head, head, group;
} Tile;

/* The block as the kernels read it: keys of one page lie together, `run` positions; values are found one by one. */
typedef struct {
    const char *keys[BLOCK], *values[BLOCK]; /* of each run, of each position */
    int64_t run, key_stride;                 /* stride in elements */
} Block;

typedef struct {
    float q[MAX_QUERIES][MAX_DIM], o[MAX_QUERIES][MAX_DIM], s[MAX_QUERIES][BLOCK];
    float m[MAX_QUERIES], l[MAX_QUERIES];
    int64_t first[MAX_QUERIES], last[MAX_QUERIES]; /* positions seen: first .. last-1 */
    float keys[MAX_DIM * BLOCK], values[MAX_DIM * BLOCK];
} Work;

/* ---- scores: n queries by four vectors of positions ---- */

#define SCORE_STEP(lane)                                                                                       \
    {                                                                                                          \
        vf k[4];                                                                                               \
        if (vectors == 1) k[0] = load_v(at(keys, (d + lane) * stride, dt), dt);                                \
        else UNROLL for (int v = 0; v < vectors; v += 2)                                                       \
            load_2v(at(keys, (d + lane) * stride + v * VL, dt), dt, &k[v], &k[v + 1]);                         \
        UNROLL for (int i = 0; i < n; i++)                                                                     \
            UNROLL for (int v = 0; v < vectors; v++) FMA_LANE(acc[i][v], k[v], qv[i], q + i * MAX_DIM + d, lane); \
    }

INLINE void score_part(const int n, const int dt, const char *keys, int64_t stride, int64_t D, const float *q, float *s,
                       const int vectors) {
    vf acc[4][4];
    UNROLL for (int i = 0; i < n; i++) UNROLL for (int v = 0; v < vectors; v++) acc[i][v] = splat(0.0f);
    for (int64_t d = 0; d < D; d += 4) {
#if VL == 4
        vf qv[4];
        UNROLL for (int i = 0; i < n; i++) qv[i] = vld1q_f32(q + i * MAX_DIM + d);
#endif
        SCORE_STEP(0) SCORE_STEP(1) SCORE_STEP(2) SCORE_STEP(3)
    }
    UNROLL for (int i = 0; i < n; i++)
        UNROLL for (int v = 0; v < vectors; v++) store_v(s + i * BLOCK + v * VL, acc[i][v], F32);
}

/* The block's scores for n queries, page by page, at least those of positions from .. used-1. */
INLINE void score(const int n, const int dt, const Block *b, int64_t D, int64_t from, int64_t used, const float *q,
                  float *s) {
    for (int64_t j = from / (4 * VL) * (4 * VL); j < used;) {
        const int64_t part = j / b->run, inside = j - part * b->run;
        const char *keys = at(b->keys[part], inside, dt);
        if (b->run - inside >= 4 * VL) {
            score_part(n, dt, keys, b->key_stride, D, q, s + j, 4);
            j += 4 * VL;
        } else {
            score_part(n, dt, keys, b->key_stride, D, q, s + j, 1);
            j += VL;
        }
    }
}

/* ---- outputs: n queries, positions j0 .. j1 ---- */

#define LOAD_VALUE(x, j)                                                                                \
    if (vectors == 1) x[0] = load_v(at(b->values[j], d, dt), dt);                                       \
    else UNROLL for (int v = 0; v < vectors; v += 2) load_2v(at(b->values[j], d + v * VL, dt), dt, &x[v], &x[v + 1]);

#define MIX_STEP(lane)                                                                                  \
    {                                                                                                   \
        vf x[4];                                                                                        \
        LOAD_VALUE(x, j + lane)                                                                         \
        UNROLL for (int i = 0; i < n; i++)                                                              \
            UNROLL for (int v = 0; v < vectors; v++) FMA_LANE(acc[i][v], x[v], pv[i], p + i * BLOCK + j, lane); \
    }

INLINE void mix_part(const int n, const int dt, const Block *b, int64_t j0, int64_t j1, int64_t d, const float *p, float *o,
                     const int vectors) {
    vf acc[4][4];
    UNROLL for (int i = 0; i < n; i++)
        UNROLL for (int v = 0; v < vectors; v++) acc[i][v] = load_v(o + i * MAX_DIM + d + v * VL, F32);
    int64_t j = j0;
    for (; j + 4 <= j1; j += 4) {
#if VL == 4
        vf pv[4];
        UNROLL for (int i = 0; i < n; i++) pv[i] = vld1q_f32(p + i * BLOCK + j);
#endif
        MIX_STEP(0) MIX_STEP(1) MIX_STEP(2) MIX_STEP(3)
    }
    for (; j < j1; j++) {
        vf x[4];
        LOAD_VALUE(x, j)
        UNROLL for (int i = 0; i < n; i++)
            UNROLL for (int v = 0; v < vectors; v++) acc[i][v] = fma_v(x[v], splat(p[i * BLOCK + j]), acc[i][v]);
    }
    UNROLL for (int i = 0; i < n; i++)
        UNROLL for (int v = 0; v < vectors; v++) store_v(o + i * MAX_DIM + d + v * VL, acc[i][v], F32);
}

INLINE void mix(const int n, const int dt, const Block *b, int64_t D, int64_t j0, int64_t j1, const float *p, float *o) {
    if (j0 >= j1) return;
    int64_t d = 0;
    for (; d + 4 * VL <= D; d += 4 * VL) mix_part(n, dt, b, j0, j1, d, p, o, 4);
    for (; d < D; d += VL) mix_part(n, dt, b, j0, j1, d, p, o, 1);
}

/* ---- the running softmax of one query ---- */

/* Vectors that are masked as a whole are left out: they could only add zeros. */
static void soften(Work *w, int64_t i, int64_t start, int64_t D) {
    float *s = w->s[i];
    vf top = splat(-INFINITY);
    const int64_t from = max64(0, w->first[i] - start) / VL * VL, to = min64(BLOCK, w->last[i] - start);
    for (int64_t j = from; j < to; j += VL) {
        vf v = load_v(s + j, F32);
        if (start + j < w->first[i] || start + j + VL > w->last[i]) {
            float lanes[VL];
            memcpy(lanes, &v, sizeof lanes);
            for (int64_t k = 0; k < VL; k++)
                if (start + j + k < w->first[i] || start + j + k >= w->last[i]) lanes[k] = -INFINITY;
            memcpy(&v, lanes, sizeof lanes);
            store_v(s + j, v, F32);
        }
        top = max_v(top, v);
    }
    const float before = w->m[i], now = fmaxf(before, max_lanes(top));
    const vf shift = splat(now == -INFINITY ? 0.0f : now);
    vf sum = splat(0.0f);
    for (int64_t j = from; j < to; j += VL) {
        const vf p = exp_v(load_v(s + j, F32) - shift);
        store_v(s + j, p, F32);
        sum = sum + p;
    }
    float keep[VL];
    store_v(keep, exp_v(splat(before) - shift), F32);
    w->m[i] = now;
    w->l[i] = fmaf(w->l[i], keep[0], sum_lanes(sum));
    if (keep[0] != 1.0f)
        for (int64_t d = 0; d < D; d += VL) store_v(w->o[i] + d, load_v(w->o[i] + d, F32) * splat(keep[0]), F32);
}

/* ---- one block for all queries of the tile ---- */

INLINE void each_four(Work *w, const int dt, const Block *b, int64_t i, const int n, int64_t start, int64_t D, int64_t Dv) {
    int64_t low = 0, high = BLOCK, from = BLOCK, used = 0; /* low .. high-1 are seen by all of the n, from .. used-1 by any */
    for (int64_t k = i; k < i + n; k++) {
        low = max64(low, w->first[k] - start);
        from = min64(from, max64(0, w->first[k] - start));
        high = min64(high, w->last[k] - start);
        used = max64(used, min64(BLOCK, w->last[k] - start));
    }
    if (from >= used) return;
    score(n, dt, b, D, from, used, w->q[i], w->s[i]);
    for (int64_t k = i; k < i + n; k++)
        if (w->last[k] > start && w->first[k] < start + BLOCK) soften(w, k, start, Dv);
    const int shared = low < high;
    for (int64_t k = i; k < i + n; k++) {
        const int64_t end = min64(BLOCK, w->last[k] - start), begin = max64(0, w->first[k] - start);
        mix(1, dt, b, Dv, begin, shared ? min64(low, end) : end, w->s[k], w->o[k]);
    }
    if (!shared) return;
    mix(n, dt, b, Dv, low, high, w->s[i], w->o[i]);
    for (int64_t k = i; k < i + n; k++) mix(1, dt, b, Dv, high, min64(BLOCK, w->last[k] - start), w->s[k], w->o[k]);
}

INLINE void each_block(Work *w, const int dt, const Block *b, int64_t queries, int64_t start, int64_t D, int64_t Dv) {
    int64_t i = 0;
    for (; i + 4 <= queries; i += 4) each_four(w, dt, b, i, 4, start, D, Dv);
    switch (queries - i) {
        case 3: each_four(w, dt, b, i, 3, start, D, Dv); break;
        case 2: each_four(w, dt, b, i, 2, start, D, Dv); break;
        case 1: each_four(w, dt, b, i, 1, start, D, Dv); break;
    }
}

static void block_f32(Work *w, const Block *b, int64_t n, int64_t start, int64_t D, int64_t Dv) {
    each_block(w, F32, b, n, start, D, Dv);
}
static void block_bf16(Work *w, const Block *b, int64_t n, int64_t start, int64_t D, int64_t Dv) {
    each_block(w, BF16, b, n, start, D, Dv);
}
static void block_f16(Work *w, const Block *b, int64_t n, int64_t start, int64_t D, int64_t Dv) {
    each_block(w, F16, b, n, start, D, Dv);
}

INLINE void widen_row(float *out, const void *in, int64_t count, const int dt) {
    EACH_VECTOR(count, store_upto(out + i, load_upto(at(in, i, dt), n, dt), n, F32);)
}

/* Copies the block as fp32, dimensions padded to whole vectors, so that many queries widen it only once. */
INLINE Block copy_block(Work *w, const Block *b, int64_t D, int64_t Dv, int64_t used, const int dt) {
    Block copy = {.keys = {(char *)w->keys}, .run = BLOCK, .key_stride = BLOCK};
    for (int64_t j = 0, part = 0; j < used; j += b->run, part++)
        for (int64_t d = 0; d < D; d++)
            widen_row(w->keys + d * BLOCK + j, at(b->keys[part], d * b->key_stride, dt), b->run, dt);
    for (int64_t d = D; d < ceil_to(D, 4); d++) memset(w->keys + d * BLOCK, 0, BLOCK * sizeof(float));
    for (int64_t j = 0; j < used; j++) {
        float *value = w->values + j * Dv;
        copy.values[j] = (char *)value;
        widen_row(value, b->values[j], D, dt);
        for (int64_t d = D; d < Dv; d++) value[d] = 0.0f;
    }
    return copy;
}

static Block find_block(const Attention *a, const Tile *t, int64_t start, int64_t end) {
    Block b = {.run = min64(a->page, BLOCK), .key_stride = a->page};
    const int32_t *pages = a->page_table + t->span * a->max_pages;
    for (int64_t j = start, part = 0; j < min64(end, start + BLOCK); j += b.run, part++) {
        const int64_t base = ((int64_t)pages[j / a->page] * a->kv_heads + t->kv_head) * a->D * a->page;
        b.keys[part] = at(a->keys, base + j % a->page, a->dt);
        for (int64_t k = 0; k < b.run; k++)
            b.values[part * b.run + k] = at(a->values, base + (j % a->page + k) * a->D, a->dt);
    }
    return b;
}

/* Asks for the pages of a block before they are needed: decode reads each once, and pages lie anywhere. */
static void fetch_block(const Attention *a, const Tile *t, int64_t start, int64_t end) {
    const int32_t *pages = a->page_table + t->span * a->max_pages;
    const int64_t bytes = a->D * a->page * size_of(a->dt);
    for (int64_t j = start; j < min64(end, start + BLOCK); j += a->page) {
        const int64_t base = ((int64_t)pages[j / a->page] * a->kv_heads + t->kv_head) * bytes;
        for (int64_t line = 0; line < bytes; line += 64) {
            __builtin_prefetch(a->keys + base + line);
            __builtin_prefetch(a->values + base + line);
        }
    }
}

static void begin_queries(const Attention *a, const Tile *t, Work *w, int64_t Dv) {
    for (int64_t r = 0, i = 0; r < t->rows; r++)
        for (int64_t h = 0; h < t->group; h++, i++) {
            const int64_t row = t->row + r, p = a->positions[row];
            const int64_t start = row * a->q_stride + (t->head + h) * a->D;
            if (a->dt == F32) widen_row(w->q[i], at(a->q, start, F32), a->D, F32);
            else if (a->dt == BF16) widen_row(w->q[i], at(a->q, start, BF16), a->D, BF16);
            else widen_row(w->q[i], at(a->q, start, F16), a->D, F16);
            for (int64_t d = 0; d < a->D; d++) w->q[i][d] *= a->scale;
            for (int64_t d = a->D; d < ceil_to(a->D, 4); d++) w->q[i][d] = 0.0f; /* scores go in steps of four */
            for (int64_t d = 0; d < Dv; d++) w->o[i][d] = 0.0f;
            w->m[i] = -INFINITY;
            w->l[i] = 0.0f;
            w->last[i] = p + 1;
            w->first[i] = a->window > 0 ? max64(0, p + 1 - a->window) : 0;
        }
}

static void end_queries(const Attention *a, const Tile *t, const Work *w) {
    for (int64_t r = 0, i = 0; r < t->rows; r++)
        for (int64_t h = 0; h < t->group; h++, i++) {
            char *out = a->out + ((t->row + r) * a->heads + t->head + h) * a->D * size_of(a->dt);
            for (int64_t d = 0; d < a->D; d += VL) {
                const vf v = load_v(w->o[i] + d, F32) / splat(w->l[i]);
                if (a->dt == F32) store_upto(out + d * 4, v, a->D - d, F32);
                else if (a->dt == BF16) store_upto(out + d * 2, v, a->D - d, BF16);
                else store_upto(out + d * 2, v, a->D - d, F16);
            }
        }
}

static void attend(const Attention *a, const Tile *t, Work *w) {
    const int64_t queries = t->rows * t->group, Dv = ceil_to(a->D, VL);
    begin_queries(a, t, w, Dv);
    const int64_t end = w->last[queries - 1]; /* rows of a span stand in order of position */
    const int copied = queries > 4 || Dv != a->D || a->D % 4 != 0 || a->page % VL != 0;
    for (int64_t start = w->first[0] / BLOCK * BLOCK; start < end; start += BLOCK) {
        Block b = find_block(a, t, start, end);
        if (!copied && a->page <= BLOCK) fetch_block(a, t, start + BLOCK, end);
        const int64_t used = min64(BLOCK, end - start);
        if (copied && a->dt == F32) b = copy_block(w, &b, a->D, Dv, used, F32);
        else if (copied && a->dt == BF16) b = copy_block(w, &b, a->D, Dv, used, BF16);
        else if (copied) b = copy_block(w, &b, a->D, Dv, used, F16);
        if (copied || a->dt == F32) block_f32(w, &b, queries, start, a->D, Dv);
        else if (a->dt == BF16) block_bf16(w, &b, queries, start, a->D, Dv);
        else block_f16(w, &b, queries, start, a->D, Dv);
    }
    end_queries(a, t, w);
}

/* Lists the tiles of all spans; with out == NULL only counts them. */
static int64_t list_tiles(const Attention *a, int64_t rows_a_tile, int64_t group, Tile *out) {
    int64_t n = 0;
    for (int64_t s = 0; s < a->spans; s++)
        for (int64_t row = a->span_starts[s]; row < a->span_starts[s + 1]; row += rows_a_tile)
            for (int64_t h = 0; h < a->heads; h += group, n++)
                if (out) out[n] = (Tile){s, row, min64(rows_a_tile, a->span_starts[s + 1] - row), h / (a->heads / a->kv_heads), h, group};
    return n;
}

void run_attention(void *out, const void *q, int64_t q_stride, const void *keys, const void *values,
                   const int64_t *positions, const int32_t *span_starts, const int32_t *page_table, int64_t rows,
                   int64_t spans, int64_t max_pages, int64_t heads, int64_t kv_heads, int64_t D, int64_t page,
                   double scale, int64_t window, int64_t dt, int64_t threads) {
    const Attention a = {q, keys, values, out, positions, span_starts, page_table, q_stride, heads, kv_heads, D, page,
                         spans, max_pages, window, (float)scale, (int)dt};
    const int64_t es = size_of((int)dt), real = span_starts[spans];
    memset((char *)out + real * heads * D * es, 0, (size_t)((rows - real) * heads * D * es));
    int64_t group = min64(heads / kv_heads, MAX_QUERIES);
    while ((heads / kv_heads) % group) group--;
    const int64_t rows_a_tile = max64(1, MAX_QUERIES / group);
    if (list_tiles(&a, rows_a_tile, group, NULL) < 2 * threads && real == spans) group = 1; /* one head each */
    static __thread void *slot;
    static __thread size_t have;
    const int64_t count = list_tiles(&a, rows_a_tile, group, NULL);
    Tile *tiles = scratch(&slot, &have, (size_t)count * sizeof(Tile));
    list_tiles(&a, rows_a_tile, group, tiles);
#pragma omp parallel for num_threads((int)threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < count; i++) {
        static __thread void *work;
        static __thread size_t size;
        attend(&a, &tiles[count - 1 - i], scratch(&work, &size, sizeof(Work))); /* the longest are the last of a span */
    }
}
