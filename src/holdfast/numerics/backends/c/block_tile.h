/* Quantised activations, and the tile: some rows of them by some columns of a panel.
 *
 * Sums of a tile are fp32 [rows][16]. A tile adds the groups of one block of k to them, in order, so that
 * a block of k of a panel and of some rows stays in the L1 cache. */
#ifndef HOLDFAST_BLOCK_TILE_H
#define HOLDFAST_BLOCK_TILE_H

#include "block_panel.h"

#define TILE_ROWS (VL == 8 ? 4 : 8)
#define AMX_ROWS 16 /* of a tile of block_amx.h */

/* ---- activations ---- */

/* Quantised rows, in tiles of `pitch` rows; the last tile may be shorter, and tiles read past its end.
 * A group of a tile:
 *
 *     q i8 [8][pitch][4] | steps fp32 [pitch] | sums fp32 [pitch] | halves int32 [2][pitch]
 *
 * With ROW_PAIRS, two rows alternate every eight numbers: q i8 [pitch / 2][4][2][8]. AMX reads whole rows:
 * q i8 [16][32]. */
typedef struct {
    uint8_t *data; /* [tiles][groups] */
    int64_t K, groups, pitch;
} Rows;

enum { ROW_BYTES = GROUP + 4 * 4 };
INLINE const float *steps_of(const uint8_t *group, int64_t pitch) { return (const float *)(group + pitch * GROUP); }
INLINE const float *sums_of(const uint8_t *group, int64_t pitch) { return steps_of(group, pitch) + pitch; }
INLINE const int32_t *halves_of(const uint8_t *group, int64_t pitch) { return (const int32_t *)(sums_of(group, pitch) + pitch); }
INLINE uint8_t *rows_group(const Rows *rows, int64_t tile, int64_t group) {
    return rows->data + (tile * rows->groups + group) * rows->pitch * ROW_BYTES;
}

/* Store the numbers of a quantised group of row `r` of a tile: bytes from 16 h on; step, sum and halves. */
INLINE void store_half(uint8_t *group, int64_t pitch, int64_t r, const int h, const int32_t words[4]) {
    UNROLL for (int i = 0; i < 4; i++) {
        if (pitch == AMX_ROWS) memcpy(group + r * GROUP + 16 * h + 4 * i, words + i, 4);
        else if (ROW_PAIRS && pitch > 1) memcpy(group + r / 2 * 2 * GROUP + 32 * h + 16 * (i / 2) + r % 2 * 8 + 4 * (i % 2), words + i, 4);
        else memcpy(group + 4 * ((4 * h + i) * pitch + r), words + i, 4);
    }
}
INLINE void store_sums(uint8_t *group, int64_t pitch, int64_t r, float step, float sum, int32_t low, int32_t high) {
    uint8_t *numbers = group + pitch * GROUP + 4 * r;
    memcpy(numbers, &step, 4);
    memcpy(numbers + 4 * pitch, &sum, 4);
    memcpy(numbers + 8 * pitch, &low, 4);
    memcpy(numbers + 12 * pitch, &high, 4);
}

