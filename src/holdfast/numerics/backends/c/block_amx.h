/* Sixteen rows by the 16 columns of a panel with AMX: one instruction multiplies a group of 32 k.
 *
 * The planes of a panel are a tile as they are: eight k-groups of 16 columns. Weights are unsigned, as
 * with VNNI, and activations signed. Sums are exact in int32, so the bits are those of the other forms. */
#ifndef HOLDFAST_BLOCK_AMX_H
#define HOLDFAST_BLOCK_AMX_H

#include "amx_tiles.h"
#include "block_tile.h"

#if HAS_AMX_TILES && defined(__AMX_INT8__) && VL == 16 && Q8_ZERO == 128
#define BLOCK_AMX 1

INLINE int block_amx_ready(void) { return amx_ready(); }

/* Tiles 0 to 3: sums. 4, 5: activations and weights of a group; 6, 7: of half a group. */
static void block_amx_begin(void) {
    static const uint8_t ROWS[8] = {16, 16, 16, 16, 16, 8, 16, 4}, ROW_BYTES_OF[8] = {64, 64, 64, 64, 32, 64, 16, 64};
    amx_configure(ROWS, ROW_BYTES_OF);
}
static void block_amx_end(void) { _tile_release(); }

/* The sums of a group, or of both halves, into `out`, by way of the tiles named first. */
#define AMX_GROUP(sums, out, q, weights)        \
    _tile_zero(sums);                           \
    _tile_loadd(4, (q), GROUP);                 \
    _tile_loadd(5, (weights), PLANE);           \
    _tile_dpbsud(sums, 4, 5);                   \
    _tile_stored(sums, (out), PLANE);
#define AMX_HALF(sums, out, q, weights)         \
    _tile_zero(sums);                           \
    _tile_loadd(6, (q), GROUP);                 \
    _tile_loadd(7, (weights), PLANE);           \
    _tile_dpbsud(sums, 6, 7);                   \
    _tile_stored(sums, (out), PLANE);
#define AMX_HALVES(low, high, out, q, weights)  \
    AMX_HALF(low, out, q, weights)              \
    AMX_HALF(high, (out) + AMX_ROWS * COLUMNS, (q) + GROUP / 2, (weights) + 4 * PLANE)

/* Add the groups from `q` on to the sums [16][16]. The tiles of some groups are computed before their sums are
 * scaled, because an instruction of AMX takes long. */
INLINE void amx_tile(const int form, const int zero, const uint8_t *q, const Weights *w, float *sums) {
    enum { CHUNK = 4, BYTES = AMX_ROWS * ROW_BYTES };
    int32_t totals[CHUNK][2][AMX_ROWS][COLUMNS] __attribute__((aligned(64)));
    const uint8_t *weights = w->weights, *scales = w->scales;
    vf acc[AMX_ROWS];
    amx_before_loads();
    UNROLL for (int r = 0; r < AMX_ROWS; r++) acc[r] = load_v(sums + r * COLUMNS, F32);
    for (int64_t first = 0; first < w->groups; first += CHUNK) {
        const int64_t count = min64(CHUNK, w->groups - first);
        for (int64_t j = 0; j < count; j += 2) {
            const uint8_t *a = q + (first + j) * BYTES, *b = weights + (first + j) * w->stride;
            if (form_has_halves(form)) { AMX_HALVES(0, 1, totals[j][0][0], a, b) }
            else { AMX_GROUP(0, totals[j][0][0], a, b) }
            if (j + 1 == count) break;
            if (form_has_halves(form)) { AMX_HALVES(2, 3, totals[j + 1][0][0], a + BYTES, b + w->stride) }
            else { AMX_GROUP(1, totals[j + 1][0][0], a + BYTES, b + w->stride) }
        }
        for (int64_t j = 0; j < count; j++) {
            const uint8_t *group = q + (first + j) * BYTES;
            const float *steps = steps_of(group, AMX_ROWS), *row_sums = sums_of(group, AMX_ROWS);
            const int32_t *low = halves_of(group, AMX_ROWS), *high = low + AMX_ROWS;
            const Scales s = load_scales(scales + (first + j) * SCALE_BYTES, NULL, 0, form);
            UNROLL for (int r = 0; r < AMX_ROWS; r++) {
                vi total = load_plane((const uint8_t *)totals[j][0][r]);
                if (form_has_halves(form)) {
                    const vi other = load_plane((const uint8_t *)totals[j][1][r]) - splat_i(zero * high[r]);
                    total = (total - splat_i(zero * low[r])) * s.halves[0] + other * s.halves[1];
                } else if (zero) total = total - splat_i(zero * (low[r] + high[r]));
                acc[r] = fma_v(float_v(total), s.scale * splat(steps[r]), acc[r]);
                if (form_has_offsets(form)) acc[r] = fma_v(s.offset, splat(row_sums[r]), acc[r]);
            }
        }
    }
    UNROLL for (int r = 0; r < AMX_ROWS; r++) store_v(sums + r * COLUMNS, acc[r], F32);
}

static void block_amx_tile(int type, const uint8_t *q, const Weights *w, float *sums) {
    switch (type) {
        case Q8_0: amx_tile(WIDE_Q8, wide_zero(Q8_0), q, w, sums); break;
        case Q6_K: amx_tile(WIDE_HALVES, wide_zero(Q6_K), q, w, sums); break;
        case Q4_0: amx_tile(WIDE, wide_zero(Q4_0), q, w, sums); break;
        case Q5_0: amx_tile(WIDE, wide_zero(Q5_0), q, w, sums); break;
        default: amx_tile(WIDE_OFFSETS, 0, q, w, sums);
    }
}

#else
#define BLOCK_AMX 0
INLINE int block_amx_ready(void) { return 0; }
static void block_amx_begin(void) {}
static void block_amx_end(void) {}
static void block_amx_tile(int type, const uint8_t *q, const Weights *w, float *sums) { (void)type, (void)q, (void)w, (void)sums; }
#endif
#endif
