/* Causal attention through page tables, with bits that depend on the query and its own request
 * alone.
 *
 * A query at position p sees positions first .. p, where first = max(0, p - window + 1).
 * Positions are divided into blocks of 64 from position 0, for every page size. Block by block,
 * in order (online softmax):
 *
 *     s[j]  = sum over d of q[d] * key[d][j]           one fma chain over d; lanes are positions
 *     s[j]  = cap * tanh(s[j] / cap)                   with a soft cap
 *     m'    = max(m, max s)                            masked positions are set to -inf
 *     p[j]  = exp(s[j] - m')                           0 if masked
 *     l     = l * exp(m - m') + sum p
 *     o[d]  = o[d] * exp(m - m') + sum over j of p[j] * value[j][d]     one fma chain over j, unmasked j only
 *
 * Here sum p has the order of `Sum` (simd.h), by position in the block.
 *
 * They start with m = -inf, l = 0, o = 0. With attention sinks they start with m = sink, l = 1, o = 0: the
 * sink is a score before all positions, whose value is zero.
 *
 * The queries of a tile (several tokens of a span, the query heads of one KV head) share the
 * loads and nothing else. A masked position is never multiplied, so its content has no effect.
 * Decode is a tile of one token. */
#include "kernels.h"
#include "simd.h"

#define BLOCK 64
#define BLOCK_VECTORS (BLOCK / VL)
#define MAX_QUERIES 32
#define MAX_DIM 256

/* Addresses of a block of 64 positions. Keys are contiguous for `run` positions of a page;
 * values have one address each. */
typedef struct Block {
    const char *keys[BLOCK], *values[BLOCK]; /* per run, per position */
    int64_t run, key_stride;                 /* in elements */
    int64_t run_bytes;                       /* of contiguous keys or values; 0: they are not contiguous */
    const struct Block *next;                /* the block to prefetch meanwhile, or NULL */
} Block;

/* Memory to prefetch during a loop, `step` bytes in each turn: decode reads each page once, and pages are
 * not contiguous. All at once would block the loads of the loop. */
typedef struct {
    const char *at; /* or NULL */
    int64_t step;
} Ahead;

INLINE void prefetch(Ahead *ahead) {
    if (ahead->at == NULL) return;
    for (int64_t line = 0; line < ahead->step; line += 64) __builtin_prefetch(ahead->at + line);
    ahead->at += ahead->step;
}
/* The keys, or the values, of a run of a block, in so many turns. */
INLINE Ahead keys_ahead(const Block *b, int64_t run_index, int64_t turns) {
    if (b == NULL || run_index * b->run >= BLOCK || b->run_bytes == 0) return (Ahead){NULL, 0};
    return (Ahead){b->keys[run_index], ceil_to(b->run_bytes / turns, 64)};
}
INLINE Ahead values_ahead(const Block *b, int64_t run_index, int64_t turns) {
    if (b == NULL || run_index * b->run >= BLOCK || b->run_bytes == 0) return (Ahead){NULL, 0};
    return (Ahead){b->values[run_index * b->run], ceil_to(b->run_bytes / turns, 64)};
}

typedef struct {
    float q[MAX_QUERIES][MAX_DIM], o[MAX_QUERIES][MAX_DIM], s[MAX_QUERIES][BLOCK];
    float m[MAX_QUERIES], l[MAX_QUERIES], soft_cap;
    int64_t first[MAX_QUERIES], last[MAX_QUERIES]; /* visible positions: first .. last-1 */
    float keys[MAX_DIM * BLOCK], values[MAX_DIM * BLOCK];
} TileState;

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

INLINE void score_vectors(const int n, const int dt, const char *keys, int64_t stride, int64_t D, const float *q, float *s,
                       const int vectors, Ahead ahead) {
    vf acc[4][4];
    UNROLL for (int i = 0; i < n; i++) UNROLL for (int v = 0; v < vectors; v++) acc[i][v] = splat(0.0f);
    for (int64_t d = 0; d < D; d += 4) {
        prefetch(&ahead);
#if VL == 4
        vf qv[4];
        UNROLL for (int i = 0; i < n; i++) qv[i] = vld1q_f32(q + i * MAX_DIM + d);
#endif
        SCORE_STEP(0) SCORE_STEP(1) SCORE_STEP(2) SCORE_STEP(3)
    }
    UNROLL for (int i = 0; i < n; i++)
        UNROLL for (int v = 0; v < vectors; v++) store_v(s + i * BLOCK + v * VL, acc[i][v], F32);
}

