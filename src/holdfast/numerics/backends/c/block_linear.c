/* y = x W^T + b for W in GGUF's quantised blocks: the product defined in blocks.h.
 *
 * Blocks are repacked at load, in panels of 16 columns, in the order they are read. A group of 32 k
 * has eight k-groups of four; byte 4 c + i of a plane of 64 bytes belongs to column c and k i:
 *
 *     scale fp16 [16] | offset fp16 [16], if the format has offsets       of a block
 *     scales u8 [16] | offset scales u8 [16], or Q6_K: scales i8 [2][16]  of each group, K formats
 *     nibbles u8 [4][64]: k-group i in the low half, k-group i + 4 in the high half
 *     Q5: bits u8 [64], bit g of k-group g;  Q6_K: pairs u8 [2][64], the pair i of k-group 4 h + i
 *     Q8_0: i8 [8][64] instead
 *
 * This takes the bytes of the file; Q4_K and Q5_K take 3 % more, as their 6-bit scales become bytes.
 * One and two rows read the panels as they are; so do Q8_0 always and Q4 and Q5 with one tile of rows. More
 * rows read a copy of the panel with one byte per weight, made once per block of rows. */
#include "block_dot.h"
#include "blocks.h"
#include "kernels.h"
#include "simd.h"

#define COLUMNS 16
#define PLANE (4 * COLUMNS)
#define VECTORS (COLUMNS / VL)
#define TILE_ROWS (VL == 8 ? 4 : 8)
#define BLOCK_TILES (128 / TILE_ROWS) /* tiles of x that stay in the L2 cache while all panels are read */
#define DIRECT_ROWS 2

API const char *holdfast_block_form(void) { return BLOCK_FORM; }

/* ---- the layout of a panel ---- */

INLINE int head_bytes(const int type) { return has_offsets(type) ? 4 * COLUMNS : 2 * COLUMNS; }
INLINE int group_head_bytes(const int type) { return type >= Q4_K ? 2 * COLUMNS : 0; }
INLINE int group_bytes(const int type) {
    const int planes = type == Q8_0 ? 8 : type == Q5_0 || type == Q5_1 || type == Q5_K ? 5 : type == Q6_K ? 6 : 4;
    return group_head_bytes(type) + planes * PLANE;
}
INLINE int64_t panel_bytes(const int type, int64_t K) {
    return K / (GROUP * block_groups(type)) * (head_bytes(type) + block_groups(type) * group_bytes(type));
}
INLINE int64_t num_panels(int64_t N) { return ceil_to(N, COLUMNS) / COLUMNS; }

API int64_t holdfast_block_bytes(int64_t type, int64_t N, int64_t K) {
    return num_panels(N) * panel_bytes((int)type, K);
}

static void pack_quants(uint8_t *planes, const Group *group, int64_t column, int type) {
    for (int k = 0; k < GROUP; k++) {
        const int g = k / 4, i = g % 4;
        const int64_t byte = 4 * column + k % 4;
        const int q = group->q[k];
        if (type == Q8_0) {
            planes[g * PLANE + byte] = (uint8_t)(q + Q8_ZERO);
            continue;
        }
        planes[i * PLANE + byte] |= (uint8_t)((q & 15) << (g < 4 ? 0 : 4));
        if (type == Q6_K) planes[(4 + g / 4) * PLANE + byte] |= (uint8_t)((q >> 4) << (2 * i));
        else if (q >> 4) planes[4 * PLANE + byte] |= (uint8_t)(1 << g);
    }
}

static void pack_column(uint8_t *panel, const uint8_t *row, int64_t column, int64_t K, int type) {
    const int per_block = block_groups(type);
    for (int64_t g = 0; g < K / GROUP; g++) {
        uint8_t *block = panel + g / per_block * (head_bytes(type) + per_block * group_bytes(type));
        uint8_t *head = block + head_bytes(type) + g % per_block * group_bytes(type);
        Group group;
        read_group(&group, row, g, type);
        memcpy(block + 2 * column, &group.scale, 2);
        if (has_offsets(type)) memcpy(block + 2 * (COLUMNS + column), &group.offset, 2);
        if (type >= Q4_K) {
            head[column] = (uint8_t)group.scales[0];
            head[COLUMNS + column] = type == Q6_K ? (uint8_t)group.scales[1] : group.offset_scale;
        }
        pack_quants(head + group_head_bytes(type), &group, column, type);
    }
}