#if VL == 4
/* quantize_group of blocks.h for four groups at once. */
INLINE void quantize_four(uint8_t *group, int64_t pitch, int64_t r, const float *x) {
    uint32x4_t size[4];
    UNROLL for (int g = 0; g < 4; g++) {
        size[g] = vdupq_n_u32(0);
        UNROLL for (int i = 0; i < GROUP; i += 4)
            size[g] = vmaxq_u32(size[g], vandq_u32(vreinterpretq_u32_f32(vld1q_f32(x + g * GROUP + i)), vdupq_n_u32(0x7fffffffu)));
    }
    const uint32x4_t largest = vpmaxq_u32(vpmaxq_u32(size[0], size[1]), vpmaxq_u32(size[2], size[3])); /* of each group */
    const uint32x4_t is_infinite = vcgeq_u32(largest, vdupq_n_u32(0x7f800000u));
    const uint32x4_t is_normal = vbicq_u32(vcgeq_u32(largest, vdupq_n_u32(0x0d800000u)), is_infinite);
    const uint32x4_t steps = vreinterpretq_u32_f32(vdivq_f32(vreinterpretq_f32_u32(largest), splat(127.0f)));
    const vf factors = vdivq_f32(splat(127.0f), vreinterpretq_f32_u32(largest));
    const vf step = vreinterpretq_f32_u32(vbslq_u32(is_infinite, vdupq_n_u32(NAN_BITS), vandq_u32(is_normal, steps)));
    int8x16_t q[4][2];
    int32x4_t sums[2][4];
    UNROLL for (int g = 0; g < 4; g++) {
        const vf factor = vdupq_n_f32(factors[g]);
        const uint8x16_t mask = vreinterpretq_u8_u32(vdupq_n_u32(is_normal[g]));
        UNROLL for (int h = 0; h < 2; h++) {
            uint16x8_t low[4]; /* the lower bits of the rounded numbers, see quantize_group */
            UNROLL for (int i = 0; i < 4; i++)
                low[i] = vreinterpretq_u16_f32(vld1q_f32(x + g * GROUP + 16 * h + 4 * i) * factor + splat(12582912.0f));
            const uint8x16_t a = vreinterpretq_u8_u16(vuzp1q_u16(low[0], low[1])), b = vreinterpretq_u8_u16(vuzp1q_u16(low[2], low[3]));
            q[g][h] = vreinterpretq_s8_u8(vandq_u8(vuzp1q_u8(a, b), mask));
            sums[h][g] = vpaddlq_s16(vpaddlq_s8(q[g][h]));
        }
    }
    int32x4_t halves[2]; /* of each group */
    UNROLL for (int h = 0; h < 2; h++)
        halves[h] = vpaddq_s32(vpaddq_s32(sums[h][0], sums[h][1]), vpaddq_s32(sums[h][2], sums[h][3]));
    const vf sum = step * vcvtq_f32_s32(vaddq_s32(halves[0], halves[1]));
    UNROLL for (int g = 0; g < 4; g++) {
        uint8_t *out = group + g * pitch * ROW_BYTES;
        UNROLL for (int h = 0; h < 2; h++) {
            const int32x4_t words = vreinterpretq_s32_s8(q[g][h]);
            store_half(out, pitch, r, h, (const int32_t[4]){words[0], words[1], words[2], words[3]});
        }
        store_sums(out, pitch, r, step[g], sum[g], halves[0][g], halves[1][g]);
    }
}
#endif

/* Groups first .. end-1 of a row. */
INLINE void quantize_part(const Rows *rows, int64_t row, const void *x, int64_t first, int64_t end, const int dt) {
    const int64_t pitch = rows->pitch, r = row % pitch;
    uint8_t *group = rows_group(rows, row / pitch, first);
    float values[4 * GROUP];
    int64_t g = first;
#if VL == 4
    for (; g + 4 <= end; g += 4, group += 4 * pitch * ROW_BYTES) {
        if (dt != F32)
            UNROLL for (int i = 0; i < 4 * GROUP; i += 2 * VL) {
                vf a, b;
                load_2v(at(x, g * GROUP + i, dt), dt, &a, &b);
                store_v(values + i, a, F32), store_v(values + i + VL, b, F32);
            }
        quantize_four(group, pitch, r, dt == F32 ? (const float *)x + g * GROUP : values);
    }
#endif
    for (; g < end; g++, group += pitch * ROW_BYTES) {
        GroupSums sums;
        int32_t words[GROUP / 4];
        UNROLL for (int i = 0; i < GROUP; i += VL) store_v(values + i, load_v(at(x, g * GROUP + i, dt), dt), F32);
        quantize_group((int8_t *)words, &sums, values);
        UNROLL for (int h = 0; h < 2; h++) store_half(group, pitch, r, h, words + 4 * h);
        store_sums(group, pitch, r, sums.step, sums.sum, sums.halves[0], sums.halves[1]);
    }
}

/* ---- the tile ---- */

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

/* A vector of SUM_START. With many rows NEON loads it each time: a copy of a register takes the place of a
 * product. */