/* The scores of a block for n queries, run by run, at least for positions from .. used-1. */
INLINE void score(const int n, const int dt, const Block *b, int64_t D, int64_t from, int64_t used, const float *q,
                  float *s) {
    for (int64_t j = from / (4 * VL) * (4 * VL); j < used;) {
        const int64_t run_index = j / b->run, inside = j - run_index * b->run;
        const char *keys = at(b->keys[run_index], inside, dt);
        if (b->run - inside >= 4 * VL) {
            score_vectors(n, dt, keys, b->key_stride, D, q, s + j, 4, keys_ahead(b->next, j / (4 * VL), D / 4));
            j += 4 * VL;
        } else {
            score_vectors(n, dt, keys, b->key_stride, D, q, s + j, 1, (Ahead){NULL, 0});
            j += VL;
        }
    }
}

/* ---- outputs: n queries, positions j0 .. j1 ---- */

#define LOAD_VALUE(x, j)                                                                                \
    if (vectors == 1) x[0] = load_v(at(b->values[j], d, dt), dt);                                       \
    else UNROLL for (int v = 0; v < vectors; v += 2) load_2v(at(b->values[j], d + v * VL, dt), dt, &x[v], &x[v + 1]);

#define ACCUMULATE_STEP(lane)                                                                                  \
    {                                                                                                   \
        vf x[4];                                                                                        \
        LOAD_VALUE(x, j + lane)                                                                         \
        UNROLL for (int i = 0; i < n; i++)                                                              \
            UNROLL for (int v = 0; v < vectors; v++) FMA_LANE(acc[i][v], x[v], pv[i], p + i * BLOCK + j, lane); \
    }