/* Pack w, N rows of K numbers in blocks, into panels. */
void run_block_pack(void *packed, const void *w, int64_t N, int64_t K, int64_t type, int64_t threads) {
    const int64_t bytes = panel_bytes((int)type, K), stride = row_bytes((int)type, K);
#pragma omp parallel for num_threads((int)threads) schedule(static)
    for (int64_t p = 0; p < num_panels(N); p++) {
        uint8_t *panel = (uint8_t *)packed + p * bytes;
        memset(panel, 0, (size_t)bytes);
        for (int64_t c = 0; c < min64(COLUMNS, N - p * COLUMNS); c++)
            pack_column(panel, (const uint8_t *)w + (p * COLUMNS + c) * stride, c, K, (int)type);
    }
}

/* The inverse of pack_column for one group. */
static void unpack_group(Group *group, const uint8_t *panel, int64_t column, int64_t index, int type) {
    const int per_block = block_groups(type);
    const uint8_t *block = panel + index / per_block * (head_bytes(type) + per_block * group_bytes(type));
    const uint8_t *head = block + head_bytes(type) + index % per_block * group_bytes(type);
    const uint8_t *planes = head + group_head_bytes(type);
    memcpy(&group->scale, block + 2 * column, 2);
    group->offset = 0;
    if (has_offsets(type)) memcpy(&group->offset, block + 2 * (COLUMNS + column), 2);
    group->scales[0] = type >= Q4_K ? (int8_t)head[column] : 1;
    group->scales[1] = type == Q6_K ? (int8_t)head[COLUMNS + column] : group->scales[0];
    group->offset_scale = type >= Q4_K ? head[COLUMNS + column] : 1;
    for (int k = 0; k < GROUP; k++) {
        const int g = k / 4, i = g % 4;
        const int64_t byte = 4 * column + k % 4;
        if (type == Q8_0) {
            group->q[k] = (uint8_t)(planes[g * PLANE + byte] - Q8_ZERO);
            continue;
        }
        int q = g < 4 ? planes[i * PLANE + byte] & 15 : planes[i * PLANE + byte] >> 4;
        if (type == Q6_K) q |= (planes[(4 + g / 4) * PLANE + byte] >> (2 * i) & 3) << 4;
        else if (type == Q5_0 || type == Q5_1 || type == Q5_K) q |= (planes[4 * PLANE + byte] >> g & 1) << 4;
        group->q[k] = (uint8_t)q;
    }
}

/* ---- reading a panel ---- */

/* How a tile reads its weights: a format, or a copy with one byte per weight. The copy has groups of
 *
 *     i8 [8][64] | scale fp32 [16] | offset fp32 [16], or the scales of Q6_K int32 [2][16] */
enum { COPY = 64, COPY_OFFSETS = 65, COPY_HALVES = 66 };
#define COPY_BYTES (8 * PLANE + 3 * COLUMNS * 4)

INLINE int is_copy(const int form) { return form >= COPY; }
INLINE int form_has_offsets(const int form) { return form == COPY_OFFSETS || (!is_copy(form) && has_offsets(form)); }
INLINE int form_has_halves(const int form) { return form == COPY_HALVES || form == Q6_K; }

