/* The bf16 product on AMX tiles: 16 rows by 16 columns, 32 steps of k an instruction.
 *
 * A row of a tile is computed from its own row of A alone, and k goes up in steps of 32 in every blocking, so the bits
 * of a row do not depend on the other rows. Rows are padded to 16 and k to 32 with zeros.
 *
 *     packed [ceil(N / 32)][K / 32][2 halves][16 pairs of k][16 columns][2]      bf16
 */
#ifndef HOLDFAST_AMX_H
#define HOLDFAST_AMX_H

#include "lanes.h"

#define AMX_COLUMNS 32
#define AMX_K 32

#if defined(__AMX_BF16__) && defined(__AMX_TILE__) && VL == 16 && defined(__linux__)
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The kernel of the operating system hands out the tile registers on request, once for the process. */
static int amx_ready(void) {
    static int state = 0; /* 0 unknown, 1 ready, -1 not to be had; every thread would write the same */
    int seen = __atomic_load_n(&state, __ATOMIC_ACQUIRE);
    if (seen == 0) {
        const long ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18;
        seen = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0 ? 1 : -1;
        __atomic_store_n(&state, seen, __ATOMIC_RELEASE);
    }
    return seen == 1;
}

typedef struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} TileConfig;

static void amx_configure(void) {
    TileConfig config __attribute__((aligned(64)));
    memset(&config, 0, sizeof config);
    config.palette = 1;
    for (int t = 0; t < 8; t++) {
        config.row_bytes[t] = 64;
        config.rows[t] = 16;
    }
    __asm__ volatile("" ::"r"(&config) : "memory"); /* the intrinsic admits to reading 8 of these 64 bytes only */
    _tile_loadconfig(&config);
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
} AmxOut;

static void amx_put(const AmxOut *out, const float *tile, int64_t row, int64_t column) {
    const int64_t columns = min64(16, out->N - column);
    if (columns <= 0) return;
    const vf bias = out->bias ? load_upto(out->bias + column, columns, F32) : splat(0.0f);
    for (int64_t r = 0; r < 16 && row + r < out->M; r++) {
        vf v = load_v(tile + r * 16, F32);
        if (out->bias) v = v + bias;
        char *y = out->y + ((row + r) * out->N + column) * size_of(out->out_dt);
        if (out->out_dt == F32) store_upto(y, v, columns, F32);
        else store_upto(y, v, columns, BF16);
    }
}

/* Tile loads wait for memory one after the other, and arithmetic waits for them: ask for what comes four steps of k later,
 * the next panel's beginning included. Asking behind the last panel is harmless. */
static inline void amx_ahead(const uint16_t *w) {
    for (int line = 0; line < 32; line++) __builtin_prefetch((const char *)w + 4 * 2048 + line * 64, 0, 2);
}

/* 32 rows (or 16) by the 32 columns of one panel. */
static void amx_tile(const uint16_t *x, int64_t Kp, const uint16_t *w, int two, int first, const AmxOut *out,
                     int64_t row, int64_t column) {
    float c[4][256] __attribute__((aligned(64)));
    const int64_t x_bytes = Kp * 2;
    _tile_zero(0);
    _tile_zero(1);
    if (two) {
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t k = 0; k < Kp; k += 32, w += 1024) {
            if (first) amx_ahead(w);
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
            if (first) amx_ahead(w);
            _tile_loadd(4, x + k, x_bytes);
            _tile_loadd(6, w, 64);
            _tile_loadd(7, w + 512, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
        }
    }
    _tile_stored(0, c[0], 64);
    _tile_stored(1, c[1], 64);
    amx_put(out, c[0], row, column);
    amx_put(out, c[1], row, column + 16);
    if (two) {
        amx_put(out, c[2], row + 16, column);
        amx_put(out, c[3], row + 16, column + 16);
    }
}

static void amx_linear(void *y, const void *x, int64_t stride, const void *packed, const float *bias, int64_t M,
                       int64_t N, int64_t K, int out_dt, int threads) {
    static __thread void *slot;
    static __thread size_t have;
    const int64_t Kp = ceil_to(K, AMX_K), Mp = ceil_to(M, 16), panels = ceil_to(N, AMX_COLUMNS) / AMX_COLUMNS;
    const int64_t row_block = 128, blocks = ceil_to(Mp, row_block) / row_block;
    uint16_t *rows = scratch(&slot, &have, (size_t)(Mp * Kp) * 2);
    const AmxOut out = {y, bias, M, N, out_dt};
    const int64_t over_rows = max64(1, min64(blocks, threads * 2 / max64(panels, 1)));
    const int64_t over_panels = max64(1, threads / over_rows);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int64_t m = 0; m < Mp; m++) {
            const int64_t filled = m < M ? K : 0;
            if (filled) memcpy(rows + m * Kp, (const uint16_t *)x + m * stride, (size_t)filled * 2);
            memset(rows + m * Kp + filled, 0, (size_t)(Kp - filled) * 2);
        }
        amx_configure(); /* behind the barrier of the loop above: every row is in place */
        /* by the team that really came: it may be smaller than what was asked for */
        for (int64_t t = omp_get_thread_num(); t < over_rows * over_panels; t += omp_get_num_threads()) {
            const int64_t i = t % over_panels, j = t / over_panels;
            for (int64_t b = blocks * j / over_rows; b < blocks * (j + 1) / over_rows; b++)
                for (int64_t p = panels * i / over_panels; p < panels * (i + 1) / over_panels; p++) {
                    const uint16_t *w = (const uint16_t *)packed + p * Kp * AMX_COLUMNS;
                    const int64_t end = min64(Mp, (b + 1) * row_block);
                    for (int64_t m = b * row_block; m < end; m += 32)
                        amx_tile(rows + m * Kp, Kp, w, m + 32 <= end, m == b * row_block, &out, m, p * AMX_COLUMNS);
                }
        }
        _tile_release();
    }
}

#else

static int amx_ready(void) { return 0; }
static void amx_pack(void *packed, const void *w, int64_t stride, int64_t N, int64_t K, int threads) {
    (void)packed, (void)w, (void)stride, (void)N, (void)K, (void)threads;
}
static void amx_linear(void *y, const void *x, int64_t stride, const void *packed, const float *bias, int64_t M,
                       int64_t N, int64_t K, int out_dt, int threads) {
    (void)y, (void)x, (void)stride, (void)packed, (void)bias, (void)M, (void)N, (void)K, (void)out_dt, (void)threads;
}

#endif
#endif
