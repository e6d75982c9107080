/* y = x W^T + b for W in GGUF's quantised blocks: the product defined in blocks.h.
 *
 * Blocks are repacked at load, in panels of 16 columns (block_panel.h). One and two rows read the panels as they
 * are; so do Q4, Q5 and Q8 with one tile of rows (block_tile.h). More rows read weights of one byte and scales of
 * fp32, made once for each block of rows and block of k. */
#include "block_amx.h"
#include "block_tile.h"
#include "blocks.h"
#include "kernels.h"
#include "simd.h"

#define BLOCK_ROWS 128  /* rows of x that stay in the L2 cache while all panels are read */
#define BLOCK_GROUPS 32 /* groups of k, of a panel and of a tile, that stay in the L1 cache */
#define DIRECT_ROWS 2

API const char *holdfast_block_form(void) { return block_amx_ready() ? "amx-int8" : BLOCK_FORM; }

API int64_t holdfast_block_bytes(int64_t type, int64_t N, int64_t K) {
    return num_panels(N) * panel_bytes((int)type, K);
}

#define PACK(type) case type: pack_column(panel, row, c, K, type); break;

/* Pack w, N rows of K numbers in blocks, into panels. */
void run_block_pack(void *packed, const void *w, int64_t N, int64_t K, int64_t type, int64_t threads) {
    const int64_t bytes = panel_bytes((int)type, K), stride = row_bytes((int)type, K);
#pragma omp parallel for num_threads((int)threads) schedule(static)
    for (int64_t p = 0; p < num_panels(N); p++) {
        uint8_t *panel = (uint8_t *)packed + p * bytes;
        if (N - p * COLUMNS < COLUMNS) memset(panel, 0, (size_t)bytes);
        for (int64_t c = 0; c < min64(COLUMNS, N - p * COLUMNS); c++) {
            const uint8_t *row = (const uint8_t *)w + (p * COLUMNS + c) * stride;
            switch (type) { PACK(Q4_0) PACK(Q4_1) PACK(Q5_0) PACK(Q5_1) PACK(Q8_0) PACK(Q4_K) PACK(Q5_K) PACK(Q6_K) }
        }
    }
}

/* ---- the product ---- */

/* Part of a weight: consecutive columns of one format. A packed weight begins with a BlockWeight. */
typedef struct {
    int64_t type, columns, start; /* start: bytes from the beginning of the weight to its panels */
} BlockPart;

typedef struct {
    int64_t num_parts;
    BlockPart parts[5]; /* what a recurrent layer reads: qkv, a, b and z of a delta rule */
} BlockWeight;

typedef struct {
    void *y; /* [M, N] */
    const float *bias;
    int64_t N;
    int out_dt;
} Output;

INLINE void store_row(void *y, const float *sums, const float *bias, int64_t columns, const int dt) {
    UNROLL for (int c = 0; c < COLUMNS; c += VL) {
        const int64_t n = columns - c;
        if (n <= 0) return;
        vf v = load_v(sums + c, F32);
        if (bias) v = v + load_partial(bias + c, n, F32);
        v = select_v((vi)(v == v), v, (vf)splat_i((int32_t)NAN_BITS));
        store_partial(at_mut(y, c, dt), v, n, dt);
    }
}

INLINE void store_rows(const Output *out, const float *sums, int64_t rows, int64_t columns, int64_t row, int64_t column, const int dt) {
    for (int64_t r = 0; r < rows; r++) {
        void *y = at_mut(out->y, (row + r) * out->N + column, dt);
        if (columns == COLUMNS && out->bias == NULL) store_row(y, sums + r * COLUMNS, NULL, COLUMNS, dt);
        else store_row(y, sums + r * COLUMNS, out->bias ? out->bias + column : NULL, columns, dt);
    }
}

static void store_tile(const Output *out, const float *sums, int64_t rows, int64_t columns, int64_t row, int64_t column) {
    if (out->out_dt == F32) store_rows(out, sums, rows, columns, row, column, F32);
    else if (out->out_dt == BF16) store_rows(out, sums, rows, columns, row, column, BF16);
    else store_rows(out, sums, rows, columns, row, column, F16);
}