INLINE vi load_plane(const uint8_t *p) {
    vi v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* The weights of k-group 4 h + i, of the columns from `at` / 4 on. */
INLINE vi load_weights(const uint8_t *planes, const int h, const int i, int64_t at, const int form) {
    if (is_copy(form) || form == Q8_0) return load_plane(planes + (4 * h + i) * PLANE + at);
    vu v = (vu)load_plane(planes + i * PLANE + at);
    v = (h ? v >> 4 : v) & 0x0f0f0f0fu;
    if (form == Q6_K) {
        const vu pairs = (vu)load_plane(planes + (4 + h) * PLANE + at);
        v |= (i < 2 ? pairs << (4 - 2 * i) : pairs >> (2 * i - 4)) & 0x30303030u;
    } else if (form == Q5_0 || form == Q5_1 || form == Q5_K) {
        const vu bits = (vu)load_plane(planes + 4 * PLANE + at);
        v |= (h ? bits >> i : bits << (4 - i)) & 0x10101010u;
    }
    return (vi)v;
}

typedef struct {
    vf scale, offset;
    vi halves[2];
} Scales;

/* The scales of VL columns from `column` on. */
INLINE Scales load_scales(const uint8_t *block, const uint8_t *group, int64_t column, const int form) {
    Scales s = {splat(0.0f), splat(0.0f), {{0}, {0}}};
    if (is_copy(form)) {
        const uint8_t *scales = group + 8 * PLANE + 4 * column;
        s.scale = (vf)load_plane(scales);
        if (form == COPY_OFFSETS) s.offset = (vf)load_plane(scales + PLANE);
        if (form == COPY_HALVES) s.halves[0] = load_plane(scales + PLANE), s.halves[1] = load_plane(scales + 2 * PLANE);
        return s;
    }
    s.scale = load_v(block + 2 * column, F16);
    if (has_offsets(form)) s.offset = load_v(block + 2 * (COLUMNS + column), F16);
    if (form == Q6_K) {
        s.halves[0] = load_i8((const int8_t *)group + column);
        s.halves[1] = load_i8((const int8_t *)group + COLUMNS + column);
    } else if (form >= Q4_K) {
        s.scale = s.scale * float_v(load_u8(group + column));
        s.offset = -(s.offset * float_v(load_u8(group + COLUMNS + column)));
    }
    return s;
}

/* Copy a panel to one byte per weight. */
INLINE void expand_panel(uint8_t *copy, const uint8_t *panel, int64_t K, const int type) {
    const int per_block = block_groups(type);
    for (int64_t g = 0; g < K / GROUP; g++, copy += COPY_BYTES) {
        const uint8_t *block = panel + g / per_block * (head_bytes(type) + per_block * group_bytes(type));
        const uint8_t *group = block + head_bytes(type) + g % per_block * group_bytes(type);
        UNROLL for (int v = 0; v < VECTORS; v++) {
            UNROLL for (int j = 0; j < 8; j++) {
                const vi w = load_weights(group + group_head_bytes(type), j / 4, j % 4, 4 * VL * v, type);
                memcpy(copy + j * PLANE + 4 * VL * v, &w, sizeof w);
            }
            const Scales s = load_scales(block, group, VL * v, type);
            uint8_t *scales = copy + 8 * PLANE + 4 * VL * v;
            memcpy(scales, &s.scale, sizeof s.scale);
            if (has_offsets(type)) memcpy(scales + PLANE, &s.offset, sizeof s.offset);
            if (type == Q6_K) {
                memcpy(scales + PLANE, &s.halves[0], sizeof(vi));
                memcpy(scales + 2 * PLANE, &s.halves[1], sizeof(vi));
            }
        }
    }
}

/* ---- activations ---- */

/* Quantised rows, in tiles of `pitch` rows; the last tile may be shorter, and tiles read past its end.
 * A group of a tile:
 *
 *     q i8 [pitch][32] | steps fp32 [pitch] | sums fp32 [pitch] | halves int32 [2][pitch]
 *
 * With ROW_PAIRS, two rows alternate every eight numbers: q i8 [pitch / 2][4][2][8]. */
typedef struct {
    uint8_t *data; /* [tiles][groups] */
    int64_t K, groups, pitch;
} Rows;

enum { ROW_BYTES = GROUP + 4 * 4 };
INLINE float *steps_of(uint8_t *group, int64_t pitch) { return (float *)(group + pitch * GROUP); }
INLINE float *sums_of(uint8_t *group, int64_t pitch) { return steps_of(group, pitch) + pitch; }
INLINE int32_t *halves_of(uint8_t *group, int64_t pitch) { return (int32_t *)(sums_of(group, pitch) + pitch); }

INLINE void quantize_row(const Rows *rows, int64_t row, const void *x, const int dt) {
    const int64_t pitch = rows->pitch, r = row % pitch;
    uint8_t *group = rows->data + row / pitch * rows->groups * pitch * ROW_BYTES;
    for (int64_t g = 0; g < rows->groups; g++, group += pitch * ROW_BYTES) {
        float values[GROUP];
        GroupSums sums;
        UNROLL for (int i = 0; i < GROUP; i += VL) store_v(values + i, load_v(at(x, g * GROUP + i, dt), dt), F32);
        int8_t q[GROUP];
        quantize_group(q, &sums, values);
        if (ROW_PAIRS && pitch > 1)
            for (int i = 0; i < 4; i++) memcpy(group + r / 2 * 2 * GROUP + 16 * i + r % 2 * 8, q + 8 * i, 8);
        else memcpy(group + r * GROUP, q, GROUP);
        steps_of(group, pitch)[r] = sums.step;
        sums_of(group, pitch)[r] = sums.sum;
        for (int h = 0; h < 2; h++) halves_of(group, pitch)[h * pitch + r] = sums.halves[h];
    }
}

static void quantize_rows(const Rows *rows, const void *x, int64_t stride, int64_t M, int dt, int threads) {
#pragma omp parallel num_threads(threads) if (M * rows->K > 65536)
    {
        DEFAULT_FP;
#pragma omp for schedule(static) nowait
        for (int64_t m = 0; m < M; m++) {
            if (dt == F32) quantize_row(rows, m, at(x, m * stride, F32), F32);
            else if (dt == BF16) quantize_row(rows, m, at(x, m * stride, BF16), BF16);
            else quantize_row(rows, m, at(x, m * stride, F16), F16);
        }
    }
}

/* ---- the tile: `rows` rows by `vectors` vectors of columns ---- */

/* Numbers of the rows of a tile. NEON multiplies by a lane of a register; others broadcast from memory. */
#if VL == 4
typedef struct {
    vf v[2];
} PerRow;
INLINE PerRow load_rows(const float *p, const int rows) {
    PerRow all = {{vld1q_f32(p), vld1q_f32(rows > 4 ? p + 4 : p)}};
    return all;
}
#define ROW(numbers, r) vdupq_n_f32((numbers).v[(r) / 4][(r) % 4])
#else
typedef const float *PerRow;
INLINE PerRow load_rows(const float *p, const int rows) { return (void)rows, p; }
#define ROW(numbers, r) splat((numbers)[r])
#endif

/* A sum of a group is below 2^22. It starts with the bits of 1.5 * 2^23, so that its bits are those of a
 * float: that number plus the sum. A subtraction is faster than a conversion. */
#define SUM_START 0x4b400000

/* Add the products of half `h` of a group to the sums of all rows; `at`: the first byte of the columns in a
 * plane. */
INLINE void add_products(vi sum[8], const int rows, const int64_t pitch, const int form, const int8_t *q, const uint8_t *planes,
                         const int h, int64_t at) {
#if ROW_PAIRS
    if (pitch > 1) {
        PairSum pairs[4];
        UNROLL for (int r = 0; r < rows / 2; r++) pairs[r].low = pairs[r].high = vdupq_n_s32(0);
        UNROLL for (int pair = 0; pair < 2; pair++) {
            const vi w0 = load_weights(planes, h, 2 * pair, at, form), w1 = load_weights(planes, h, 2 * pair + 1, at, form);
            UNROLL for (int r = 0; r < rows / 2; r++)
                pairs[r] = dot_row_pair(pairs[r], w0, w1, vld1q_s8(q + r * 2 * GROUP + 16 * (2 * h + pair)));
        }
        UNROLL for (int r = 0; r < rows / 2; r++) {
            sum[2 * r] = sum[2 * r] + first_row(pairs[r]);
            sum[2 * r + 1] = sum[2 * r + 1] + second_row(pairs[r]);
        }
        return;
    }
#endif
    Half xs[8];
    UNROLL for (int r = 0; r < rows; r++) xs[r] = load_half(q + r * GROUP + 16 * h);
    UNROLL for (int pair = 0; pair < 2; pair++) {
        const vi w0 = load_weights(planes, h, 2 * pair, at, form), w1 = load_weights(planes, h, 2 * pair + 1, at, form);
        UNROLL for (int r = 0; r < rows; r++) sum[r] = dot_pair(sum[r], w0, w1, xs[r], pair, form == Q8_0);
    }
    (void)pitch;
}

/* One group. `q`: the group of the activations; `block`, `weights`: that of the panel. */
INLINE void tile_group(vf acc[8][VECTORS], const int rows, const int64_t pitch, const int vectors, const int form, const int zero,
                       uint8_t *q, const uint8_t *block, const uint8_t *weights, int64_t column) {
    const int32_t *halves = halves_of(q, pitch);
    const uint8_t *planes = weights + (is_copy(form) ? 0 : group_head_bytes(form));
    const PerRow steps = load_rows(steps_of(q, pitch), rows), sums = load_rows(sums_of(q, pitch), rows);
    UNROLL for (int v = 0; v < vectors; v++) {
        const Scales s = load_scales(block, weights, column + VL * v, form);
        vi total[8];
        UNROLL for (int h = 0; h < 2; h++) {
            vi sum[8];
            UNROLL for (int r = 0; r < rows; r++) {
                if (form_has_halves(form)) sum[r] = splat_i(-zero * halves[h * pitch + r]);
                else if (h) sum[r] = total[r];
                else sum[r] = splat_i(zero ? SUM_START - zero * (halves[r] + halves[pitch + r]) : SUM_START);
            }
            add_products(sum, rows, pitch, form, (const int8_t *)q, planes, h, 4 * (column + VL * v));
            UNROLL for (int r = 0; r < rows; r++)
                total[r] = !form_has_halves(form) ? sum[r] : h ? total[r] + sum[r] * s.halves[1] : sum[r] * s.halves[0];
        }
        UNROLL for (int r = 0; r < rows; r++) {
            vf whole = (vf)total[r];
            if (form_has_halves(form)) whole = float_v(total[r]);
            else whole = whole - splat(12582912.0f);
            acc[r][v] = fma_v(whole, s.scale * ROW(steps, r), acc[r][v]);
            if (form_has_offsets(form)) acc[r][v] = fma_v(s.offset, ROW(sums, r), acc[r][v]);
        }
    }
}

/* The rows of tile `index` times the columns of a panel from `column` on. */
INLINE void tile(const int rows, const int64_t pitch, const int vectors, const int form, const int zero, const Rows *x, int64_t index,
                 const uint8_t *panel, int64_t column, float *out) {
    const int per_block = is_copy(form) ? 1 : block_groups(form);
    const int bytes = is_copy(form) ? COPY_BYTES : group_bytes(form), head = is_copy(form) ? 0 : head_bytes(form);
    uint8_t *q = x->data + index * x->groups * pitch * ROW_BYTES;
    vf acc[8][VECTORS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) acc[r][v] = splat(0.0f);
    for (int64_t g = 0; g < x->groups; g += per_block, panel += head + per_block * bytes)
        for (int j = 0; j < per_block; j++, q += pitch * ROW_BYTES)
            tile_group(acc, rows, pitch, vectors, form, zero, q, panel, panel + head + j * bytes, column);
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) store_v(out + r * COLUMNS + column + VL * v, acc[r][v], F32);
}