INLINE vi start_sum(const int rows) {
#if VL == 4 && defined(__OPTIMIZE__)
    if (rows > 2) {
        static const vi START = {SUM_START, SUM_START, SUM_START, SUM_START};
        vi sums;
        __asm__ volatile("ldr %q0, %1" : "=w"(sums) : "m"(START));
        return sums;
    }
#endif
    return (void)rows, splat_i(SUM_START);
}

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
#if DOT_WORDS
    UNROLL for (int i = 0; i < 4; i++) {
        const vi w = load_weights(planes, h, i, at, form);
        UNROLL for (int r = 0; r < rows; r++) sum[r] = dot_word(sum[r], w, q, (4 * h + i) * pitch + r);
    }
#else
    UNROLL for (int pair = 0; pair < 2; pair++) {
        const vi w0 = load_weights(planes, h, 2 * pair, at, form), w1 = load_weights(planes, h, 2 * pair + 1, at, form);
        UNROLL for (int r = 0; r < rows; r++) {
            const int8_t *words = q + 4 * ((4 * h + 2 * pair) * pitch + r);
            sum[r] = dot_pair(sum[r], w0, w1, words, words + 4 * pitch, is_q8(form));
        }
    }
#endif
}

/* One group. `q`: the group of the activations; `block`, `group`: that of the panel, or its scales and weights apart. */
INLINE void tile_group(vf acc[8][VECTORS], const int rows, const int64_t pitch, const int vectors, const int form, const int zero,
                       const uint8_t *q, const uint8_t *block, const uint8_t *group, int64_t column) {
    const int32_t *halves = halves_of(q, pitch);
    const uint8_t *planes = group + (is_wide(form) ? 0 : group_head_bytes(form));
    const PerRow steps = load_rows(steps_of(q, pitch), rows);
    UNROLL for (int v = 0; v < vectors; v++) {
        const Scales s = load_scales(block, group, column + VL * v, form);
        vi total[8];
        UNROLL for (int h = 0; h < 2; h++) {
            vi sum[8];
            UNROLL for (int r = 0; r < rows; r++) {
                if (form_has_halves(form)) sum[r] = splat_i(zero ? -zero * halves[h * pitch + r] : 0);
                else if (h) sum[r] = total[r];
                else sum[r] = zero ? splat_i(SUM_START - zero * (halves[r] + halves[pitch + r])) : start_sum(rows);
            }
            add_products(sum, rows, pitch, form, (const int8_t *)q, planes, h, 4 * (column + VL * v));
            UNROLL for (int r = 0; r < rows; r++)
                total[r] = !form_has_halves(form) ? sum[r] : h ? total[r] + sum[r] * s.halves[1] : sum[r] * s.halves[0];
        }
        vf whole[8], scale[8];
        UNROLL for (int r = 0; r < rows; r++) {
            if (form_has_halves(form)) whole[r] = float_v(total[r]);
            else whole[r] = (vf)total[r] - splat(12582912.0f);
        }
        in_order(whole, rows);
        vf column_scale = s.scale;
        in_order(&column_scale, 1);
        UNROLL for (int r = 0; r < rows; r++) scale[r] = column_scale * ROW(steps, r);
        in_order(scale, rows);
        in_order(whole, rows);
        UNROLL for (int r = 0; r < rows; r++) acc[r][v] = fma_v(whole[r], scale[r], acc[r][v]);
        if (!form_has_offsets(form)) continue;
        const PerRow sums = load_rows(sums_of(q, pitch), rows);
        UNROLL for (int r = 0; r < rows; r++) acc[r][v] = fma_v(s.offset, ROW(sums, r), acc[r][v]);
    }
}

/* Groups of weights to be multiplied, as a form reads them. */
typedef struct {
    const uint8_t *weights, *scales; /* the panel; or weights and scales apart */
    int64_t stride, groups;          /* bytes from group to group, of weights apart */
    const uint8_t *next;             /* what is read after them and prefetched meanwhile */
    int64_t next_bytes;              /* of a group of it */
} Weights;