/* Scratch of one thread: the sums of a block of rows, and weights and scales of a block of k. */
typedef struct {
    float sums[BLOCK_ROWS * COLUMNS];
    uint8_t weights[BLOCK_GROUPS * WEIGHT_BYTES], scales[BLOCK_GROUPS * SCALE_BYTES];
} PanelScratch;

#define WIDEN(type) case type: widen_groups(s->weights, s->scales, part, w->groups, type); break;

/* Tiles t0 .. t1-1 of M rows by one panel whose first column is `column`. */
static void run_panel(const Rows *x, const Output *out, int type, const uint8_t *panel, PanelScratch *s, int64_t t0, int64_t t1, int64_t M,
                      int64_t columns, int64_t column) {
    memset(s->sums, 0, (size_t)((t1 - t0) * x->pitch * COLUMNS) * sizeof(float));
    if (M <= DIRECT_ROWS) {
        const Weights whole = {.weights = panel, .groups = x->groups};
        direct_tile(M, type, x->data, &whole, s->sums);
        store_tile(out, s->sums, M, columns, 0, column);
        return;
    }
    const int is_amx = x->pitch == AMX_ROWS;
    const int is_packed = !is_amx && t1 - t0 == 1 && type < Q4_K; /* a copy pays from two tiles on; K formats have more to compute */
    for (int64_t g = 0; g < x->groups; g += BLOCK_GROUPS) {
        const uint8_t *part = panel + panel_bytes(type, g * GROUP);
        Weights blocks = {.weights = part, .groups = min64(BLOCK_GROUPS, x->groups - g)}, *w = &blocks;
        w->next = part + panel_bytes(type, w->groups * GROUP);
        w->next_bytes = panel_bytes(type, x->K) / x->groups;
        if (!is_packed) {
            switch (type) { WIDEN(Q4_0) WIDEN(Q4_1) WIDEN(Q5_0) WIDEN(Q5_1) WIDEN(Q8_0) WIDEN(Q4_K) WIDEN(Q5_K) WIDEN(Q6_K) }
            w->weights = type == Q8_0 ? part + head_bytes(Q8_0) : s->weights;
            w->scales = s->scales;
            w->stride = type == Q8_0 ? head_bytes(Q8_0) + group_bytes(Q8_0) : WEIGHT_BYTES;
        }
        for (int64_t t = t0; t < t1; t++) {
            float *sums = s->sums + (t - t0) * x->pitch * COLUMNS;
            const int64_t rows = min64(x->pitch, M - t * x->pitch);
            if (is_amx) block_amx_tile(type, rows_group(x, t, g), w, sums);
            else if (is_packed) packed_tile(rows, type, rows_group(x, t, g), w, sums);
            else wide_tile(rows, type, rows_group(x, t, g), w, sums);
            w->next = part, w->next_bytes = 0; /* prefetched with the first tile */
        }
    }
    for (int64_t t = t0; t < t1; t++)
        store_tile(out, s->sums + (t - t0) * x->pitch * COLUMNS, min64(x->pitch, M - t * x->pitch), columns, t * x->pitch, column);
}

/* All rows by panels p0 .. p1-1 of a part whose first column is `column`. */
static void run_part(const Rows *x, const Output *out, const BlockPart *part, const uint8_t *weight, int64_t M, int64_t p0, int64_t p1,
                     int64_t column) {
    static __thread void *buffer;
    static __thread size_t capacity;
    PanelScratch *s = scratch(&buffer, &capacity, sizeof *s);
    const int64_t bytes = panel_bytes((int)part->type, x->K), tiles = ceil_to(M, x->pitch) / x->pitch, step = BLOCK_ROWS / x->pitch;
    for (int64_t t = 0; t < tiles; t += step)
        for (int64_t p = p0; p < p1; p++)
            run_panel(x, out, (int)part->type, weight + part->start + p * bytes, s, t, min64(t + step, tiles), M,
                      min64(COLUMNS, part->columns - p * COLUMNS), column + p * COLUMNS);
}

