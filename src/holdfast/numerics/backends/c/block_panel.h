/* Panels: quantised weights in the order they are read, and how a tile reads them.
 *
 * A panel has 16 columns. A group of 32 k has eight k-groups of four; byte 4 c + i of a plane of 64
 * bytes belongs to column c and k i:
 *
 *     scale fp16 [16] | offset fp16 [16], if the format has offsets       of a block
 *     scales u8 [16] | offset scales u8 [16], or Q6_K: scales i8 [2][16]  of each group, K formats
 *     nibbles u8 [4][64]: k-group i in the low half, k-group i + 4 in the high half
 *     Q5: bits u8 [64], bit g of k-group g;  Q6_K: pairs u8 [2][64], the pair i of k-group 4 h + i
 *     Q8_0: i8 [8][64] instead
 *
 * This takes the bytes of the file; Q4_K and Q5_K take 3 % more, as their 6-bit scales become bytes. */
#ifndef HOLDFAST_BLOCK_PANEL_H
#define HOLDFAST_BLOCK_PANEL_H

#include "block_dot.h"
#include "blocks.h"
#include "simd.h"

#define COLUMNS 16
#define PLANE (4 * COLUMNS)
#define VECTORS (COLUMNS / VL)

INLINE int head_bytes(const int type) { return has_offsets(type) ? 4 * COLUMNS : 2 * COLUMNS; }
INLINE int group_head_bytes(const int type) { return type >= Q4_K ? 2 * COLUMNS : 0; }
INLINE int num_planes(const int type) {
    return type == Q8_0 ? 8 : type == Q5_0 || type == Q5_1 || type == Q5_K ? 5 : type == Q6_K ? 6 : 4;
}
INLINE int group_bytes(const int type) { return group_head_bytes(type) + num_planes(type) * PLANE; }
INLINE int64_t panel_bytes(const int type, int64_t K) {
    return K / (GROUP * block_groups(type)) * (head_bytes(type) + block_groups(type) * group_bytes(type));
}
INLINE int64_t num_panels(int64_t N) { return ceil_to(N, COLUMNS) / COLUMNS; }

/* A word holds the four numbers of a k-group. What is done to a byte of it does not reach the next one. */
INLINE void pack_quants(uint8_t *planes, const Group *group, int64_t column, const int type) {
    uint32_t words[8], packed[8] = {0};
    memcpy(words, group->q, GROUP);
    UNROLL for (int g = 0; g < 8; g++) {
        const uint32_t q = words[g], high = q >> 4;
        if (type == Q8_0) {
            packed[g] = q ^ Q8_ZERO * 0x01010101u; /* 0 or 128: adds it to each byte */
            continue;
        }
        packed[g % 4] |= (q & 0x0f0f0f0fu) << (g < 4 ? 0 : 4);
        if (type == Q6_K) packed[4 + g / 4] |= (high & 0x03030303u) << (2 * (g % 4));
        else packed[4] |= (high & 0x01010101u) << g;
    }
    UNROLL for (int i = 0; i < num_planes(type); i++) memcpy(planes + i * PLANE + 4 * column, &packed[i], 4);
}

INLINE void pack_column(uint8_t *panel, const uint8_t *row, int64_t column, int64_t K, const int type) {
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

/* How a tile reads its weights: as a format packs them (its type), or with one byte per weight and
 * scales apart, which are made once for all tiles of rows. A group of these:
 *
 *     weights i8 [8][64], of Q8_0 in the panel, else a copy
 *     scale fp32 [16] | offset fp32 [16], or the scales of Q6_K int32 [2][16] */
enum { WIDE = 64, WIDE_Q8 = 65, WIDE_OFFSETS = 66, WIDE_HALVES = 67 };
#define WEIGHT_BYTES (8 * PLANE)
#define SCALE_BYTES (3 * COLUMNS * 4)

INLINE int wide_form(const int type) { return type == Q8_0 ? WIDE_Q8 : type == Q6_K ? WIDE_HALVES : has_offsets(type) ? WIDE_OFFSETS : WIDE; }
INLINE int is_wide(const int form) { return form >= WIDE; }
INLINE int is_q8(const int form) { return form == Q8_0 || form == WIDE_Q8; }
INLINE int form_has_offsets(const int form) { return form == WIDE_OFFSETS || (!is_wide(form) && has_offsets(form)); }
INLINE int form_has_halves(const int form) { return form == WIDE_HALVES || form == Q6_K; }
/* What is to be subtracted from a weight as it is packed, and from one with a byte of its own. */
INLINE int packed_zero(const int type) { return type == Q8_0 ? Q8_ZERO : block_zero(type); }
INLINE int wide_zero(const int type) { return type == Q8_0 ? Q8_ZERO : SIGNED_WEIGHTS ? 0 : block_zero(type); }

INLINE vi load_plane(const uint8_t *p) {
    vi v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* The weights of k-group 4 h + i, of the columns from `at` / 4 on. */
INLINE vi load_weights(const uint8_t *planes, const int h, const int i, int64_t at, const int form) {
    if (is_wide(form) || form == Q8_0) return load_plane(planes + (4 * h + i) * PLANE + at);
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

/* The scales of VL columns from `column` on. block: the head of a block, or the scales apart. */
INLINE Scales load_scales(const uint8_t *block, const uint8_t *group, int64_t column, const int form) {
    Scales s = {splat(0.0f), splat(0.0f), {{0}, {0}}};
    if (is_wide(form)) {
        const uint8_t *scales = block + 4 * column;
        s.scale = (vf)load_plane(scales);
        if (form == WIDE_OFFSETS) s.offset = (vf)load_plane(scales + PLANE);
        if (form == WIDE_HALVES) s.halves[0] = load_plane(scales + PLANE), s.halves[1] = load_plane(scales + 2 * PLANE);
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

/* Write the scales of `groups` groups apart, and the weights, except those of Q8_0, with one byte each. */
INLINE void widen_groups(uint8_t *weights, uint8_t *scales, const uint8_t *panel, int64_t groups, const int type) {
    const int per_block = block_groups(type);
    for (int64_t g = 0; g < groups; g++, weights += WEIGHT_BYTES, scales += SCALE_BYTES) {
        const uint8_t *block = panel + g / per_block * (head_bytes(type) + per_block * group_bytes(type));
        const uint8_t *group = block + head_bytes(type) + g % per_block * group_bytes(type);
        UNROLL for (int v = 0; v < VECTORS; v++) {
            if (type != Q8_0)
                UNROLL for (int j = 0; j < 8; j++) {
                    vi w = load_weights(group + group_head_bytes(type), j / 4, j % 4, 4 * VL * v, type);
                    if (wide_zero(type) != block_zero(type)) w = subtract_bytes(w, block_zero(type));
                    memcpy(weights + j * PLANE + 4 * VL * v, &w, sizeof w);
                }
            const Scales s = load_scales(block, group, VL * v, type);
            memcpy(scales + 4 * VL * v, &s.scale, sizeof s.scale);
            if (has_offsets(type)) memcpy(scales + PLANE + 4 * VL * v, &s.offset, sizeof s.offset);
            if (type == Q6_K) {
                memcpy(scales + PLANE + 4 * VL * v, &s.halves[0], sizeof(vi));
                memcpy(scales + 2 * PLANE + 4 * VL * v, &s.halves[1], sizeof(vi));
            }
        }
    }
}

#endif