/* All columns of a panel for one or two rows, from the panel as it is packed. */
#define DIRECT(type)                                                                                                 \
    case type:                                                                                                       \
        if (rows == 1) tile(1, 1, VECTORS, type, type == Q8_0 ? Q8_ZERO : block_zero(type), x, 0, panel, 0, out);       \
        else tile(2, 2, VECTORS, type, type == Q8_0 ? Q8_ZERO : block_zero(type), x, 0, panel, 0, out);                 \
        break;
static void direct_tile(int64_t rows, int type, const Rows *x, const uint8_t *panel, float *out) {
    switch (type) { DIRECT(Q4_0) DIRECT(Q4_1) DIRECT(Q5_0) DIRECT(Q5_1) DIRECT(Q8_0) DIRECT(Q4_K) DIRECT(Q5_K) DIRECT(Q6_K) }
}

/* Rows are rounded up to a size of tiles; the sums of the rows past the end are not stored. */
#define TALL(limit)                                                                                                 \
    if (rows <= limit) {                                                                                            \
        for (int64_t column = 0; column < COLUMNS; column += VL) tile(limit, TILE_ROWS, 1, form, zero, x, index, panel, column, out); \
        return;                                                                                                     \
    }
INLINE void tall_tile(int64_t rows, const int form, const int zero, const Rows *x, int64_t index, const uint8_t *panel, float *out) {
    TALL(2) TALL(4)
#if TILE_ROWS >= 8
    TALL(6) TALL(8)
#endif
}