INLINE void accumulate_vectors(const int n, const int dt, const Block *b, int64_t j0, int64_t j1, int64_t d, const float *p, float *o,
                     const int vectors, Ahead ahead) {
    vf acc[4][4];
    UNROLL for (int i = 0; i < n; i++)
        UNROLL for (int v = 0; v < vectors; v++) acc[i][v] = load_v(o + i * MAX_DIM + d + v * VL, F32);
    int64_t j = j0;
    for (; j + 4 <= j1; j += 4) {
        prefetch(&ahead);
#if VL == 4
        vf pv[4];
        UNROLL for (int i = 0; i < n; i++) pv[i] = vld1q_f32(p + i * BLOCK + j);
#endif
        ACCUMULATE_STEP(0) ACCUMULATE_STEP(1) ACCUMULATE_STEP(2) ACCUMULATE_STEP(3)
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

INLINE void accumulate(const int n, const int dt, const Block *b, int64_t D, int64_t j0, int64_t j1, const float *p, float *o) {
    if (j0 >= j1) return;
    int64_t d = 0;
    for (; d + 4 * VL <= D; d += 4 * VL)
        accumulate_vectors(n, dt, b, j0, j1, d, p, o, 4, values_ahead(b->next, d / (4 * VL), BLOCK / 4));
    for (; d < D; d += VL) accumulate_vectors(n, dt, b, j0, j1, d, p, o, 1, (Ahead){NULL, 0});
}

/* ---- the running softmax of one query ---- */

/* Positions before and after the visible ones are skipped in steps of SUM_LANES: they would only add zeros. */
static void update_softmax(TileState *w, int64_t i, int64_t start, int64_t D) {
    float *s = w->s[i];
    vf block_max = splat(-INFINITY);
    const int64_t from = max64(0, w->first[i] - start) / SUM_LANES * SUM_LANES;
    const int64_t to = ceil_to(min64(BLOCK, w->last[i] - start), SUM_LANES);
    if (w->soft_cap > 0.0f)
        for (int64_t j = from; j < to; j += VL) store_v(s + j, soft_cap_v(load_v(s + j, F32), w->soft_cap), F32);
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
        block_max = max_number_v(block_max, v);
    }
    const float old_max = w->m[i], top = reduce_max(block_max), new_max = old_max > top ? old_max : top;
    const vf shift = splat(new_max == -INFINITY ? 0.0f : new_max);
    Sum sum = zero_sum();
    for (int64_t j = from; j < to; j += SUM_LANES) {
        vf p[SUM_PARTS];
        UNROLL for (int k = 0; k < SUM_PARTS; k++) p[k] = load_v(s + j + k * VL, F32) - shift;
        exp_all(p, SUM_PARTS);
        UNROLL for (int k = 0; k < SUM_PARTS; k++) {
            store_v(s + j + k * VL, p[k], F32);
            sum.part[k] = sum.part[k] + p[k];
        }
    }
    float rescale[VL];
    store_v(rescale, exp_v(splat(old_max) - shift), F32);
    w->m[i] = new_max;
    w->l[i] = __builtin_fmaf(w->l[i], rescale[0], reduce_sum(sum));
    if (rescale[0] != 1.0f)
        for (int64_t d = 0; d < D; d += VL) store_v(w->o[i] + d, load_v(w->o[i] + d, F32) * splat(rescale[0]), F32);
}

/* ---- one block for all queries of the tile ---- */

INLINE void attend_queries(TileState *w, const int dt, const Block *b, int64_t i, const int n, int64_t start, int64_t D, int64_t Dv) {
    int64_t low = 0, high = BLOCK, from = BLOCK, used = 0; /* low .. high-1 are visible to all n queries, from .. used-1 to any */
    for (int64_t k = i; k < i + n; k++) {
        low = max64(low, w->first[k] - start);
        from = min64(from, max64(0, w->first[k] - start));
        high = min64(high, w->last[k] - start);
        used = max64(used, min64(BLOCK, w->last[k] - start));
    }
    if (from >= used) return;
    score(n, dt, b, D, from, used, w->q[i], w->s[i]);
    for (int64_t k = i; k < i + n; k++)
        if (w->last[k] > start && w->first[k] < start + BLOCK) update_softmax(w, k, start, Dv);
    const int has_shared = low < high;
    for (int64_t k = i; k < i + n; k++) {
        const int64_t end = min64(BLOCK, w->last[k] - start), begin = max64(0, w->first[k] - start);
        accumulate(1, dt, b, Dv, begin, has_shared ? min64(low, end) : end, w->s[k], w->o[k]);
    }
    if (!has_shared) return;
    accumulate(n, dt, b, Dv, low, high, w->s[i], w->o[i]);
    for (int64_t k = i; k < i + n; k++) accumulate(1, dt, b, Dv, high, min64(BLOCK, w->last[k] - start), w->s[k], w->o[k]);
}

INLINE void attend_block(TileState *w, const int dt, const Block *b, int64_t queries, int64_t start, int64_t D, int64_t Dv) {
    int64_t i = 0;
    for (; i + 4 <= queries; i += 4) attend_queries(w, dt, b, i, 4, start, D, Dv);
    switch (queries - i) {
        case 3: attend_queries(w, dt, b, i, 3, start, D, Dv); break;
        case 2: attend_queries(w, dt, b, i, 2, start, D, Dv); break;
        case 1: attend_queries(w, dt, b, i, 1, start, D, Dv); break;
    }
}

static void attend_block_f32(TileState *w, const Block *b, int64_t n, int64_t start, int64_t D, int64_t Dv) {
    attend_block(w, F32, b, n, start, D, Dv);
}
static void attend_block_bf16(TileState *w, const Block *b, int64_t n, int64_t start, int64_t D, int64_t Dv) {
    attend_block(w, BF16, b, n, start, D, Dv);
}
static void attend_block_f16(TileState *w, const Block *b, int64_t n, int64_t start, int64_t D, int64_t Dv) {
    attend_block(w, F16, b, n, start, D, Dv);
}

INLINE void widen_row(float *out, const void *in, int64_t count, const int dt) {
    FOR_EACH_VECTOR(count, store_partial(out + i, load_partial(at(in, i, dt), n, dt), n, F32);)
}

/* Copy the block as fp32, dimensions padded to whole vectors, so that it is widened once for
 * many queries. */
INLINE Block copy_block(TileState *w, const Block *b, int64_t D, int64_t Dv, int64_t used, const int dt) {
    Block copy = {.keys = {(char *)w->keys}, .run = BLOCK, .key_stride = BLOCK};
    for (int64_t j = 0, run_index = 0; j < used; j += b->run, run_index++)
        for (int64_t d = 0; d < D; d++)
            widen_row(w->keys + d * BLOCK + j, at(b->keys[run_index], d * b->key_stride, dt), b->run, dt);
    for (int64_t d = D; d < ceil_to(D, 4); d++) memset(w->keys + d * BLOCK, 0, BLOCK * sizeof(float));
    for (int64_t j = 0; j < used; j++) {
        float *value = w->values + j * Dv;
        copy.values[j] = (char *)value;
        widen_row(value, b->values[j], D, dt);
        for (int64_t d = D; d < Dv; d++) value[d] = 0.0f;
    }
    return copy;
}

static Block locate_block(const Attention *a, const Tile *t, int64_t start, int64_t end) {
    Block b = {.run = min64(a->page, BLOCK), .key_stride = a->page};
    b.run_bytes = a->page <= BLOCK ? a->D * a->page * size_of(a->dt) : 0;
    const int32_t *pages = a->page_table + t->span * a->max_pages;
    for (int64_t j = start, run_index = 0; j < min64(end, start + BLOCK); j += b.run, run_index++) {
        const int64_t base = ((int64_t)pages[j / a->page] * a->kv_heads + t->kv_head) * a->D * a->page;
        b.keys[run_index] = at(a->keys, base + j % a->page, a->dt);
        for (int64_t k = 0; k < b.run; k++)
            b.values[run_index * b.run + k] = at(a->values, base + (j % a->page + k) * a->D, a->dt);
    }
    return b;
}

/* The first block that a query at position p sees. */
INLINE int64_t first_block(const Attention *a, int64_t p) {
    return a->window > 0 ? max64(0, p + 1 - a->window) / BLOCK * BLOCK : 0;
}

/* The first block of a tile of one token. */
static Block locate_first_block(const Attention *a, const Tile *t) {
    const int64_t p = a->positions[t->row];
    return locate_block(a, t, first_block(a, p), p + 1);
}

INLINE void prefetch_block(const Block *b) {
    for (int64_t i = 0; i * b->run < BLOCK; i++) {
        Ahead keys = keys_ahead(b, i, 1), values = values_ahead(b, i, 1);
        prefetch(&keys), prefetch(&values);
    }
}

static void init_queries(const Attention *a, const Tile *t, TileState *w, int64_t Dv) {
    w->soft_cap = a->soft_cap;
    for (int64_t r = 0, i = 0; r < t->rows; r++)
        for (int64_t h = 0; h < t->group; h++, i++) {
            const int64_t row = t->row + r, p = a->positions[row];
            const int64_t start = row * a->q_stride + (t->head + h) * a->D;
            if (a->dt == F32) widen_row(w->q[i], at(a->q, start, F32), a->D, F32);
            else if (a->dt == BF16) widen_row(w->q[i], at(a->q, start, BF16), a->D, BF16);
            else widen_row(w->q[i], at(a->q, start, F16), a->D, F16);
            for (int64_t d = 0; d < a->D; d++) w->q[i][d] *= a->scale;
            for (int64_t d = a->D; d < ceil_to(a->D, 4); d++) w->q[i][d] = 0.0f; /* scores are computed in steps of four */
            for (int64_t d = 0; d < Dv; d++) w->o[i][d] = 0.0f;
            w->m[i] = a->sinks ? a->sinks[t->head + h] : -INFINITY;
            w->l[i] = a->sinks ? 1.0f : 0.0f;
            w->last[i] = p + 1;
            w->first[i] = a->window > 0 ? max64(0, p + 1 - a->window) : 0;
        }
}

static void write_outputs(const Attention *a, const Tile *t, const TileState *w) {
    for (int64_t r = 0, i = 0; r < t->rows; r++)
        for (int64_t h = 0; h < t->group; h++, i++) {
            char *out = a->out + ((t->row + r) * a->heads + t->head + h) * a->D * size_of(a->dt);
            for (int64_t d = 0; d < a->D; d += VL) {
                const vf v = load_v(w->o[i] + d, F32) / splat(w->l[i]);
                if (a->dt == F32) store_partial(out + d * 4, v, a->D - d, F32);
                else if (a->dt == BF16) store_partial(out + d * 2, v, a->D - d, BF16);
                else store_partial(out + d * 2, v, a->D - d, F16);
            }
        }
}

/* after: the tile that this thread attends next, or NULL; its first block is prefetched. */
static void attend_tile(const Attention *a, const Tile *t, const Tile *after, TileState *w) {
    const int64_t queries = t->rows * t->group, Dv = ceil_to(a->D, VL);
    init_queries(a, t, w, Dv);
    const int64_t end = w->last[queries - 1]; /* tokens of a span are ordered by position */
    const int is_copied = queries > 4 || Dv != a->D || a->D % 4 != 0 || a->page % VL != 0;
    const int64_t begin = first_block(a, a->positions[t->row]);
    Block next = locate_block(a, t, begin, end);
    for (int64_t start = begin; start < end; start += BLOCK) {
        Block b = next;
        const int64_t used = min64(BLOCK, end - start);
        if (start + BLOCK < end) next = locate_block(a, t, start + BLOCK, end), b.next = &next;
        else if (after) next = locate_first_block(a, after), b.next = &next;
        if (is_copied && a->dt == F32) b = copy_block(w, &b, a->D, Dv, used, F32);
        else if (is_copied && a->dt == BF16) b = copy_block(w, &b, a->D, Dv, used, BF16);
        else if (is_copied) b = copy_block(w, &b, a->D, Dv, used, F16);
        if (is_copied || a->dt == F32) attend_block_f32(w, &b, queries, start, a->D, Dv);
        else if (a->dt == BF16) attend_block_bf16(w, &b, queries, start, a->D, Dv);
        else attend_block_f16(w, &b, queries, start, a->D, Dv);
    }
    write_outputs(a, t, w);
}

/* List the tiles of all spans, at most `rows` tokens and `group` heads each. In a pass of single tokens the
 * tiles after the first `num_whole` have `part` heads, so that the threads have equal work. */
typedef struct {
    int64_t rows, group, num_whole, part;
} Tiling;

/* With out == NULL count them. */
static int64_t list_tiles(const Attention *a, const Tiling *tiling, Tile *out) {
    const int64_t heads_per_kv = a->heads / a->kv_heads;
    int64_t n = 0, num_groups = 0;
    for (int64_t s = 0; s < a->spans; s++)
        for (int64_t row = a->span_starts[s]; row < a->span_starts[s + 1]; row += tiling->rows)
            for (int64_t h = 0; h < a->heads; h += tiling->group, num_groups++) {
                const int64_t step = num_groups < tiling->num_whole ? tiling->group : tiling->part, end = h + tiling->group;
                for (int64_t first = h; first < end; first += step, n++)
                    if (out) out[n] = (Tile){s, row, min64(tiling->rows, a->span_starts[s + 1] - row), h / heads_per_kv, first, min64(step, end - first)};
            }
    return n;
}

Tiles attention_tiles(const Attention *a, int64_t threads) {
    static __thread void *buffer;
    static __thread size_t capacity;
    const int64_t num_real = a->span_starts[a->spans], heads_per_kv = a->heads / a->kv_heads;
    Tiling tiling = {.group = min64(heads_per_kv, MAX_QUERIES), .num_whole = INT64_MAX};
    while (heads_per_kv % tiling.group) tiling.group--;
    tiling.rows = max64(1, MAX_QUERIES / tiling.group);
    int64_t count = list_tiles(a, &tiling, NULL);
    if (num_real == a->spans && count % threads > 0) {
        const int64_t num_left = count % threads, parts = min64(tiling.group, (threads + num_left - 1) / num_left);
        tiling.num_whole = count - num_left;
        tiling.part = (tiling.group + parts - 1) / parts;
        count = list_tiles(a, &tiling, NULL);
    }
    Tile *tiles = scratch(&buffer, &capacity, (size_t)count * sizeof(Tile));
    list_tiles(a, &tiling, tiles);
    int64_t keys_read = 0;
    for (int64_t r = 0; r < num_real; r++) keys_read += a->positions[r] + 1;
    return (Tiles){tiles, count, keys_read * a->heads * a->D};
}

void team_attention(const Attention *a, const Tiles *tiles) {
    static __thread void *work;
    static __thread size_t capacity;
    TileState *state = scratch(&work, &capacity, sizeof(TileState));
    const int64_t num_real = a->span_starts[a->spans], row_bytes = a->heads * a->D * size_of(a->dt);
#pragma omp master
    memset(a->out + num_real * row_bytes, 0, (size_t)((a->rows - num_real) * row_bytes));
    if (num_real == a->spans) { /* single tokens: each thread knows its next tile */
        const int64_t step = omp_get_num_threads();
        for (int64_t i = omp_get_thread_num(); i < tiles->count; i += step)
            attend_tile(a, &tiles->tiles[i], i + step < tiles->count ? &tiles->tiles[i + step] : NULL, state);
        return;
    }
#pragma omp for schedule(dynamic, 1) nowait
    for (int64_t i = 0; i < tiles->count; i++)
        attend_tile(a, &tiles->tiles[tiles->count - 1 - i], NULL, state); /* the last tiles of a span take longest, so they start first */
}

void team_prefetch_kv(const Attention *a, const Tiles *tiles) {
    if (a->span_starts[a->spans] != a->spans || omp_get_thread_num() >= tiles->count) return;
    const Block b = locate_first_block(a, &tiles->tiles[omp_get_thread_num()]);
    prefetch_block(&b);
}

void run_attention(const Attention *a, int64_t threads) {
    const Tiles tiles = attention_tiles(a, threads);
    TEAM(threads, tiles.num_products > MIN_PARALLEL_PRODUCTS, team_attention(a, &tiles));
}