/* Add the groups from `q` on, times the columns of a panel from `column` on, to the sums. */
INLINE void tile(const int rows, const int64_t pitch, const int vectors, const int form, const int zero, const uint8_t *q, const Weights *w,
                 int64_t column, float *sums) {
    const int64_t groups = w->groups, next_bytes = w->next_bytes;
    const uint8_t *next = w->next + column * next_bytes / COLUMNS; /* a part of it for each part of the columns */
    vf acc[8][VECTORS];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) acc[r][v] = load_v(sums + r * COLUMNS + column + VL * v, F32);
    if (is_wide(form)) {
        const uint8_t *weights = w->weights, *scales = w->scales;
        for (int64_t g = 0; g < groups; g++, q += pitch * ROW_BYTES, weights += w->stride, scales += SCALE_BYTES, next += next_bytes) {
            UNROLL for (int i = 0; i < 2 * vectors; i++) __builtin_prefetch(next + 64 * i);
            tile_group(acc, rows, pitch, vectors, form, zero, q, scales, weights, column);
        }
    } else {
        const uint8_t *panel = w->weights;
        const int per_block = block_groups(form), bytes = group_bytes(form), head = head_bytes(form);
        for (int64_t g = 0; g < groups; g += per_block, panel += head + per_block * bytes)
            for (int j = 0; j < per_block; j++, q += pitch * ROW_BYTES, next += next_bytes) {
                if (rows > 2)
                    UNROLL for (int i = 0; i < 2 * vectors; i++) __builtin_prefetch(next + 64 * i);
                tile_group(acc, rows, pitch, vectors, form, zero, q, panel, panel + head + j * bytes, column);
            }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < vectors; v++) store_v(sums + r * COLUMNS + column + VL * v, acc[r][v], F32);
}

/* All columns of a panel for one or two rows, from the panel as it is packed. */
#define DIRECT(type)                                                                        \
    case type:                                                                              \
        if (rows == 1) tile(1, 1, VECTORS, type, packed_zero(type), q, w, 0, sums);         \
        else tile(2, 2, VECTORS, type, packed_zero(type), q, w, 0, sums);                   \
        break;
static void direct_tile(int64_t rows, int type, const uint8_t *q, const Weights *w, float *sums) {
    switch (type) { DIRECT(Q4_0) DIRECT(Q4_1) DIRECT(Q5_0) DIRECT(Q5_1) DIRECT(Q8_0) DIRECT(Q4_K) DIRECT(Q5_K) DIRECT(Q6_K) }
}

/* Rows are rounded up to a size of tiles; the sums of the rows past the end are not stored. With few rows
 * a tile has two vectors of columns. */
#define TALL(limit, vectors)                                                                    \
    if (rows <= limit) {                                                                        \
        for (int64_t column = 0; column < COLUMNS; column += vectors * VL)                      \
            tile(limit, TILE_ROWS, vectors, form, zero, q, w, column, sums);                    \
        return;                                                                                 \
    }
INLINE void tall_tile(int64_t rows, const int form, const int zero, const uint8_t *q, const Weights *w, float *sums) {
#if VL == 4
    TALL(2, 2) TALL(4, 2) TALL(6, 1) TALL(8, 1)
#else
    TALL(2, 1) TALL(4, 1)
#if TILE_ROWS >= 8
    TALL(6, 1) TALL(8, 1)
#endif
#endif
}

/* The same from the panel as it is packed, and from weights and scales apart. */
#define PACKED(type) \
    case type: tall_tile(rows, type, packed_zero(type), q, w, sums); break;
static void packed_tile(int64_t rows, int type, const uint8_t *q, const Weights *w, float *sums) {
    switch (type) { PACKED(Q4_0) PACKED(Q4_1) PACKED(Q5_0) PACKED(Q5_1) PACKED(Q8_0) }
}
static void wide_tile(int64_t rows, int type, const uint8_t *q, const Weights *w, float *sums) {
    switch (type) {
        case Q8_0: tall_tile(rows, WIDE_Q8, wide_zero(Q8_0), q, w, sums); break;
        case Q6_K: tall_tile(rows, WIDE_HALVES, wide_zero(Q6_K), q, w, sums); break;
        case Q4_0: tall_tile(rows, WIDE, wide_zero(Q4_0), q, w, sums); break;
        case Q5_0: tall_tile(rows, WIDE, wide_zero(Q5_0), q, w, sums); break;
        default: tall_tile(rows, WIDE_OFFSETS, 0, q, w, sums);
    }
}

#endif