static void team_quantize(const Rows *rows, const void *x, int64_t stride, int64_t M, int dt) {
    const int64_t part = PART_LEN / GROUP, parts = ceil_to(rows->groups, part) / part;
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < M * parts; i++) {
        const int64_t m = i / parts, first = i % parts * part, end = min64(rows->groups, first + part);
        if (dt == F32) quantize_part(rows, m, at(x, m * stride, F32), first, end, F32);
        else if (dt == BF16) quantize_part(rows, m, at(x, m * stride, BF16), first, end, BF16);
        else quantize_part(rows, m, at(x, m * stride, F16), first, end, F16);
    }
}

/* The share `index` of `count` equal shares of all panels. */
static void run_share(const Rows *x, const Output *out, const BlockWeight *weight, int64_t M, int64_t index, int64_t count) {
    int64_t total = 0, first = 0, column = 0;
    for (int64_t i = 0; i < weight->num_parts; i++) total += num_panels(weight->parts[i].columns);
    const int64_t begin = total * index / count, end = total * (index + 1) / count;
    if (x->pitch == AMX_ROWS) block_amx_begin();
    for (int64_t i = 0; i < weight->num_parts; i++) {
        const BlockPart *part = &weight->parts[i];
        const int64_t panels = num_panels(part->columns), p0 = max64(begin - first, 0), p1 = min64(end - first, panels);
        if (p0 < p1) run_part(x, out, part, (const uint8_t *)weight, M, p0, p1, column);
        first += panels;
        column += part->columns;
    }
    if (x->pitch == AMX_ROWS) block_amx_end();
}

/* AMX pays where the other forms need two tiles. */
INLINE int64_t pitch_of(int64_t M) { return M <= DIRECT_ROWS ? M : M > TILE_ROWS && block_amx_ready() ? AMX_ROWS : TILE_ROWS; }
int64_t block_linear_bytes(int64_t M, int64_t K) { return ceil_to(M, pitch_of(M)) * (K / GROUP) * ROW_BYTES; }

void team_block_linear(const Product *p) {
    const Rows rows = {p->rows, p->K, p->K / GROUP, pitch_of(p->M)};
    const Output out = {p->y, p->bias, p->N, (int)p->out_dt};
    team_quantize(&rows, p->x, p->stride, p->M, (int)p->dt);
    BARRIER
    run_share(&rows, &out, p->packed, p->M, omp_get_thread_num(), omp_get_num_threads());
}

void run_block_linear(void *y, const void *x, int64_t stride, const void *packed, const float *bias, int64_t M, int64_t N,
                      int64_t K, int64_t dt, int64_t out_dt, int64_t threads) {
    static __thread void *buffer;
    static __thread size_t capacity;
    if (M <= 0) return;
    void *rows = scratch(&buffer, &capacity, (size_t)block_linear_bytes(M, K));
    const Product p = {y, x, stride, packed, bias, M, N, K, dt, out_dt, rows};
    TEAM(threads, M * N * K > MIN_PARALLEL_PRODUCTS, team_block_linear(&p));
}

/* out [rows, K] of dtype dt: the rows `ids` of a packed weight of one part, as run_block_rows. */
void run_packed_rows(void *out, const void *packed, const int64_t *ids, int64_t rows, int64_t K, int64_t dt) {
    const BlockPart *part = &((const BlockWeight *)packed)->parts[0];
    const int type = (int)part->type;
    for (int64_t r = 0; r < rows; r++) {
        const uint8_t *panel = (const uint8_t *)packed + part->start + ids[r] / COLUMNS * panel_bytes(type, K);
        for (int64_t g = 0; g < K / GROUP; g++) {
            Group group;
            unpack_group(&group, panel, ids[r] % COLUMNS, g, type);
            write_group(out, r * K + g * GROUP, &group, type, (int)dt);
        }
    }
}