/* The same from the panel as it is packed. */
#define PACKED(type) \
    case type: tall_tile(rows, type, type == Q8_0 ? Q8_ZERO : block_zero(type), x, index, panel, out); break;
static void packed_tile(int64_t rows, int type, const Rows *x, int64_t index, const uint8_t *panel, float *out) {
    switch (type) { PACKED(Q4_0) PACKED(Q4_1) PACKED(Q5_0) PACKED(Q5_1) PACKED(Q8_0) }
}

/* ---- the product ---- */

/* Part of a weight: consecutive columns of one format. A packed weight begins with a BlockWeight. */
typedef struct {
    int64_t type, columns, start; /* start: bytes from the beginning of the weight to its panels */
} BlockPart;

typedef struct {
    int64_t num_parts;
    BlockPart parts[3];
    int64_t unused[6];
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

/* Tiles t0 .. t1-1 of M rows by one panel whose first column is `column`. `copy`: scratch for a panel. */
static void run_panel(const Rows *x, const Output *out, int type, const uint8_t *panel, uint8_t *copy, int64_t t0, int64_t t1, int64_t M,
                      int64_t columns, int64_t column) {
    float sums[8 * COLUMNS];
    if (M <= DIRECT_ROWS) {
        direct_tile(M, type, x, panel, sums);
        store_tile(out, sums, M, columns, 0, column);
        return;
    }
    if (type == Q8_0 || (t1 - t0 == 1 && type < Q4_K)) { /* a copy pays from two tiles on; K formats have more to compute */
        for (int64_t t = t0; t < t1; t++) {
            const int64_t rows = min64(x->pitch, M - t * x->pitch);
            packed_tile(rows, type, x, t, panel, sums);
            store_tile(out, sums, rows, columns, t * x->pitch, column);
        }
        return;
    }
#define EXPAND(name) case name: expand_panel(copy, panel, x->K, name); break;
    switch (type) { EXPAND(Q4_0) EXPAND(Q4_1) EXPAND(Q5_0) EXPAND(Q5_1) EXPAND(Q4_K) EXPAND(Q5_K) EXPAND(Q6_K) }
    for (int64_t t = t0; t < t1; t++) {
        const int64_t rows = min64(x->pitch, M - t * x->pitch);
        if (type == Q6_K) tall_tile(rows, COPY_HALVES, block_zero(Q6_K), x, t, copy, sums);
        else if (has_offsets(type)) tall_tile(rows, COPY_OFFSETS, 0, x, t, copy, sums);
        else tall_tile(rows, COPY, block_zero(type), x, t, copy, sums);
        store_tile(out, sums, rows, columns, t * x->pitch, column);
    }
}

/* All rows by panels p0 .. p1-1 of a part whose first column is `column`. */
static void run_part(const Rows *x, const Output *out, const BlockPart *part, const uint8_t *weight, int64_t M, int64_t p0, int64_t p1,
                     int64_t column) {
    static __thread void *buffer;
    static __thread size_t capacity;
    uint8_t *copy = M > DIRECT_ROWS ? scratch(&buffer, &capacity, (size_t)(x->groups * COPY_BYTES)) : NULL;
    const int64_t bytes = panel_bytes((int)part->type, x->K), tiles = ceil_to(M, x->pitch) / x->pitch;
    for (int64_t t = 0; t < tiles; t += BLOCK_TILES)
        for (int64_t p = p0; p < p1; p++)
            run_panel(x, out, (int)part->type, weight + part->start + p * bytes, copy, t, min64(t + BLOCK_TILES, tiles), M,
                      min64(COLUMNS, part->columns - p * COLUMNS), column + p * COLUMNS);
}

/* The share `index` of `count` equal shares of all panels. */
static void run_share(const Rows *x, const Output *out, const BlockWeight *weight, int64_t M, int64_t index, int64_t count) {
    int64_t total = 0, first = 0, column = 0;
    for (int64_t i = 0; i < weight->num_parts; i++) total += num_panels(weight->parts[i].columns);
    const int64_t begin = total * index / count, end = total * (index + 1) / count;
    for (int64_t i = 0; i < weight->num_parts; i++) {
        const BlockPart *part = &weight->parts[i];
        const int64_t panels = num_panels(part->columns), p0 = max64(begin - first, 0), p1 = min64(end - first, panels);
        if (p0 < p1) run_part(x, out, part, (const uint8_t *)weight, M, p0, p1, column);
        first += panels;
        column += part->columns;
    }
}

/* x [M, K] of dtype dt, rows `stride` elements apart; y [M, N] of dtype out_dt, contiguous. */
void run_block_linear(void *y, const void *x, int64_t stride, const void *packed, const float *bias, int64_t M, int64_t N,
                      int64_t K, int64_t dt, int64_t out_dt, int64_t threads) {
    static __thread void *buffer;
    static __thread size_t capacity;
    if (M <= 0) return;
    const int64_t groups = K / GROUP, pitch = M <= DIRECT_ROWS ? M : TILE_ROWS;
    const int64_t bytes = ceil_to(M, pitch) * groups * ROW_BYTES;
    const Rows rows = {scratch(&buffer, &capacity, (size_t)bytes), K, groups, pitch};
    quantize_rows(&rows, x, stride, M, (int)dt, (int)threads);
    const Output out = {y, bias, N, (int)out_dt};
#pragma omp parallel num_threads((int)threads) if (M * N * K > MIN_PARALLEL_PRODUCTS)
    {
        DEFAULT_FP;
        run_share(&rows, &out, packed, M, omp_get_thread_num(), omp_get_num_threads());
    }
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
