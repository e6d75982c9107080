/* The bf16 GEMM on AMX tiles: 16 rows by 16 columns, 32 steps of k per instruction.
 *
 * A row of a tile is computed from its own row of A alone, and k increases in steps of 32 in
 * every blocking. So the bits of a row do not depend on the other rows. Rows are padded to 16
 * and k to 32 with zeros.
 *
 *     packed [ceil(N / 32)][K / 32][2 halves][16 pairs of k][16 columns][2]      bf16
 */
#ifndef HOLDFAST_AMX_H
#define HOLDFAST_AMX_H

#include "amx_tiles.h"
#include "kernels.h"
#include "simd.h"

#define AMX_COLUMNS 32
#define AMX_K 32

#if HAS_AMX_TILES && defined(__AMX_BF16__)
#define HAS_AMX_BF16 1
static void bf16_configure(void) {
    static const uint8_t ROWS[8] = {16, 16, 16, 16, 16, 16, 16, 16}, ROW_BYTES[8] = {64, 64, 64, 64, 64, 64, 64, 64};
    amx_configure(ROWS, ROW_BYTES);
}

static void amx_pack(void *packed, const void *w, int64_t stride, int64_t N, int64_t K, int threads) {
    const int64_t Kp = ceil_to(K, AMX_K), panels = ceil_to(N, AMX_COLUMNS) / AMX_COLUMNS;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t p = 0; p < panels; p++) {
        uint16_t *out = (uint16_t *)packed + p * Kp * AMX_COLUMNS;
        memset(out, 0, (size_t)(Kp * AMX_COLUMNS) * 2);
        for (int64_t c = 0; c < AMX_COLUMNS && p * AMX_COLUMNS + c < N; c++) {
            const uint16_t *in = (const uint16_t *)w + (p * AMX_COLUMNS + c) * stride;
            for (int64_t k = 0; k < K; k++)
                out[(k / 32) * 1024 + (c / 16) * 512 + (k % 32 / 2) * 32 + (c % 16) * 2 + k % 2] = in[k];
        }
    }
}

typedef struct {
    char *y;
    const float *bias;
    int64_t M, N;
    int out_dt;
} AmxOutput;

static void amx_store_tile(const AmxOutput *out, const float *tile, int64_t row, int64_t column) {
    const int64_t columns = min64(16, out->N - column);
    if (columns <= 0) return;
    const vf bias = out->bias ? load_partial(out->bias + column, columns, F32) : splat(0.0f);
    for (int64_t r = 0; r < 16 && row + r < out->M; r++) {
        vf v = load_v(tile + r * 16, F32);
        if (out->bias) v = v + bias;
        char *y = out->y + ((row + r) * out->N + column) * size_of(out->out_dt);
        if (out->out_dt == F32) store_partial(y, v, columns, F32);
        else store_partial(y, v, columns, BF16);
    }
}

/* Tile loads are not overlapped by the CPU: prefetch the weights of four steps of k later, which
 * may be those of the next panel. A prefetch past the last panel is harmless. */
static inline void amx_prefetch(const uint16_t *w) {
    for (int line = 0; line < 32; line++) __builtin_prefetch((const char *)w + 4 * 2048 + line * 64, 0, 2);
}

/* 32 rows (or 16) by the 32 columns of one panel. */
static void amx_tile(const uint16_t *x, int64_t Kp, const uint16_t *w, int is_pair, int prefetch, const AmxOutput *out,
                     int64_t row, int64_t column) {
    float c[4][256] __attribute__((aligned(64)));
    const int64_t x_bytes = Kp * 2;
    amx_before_loads();
    _tile_zero(0);
    _tile_zero(1);
    if (is_pair) {
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t k = 0; k < Kp; k += 32, w += 1024) {
            if (prefetch) amx_prefetch(w);
            _tile_loadd(4, x + k, x_bytes);
            _tile_loadd(5, x + 16 * Kp + k, x_bytes);
            _tile_loadd(6, w, 64);
            _tile_loadd(7, w + 512, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(2, c[2], 64);
        _tile_stored(3, c[3], 64);
    } else {
        for (int64_t k = 0; k < Kp; k += 32, w += 1024) {
            if (prefetch) amx_prefetch(w);
            _tile_loadd(4, x + k, x_bytes);
            _tile_loadd(6, w, 64);
            _tile_loadd(7, w + 512, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
        }
    }
    _tile_stored(0, c[0], 64);
    _tile_stored(1, c[1], 64);
    amx_store_tile(out, c[0], row, column);
    amx_store_tile(out, c[1], row, column + 16);
    if (is_pair) {
        amx_store_tile(out, c[2], row + 16, column);
        amx_store_tile(out, c[3], row + 16, column + 16);
    }
}

static int64_t amx_row_bytes(int64_t M, int64_t K) { return ceil_to(M, 16) * ceil_to(K, AMX_K) * 2; }

static void team_amx_linear(const Product *product) {
    const int64_t M = product->M, N = product->N, K = product->K, threads = omp_get_num_threads();
    const int64_t Kp = ceil_to(K, AMX_K), Mp = ceil_to(M, 16), panels = ceil_to(N, AMX_COLUMNS) / AMX_COLUMNS;
    const int64_t row_block = 128, blocks = ceil_to(Mp, row_block) / row_block;
    uint16_t *rows = product->rows;
    const AmxOutput out = {product->y, product->bias, M, N, (int)product->out_dt};
    const int64_t row_parts = max64(1, min64(blocks, threads * 2 / max64(panels, 1)));
    const int64_t panel_parts = max64(1, threads / row_parts);
#pragma omp for schedule(static)
    for (int64_t m = 0; m < Mp; m++) {
        const int64_t num_copied = m < M ? K : 0;
        if (num_copied) memcpy(rows + m * Kp, (const uint16_t *)product->x + m * product->stride, (size_t)num_copied * 2);
        memset(rows + m * Kp + num_copied, 0, (size_t)(Kp - num_copied) * 2);
    }
    bf16_configure(); /* after the barrier of the loop above: all rows are copied */
    for (int64_t t = omp_get_thread_num(); t < row_parts * panel_parts; t += threads) {
        const int64_t i = t % panel_parts, j = t / panel_parts;
        for (int64_t b = blocks * j / row_parts; b < blocks * (j + 1) / row_parts; b++)
            for (int64_t p = panels * i / panel_parts; p < panels * (i + 1) / panel_parts; p++) {
                const uint16_t *w = (const uint16_t *)product->packed + p * Kp * AMX_COLUMNS;
                const int64_t end = min64(Mp, (b + 1) * row_block);
                for (int64_t m = b * row_block; m < end; m += 32)
                    amx_tile(rows + m * Kp, Kp, w, m + 32 <= end, m == b * row_block, &out, m, p * AMX_COLUMNS);
            }
    }
    _tile_release();
}

#else
#define HAS_AMX_BF16 0

static void amx_pack(void *packed, const void *w, int64_t stride, int64_t N, int64_t K, int threads) {
    (void)packed, (void)w, (void)stride, (void)N, (void)K, (void)threads;
}
static int64_t amx_row_bytes(int64_t M, int64_t K) { return (void)M, (void)K, 0; }
static void team_amx_linear(const Product *product) { (void)product; }

#endif
#endif
