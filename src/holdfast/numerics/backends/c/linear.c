/* y = x W^T + b, with bits that depend on the row alone.
 *
 * An output element is one chain of fma over k = 0 .. K-1 in fp32. It does not depend on the
 * number of rows, the tile and the thread. Weights are packed in panels of NR columns, in the
 * order they are read:
 *
 *     packed [ceil(N / NR)][K rounded up to 4][NR]        2 or 4 bytes per element, widened in registers
 *
 * Columns from N on and k from K on are zero. With the dtype code BF16_AMX, a CPU with AMX multiplies
 * bf16 in tiles instead (amx.h), in an order of its own. */
#include "amx.h"
#include "kernels.h"
#include "simd.h"

#define NR (2 * VL)
#if VL == 4
#define MR 8
#elif VL == 8
#define MR 6
#else
#define MR 12
#endif
#define ROW_BLOCK (8 * MR) /* rows of x that stay in the L2 cache while all panels are read */

API int holdfast_vector_width(void) { return VL; }
API int holdfast_has_amx(void) {
#if HAS_AMX_BF16
    return amx_ready();
#else
    return 0;
#endif
}

API int64_t holdfast_packed_bytes(int64_t N, int64_t K, int64_t dt) {
    if (dt == BF16_AMX) return ceil_to(N, AMX_COLUMNS) * ceil_to(K, AMX_K) * 2;
    return (ceil_to(N, NR) * ceil_to(K, 4) + NR) * size_of((int)dt); /* tiles load one k ahead */
}

/* Neoverse cores convert a vector of fp16 in two cycles, so NEON does not. It shifts sign, exponent and mantissa
 * to their places in fp32, which is the number times 2^-112, and x is multiplied by 2^112: no product changes, as
 * both are exact. The number after the last panel says if a weight is infinite or NaN; then F16 is converted. */
enum { F16_SHIFTED = 4 };
#define F16_DIRECT (VL == 4 ? F16_SHIFTED : F16)
INLINE int product_dtype(const void *packed, int64_t N, int64_t K, int dt) {
    uint16_t has_infinite;
    memcpy(&has_infinite, (const char *)packed + ceil_to(N, NR) * ceil_to(K, 4) * size_of(dt), sizeof has_infinite);
    return dt == F16 && !has_infinite ? F16_DIRECT : dt;
}

/* NEON loads eight bf16 as four words: column c in the lower half of word c, column c + 4 in the
 * upper half. One shift and one mask widen them, faster than two zips. */
#if VL == 4
INLINE int64_t packed_column(int64_t column, const int dt) { return dt == BF16 ? column % 4 * 2 + column / 4 : column; }
#else
INLINE int64_t packed_column(int64_t column, const int dt) { return (void)dt, column; }
#endif

INLINE void load_packed(const void *p, const int dt, vf *a, vf *b) {
#if VL == 4
    if (dt == BF16) {
        const uint32x4_t words = vreinterpretq_u32_u16(vld1q_u16(p));
        *a = vreinterpretq_f32_u32(vshlq_n_u32(words, 16));
        *b = vreinterpretq_f32_u32(vandq_u32(words, vdupq_n_u32(0xffff0000u)));
        return;
    }
    if (dt == F16_SHIFTED) {
        const int16x8_t halves = vreinterpretq_s16_u16(vld1q_u16(p));
        const int32x4_t mask = vdupq_n_s32((int32_t)0x8fffe000u);
        *a = vreinterpretq_f32_s32(vandq_s32(vshll_n_s16(vget_low_s16(halves), 13), mask));
        *b = vreinterpretq_f32_s32(vandq_s32(vshll_high_n_s16(halves, 13), mask));
        return;
    }
#endif
    load_2v(p, dt, a, b);
}

/* Pack w [N, K], with rows `stride` elements apart, into panels. */
void run_pack(void *packed, const void *w, int64_t stride, int64_t N, int64_t K, int64_t dt, int64_t threads) {
    if (dt == BF16_AMX) {
        amx_pack(packed, w, stride, N, K, (int)threads);
        return;
    }
    const int64_t es = size_of((int)dt), Kp = ceil_to(K, 4), panels = ceil_to(N, NR) / NR;
    uint16_t has_infinite = 0;
#pragma omp parallel for num_threads((int)threads) schedule(static) reduction(| : has_infinite)
    for (int64_t p = 0; p < panels; p++) {
        char *out = (char *)packed + p * Kp * NR * es;
        memset(out, 0, (size_t)(Kp * NR * es));
        for (int64_t c = 0; c < NR && p * NR + c < N; c++) {
            const char *in = (const char *)w + (p * NR + c) * stride * es;
            if (es == 4) for (int64_t k = 0; k < K; k++) ((uint32_t *)out)[k * NR + c] = ((const uint32_t *)in)[k];
            else for (int64_t k = 0; k < K; k++) ((uint16_t *)out)[k * NR + packed_column((int)c, (int)dt)] = ((const uint16_t *)in)[k];
            if (dt == F16) for (int64_t k = 0; k < K; k++) has_infinite |= (((const uint16_t *)in)[k] & 0x7c00u) == 0x7c00u;
        }
    }
    memset((char *)packed + panels * Kp * NR * es, 0, (size_t)(NR * es));
    memcpy((char *)packed + panels * Kp * NR * es, &has_infinite, sizeof has_infinite);
}

/* ---- the tile: `rows` rows by `panels` panels ---- */

/* The weights of k + lane of all panels; their products with lane of x of all rows. */
#define LOAD(lane, slot)                                                                                             \
    UNROLL for (int p = 0; p < panels; p++) {                                                                        \
        load_packed(w + p * panel_bytes + (k + lane) * NR * size_of(dt), dt, &now[slot][p][0], &now[slot][p][1]);   \
        in_order(now[slot][p], 2);                                                                                   \
    }
#define MULTIPLY(lane, slot)                                                            \
    UNROLL for (int p = 0; p < panels; p++)                                             \
        UNROLL for (int r = 0; r < rows; r++) {                                         \
            FMA_LANE(acc[r][2 * p], now[slot][p][0], xv[r], x + r * ldx + k, lane);      \
            FMA_LANE(acc[r][2 * p + 1], now[slot][p][1], xv[r], x + r * ldx + k, lane);  \
        }

typedef struct {
    void *y;           /* [M, N] */
    const float *bias; /* [N] or NULL */
    int64_t ldy, N;
    int out_dt;
    const char *prefetch; /* memory to prefetch during the tile, one line per step; or NULL */
} Output;

/* Store the sums [rows, columns] of a tile: add the bias, round, skip columns from N on. */
static __attribute__((noinline)) void store_sums(const Output *out, const float *sums, int64_t rows, int64_t columns, int64_t row,
                                          int64_t column) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c += VL) {
            const int64_t n = out->N - column - c;
            if (n <= 0) break;
            vf v = load_v(sums + r * columns + c, F32);
            if (out->bias) v = v + load_partial(out->bias + column + c, n, F32);
            void *y = (char *)out->y + ((row + r) * out->ldy + column + c) * size_of(out->out_dt);
            if (out->out_dt == F32) store_partial(y, v, n, F32);
            else if (out->out_dt == BF16) store_partial(y, v, n, BF16);
            else store_partial(y, v, n, F16);
        }
}

INLINE void tile(const int rows, const int panels, const int dt, const float *x, int64_t ldx, const char *w,
                 int64_t panel_bytes, int64_t K, const Output *out, int64_t row, int64_t column) {
    vf acc[MR][8]; /* a constant size keeps it in registers */
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int c = 0; c < 2 * panels; c++) acc[r][c] = splat(0.0f);
    vf now[2][4][2]; /* if there are registers, two k are loaded before they are multiplied, or one k ahead */
    const int is_ahead = VL == 4 && panels == 1;
    int64_t k = 0;
    if (is_ahead) LOAD(0, 0)
    for (; k < K; k += 4) {
#if VL == 4
        vf xv[MR];
        UNROLL for (int r = 0; r < rows; r++) xv[r] = vld1q_f32(x + r * ldx + k);
#endif
        if (dt == F32 && out->prefetch) __builtin_prefetch(out->prefetch + k * 16, 0, 1);
        if (rows <= 2) /* bound by memory: prefetch each panel as a stream */
            UNROLL for (int p = 0; p < panels; p++)
                __builtin_prefetch(w + p * panel_bytes + k * NR * size_of(dt) + 2048, 0, 0);
        if (is_ahead) {
            LOAD(1, 1) MULTIPLY(0, 0) LOAD(2, 0) MULTIPLY(1, 1) LOAD(3, 1) MULTIPLY(2, 0) LOAD(4, 0) MULTIPLY(3, 1)
        } else if (rows == 1) {
            LOAD(0, 0) LOAD(1, 1) MULTIPLY(0, 0) MULTIPLY(1, 1) LOAD(2, 0) LOAD(3, 1) MULTIPLY(2, 0) MULTIPLY(3, 1)
        } else {
            LOAD(0, 0) MULTIPLY(0, 0) LOAD(1, 0) MULTIPLY(1, 0) LOAD(2, 0) MULTIPLY(2, 0) LOAD(3, 0) MULTIPLY(3, 0)
        }
    }
    float sums[MR * 8 * VL];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int c = 0; c < 2 * panels; c++) store_v(sums + (r * 2 * panels + c) * VL, acc[r][c], F32);
    store_sums(out, sums, rows, 2 * panels * VL, row, column);
}

#define TILE_CASE(rows, panels) \
    case rows: tile(rows, panels, dt, x, ldx, w, panel_bytes, K, out, row, column); break;

INLINE void tile_one_panel(int rows, const int dt, const float *x, int64_t ldx, const char *w, int64_t panel_bytes, int64_t K,
                     const Output *out, int64_t row, int64_t column) {
    switch (rows) {
        TILE_CASE(1, 1) TILE_CASE(2, 1) TILE_CASE(3, 1) TILE_CASE(4, 1) TILE_CASE(5, 1) TILE_CASE(6, 1)
#if MR >= 8
        TILE_CASE(7, 1) TILE_CASE(8, 1)
#endif
#if MR >= 12
        TILE_CASE(9, 1) TILE_CASE(10, 1) TILE_CASE(11, 1) TILE_CASE(12, 1)
#endif
    }
}

/* With few rows there are free registers: several panels at once keep enough fma chains in
 * flight. */
INLINE void tile_wide(int rows, const int dt, const float *x, int64_t ldx, const char *w, int64_t panel_bytes, int64_t K,
                      const Output *out, int64_t row, int64_t column) {
    switch (rows) {
        TILE_CASE(1, 4) TILE_CASE(2, 4)
#if MR >= 8
        TILE_CASE(3, 2) TILE_CASE(4, 2)
#endif
    }
}

INLINE int num_wide_panels(int64_t rows) { return rows <= 2 ? 4 : (MR >= 8 && rows <= 4) ? 2 : 1; }

typedef struct {
    const float *x; /* [M, ldx], widened */
    const char *w;
    int64_t ldx, M, K;
    Output out;
} Gemm;

/* Rows m0 .. m1-1 times panels p0 .. p1-1, without a copy of the panels. Rows are divided evenly
 * among tiles (nine are five and four), because a tile of one row has too few fma chains. */
INLINE void run_direct(const Gemm *gemm, const int dt, int64_t m0, int64_t m1, int64_t p0, int64_t p1) {
    const int64_t bytes = gemm->K * NR * size_of(dt), count = m1 - m0, tiles = ceil_to(count, MR) / MR;
    for (int64_t p = p0; p < p1;) {
        const int64_t num_panels = num_wide_panels(count), step = p + num_panels <= p1 ? num_panels : 1;
        for (int64_t t = 0; t < tiles; t++) {
            const int64_t m = m0 + count * t / tiles;
            const int rows = (int)(m0 + count * (t + 1) / tiles - m);
            const float *x = gemm->x + m * gemm->ldx;
            if (step > 1) tile_wide(rows, dt, x, gemm->ldx, gemm->w + p * bytes, bytes, gemm->K, &gemm->out, m, p * NR);
            else tile_one_panel(rows, dt, x, gemm->ldx, gemm->w + p * bytes, bytes, gemm->K, &gemm->out, m, p * NR);
        }
        p += step;
    }
}

static void run_direct_f32(const Gemm *gemm, int64_t m0, int64_t m1, int64_t p0, int64_t p1) {
    run_direct(gemm, F32, m0, m1, p0, p1);
}
static void run_direct_bf16(const Gemm *gemm, int64_t m0, int64_t m1, int64_t p0, int64_t p1) {
    run_direct(gemm, BF16, m0, m1, p0, p1);
}
static void run_direct_f16(const Gemm *gemm, int64_t m0, int64_t m1, int64_t p0, int64_t p1) {
    run_direct(gemm, F16_DIRECT, m0, m1, p0, p1);
}

INLINE void widen(float *out, const void *in, int64_t n, const int dt) {
    for (int64_t i = 0; i < n; i += 2 * VL) {
        vf a, b;
        load_packed(at(in, i, dt), dt, &a, &b);
        store_v(out + i, a, F32);
        store_v(out + i + VL, b, F32);
    }
}

/* Many rows: widen each panel once to fp32; all tiles of the row block read that. */
static void run_widened(const Gemm *gemm, int dt, int64_t m0, int64_t m1, int64_t p0, int64_t p1) {
    static __thread void *buffer;
    static __thread size_t capacity;
    const int64_t count = gemm->K * NR;
    Gemm widened = *gemm;
    float *panel = scratch(&buffer, &capacity, (size_t)(count + NR) * 4);
    for (int64_t p = p0; p < p1; p++) {
        const void *w = gemm->w + p * count * 2;
        if (dt == BF16) widen(panel, w, count, BF16);
        else if (dt == F16) widen(panel, w, count, F16);
        else widen(panel, w, count, F16_DIRECT);
        widened.w = (const char *)panel - p * count * 4;
        widened.out.prefetch = p + 1 < p1 ? (const char *)w + count * 2 : NULL; /* the next panel */
        run_direct_f32(&widened, m0, m1, p, p + 1);
    }
}

static void run_row_block(const Gemm *gemm, int dt, int64_t m0, int64_t m1, int64_t p0, int64_t p1) {
    if (dt == F32) run_direct_f32(gemm, m0, m1, p0, p1);
    else if (m1 - m0 >= MR + MR / 2 || (dt == F16 && dt != F16_DIRECT)) run_widened(gemm, dt, m0, m1, p0, p1);
    else if (dt == BF16) run_direct_bf16(gemm, m0, m1, p0, p1);
    else run_direct_f16(gemm, m0, m1, p0, p1);
}

/* Elements first .. end-1 of a row of K numbers, and zeros up to Kp. */
INLINE void widen_part(float *out, const void *in, int64_t K, int64_t Kp, int64_t first, int64_t end, const int dt) {
    int64_t k = first;
    for (; k + VL <= end; k += VL) store_v(out + k, load_v(at(in, k, dt), dt), F32);
    if (k < end) store_tail(out + k, load_tail(at(in, k, dt), end - k, dt), end - k, F32);
    if (end == K) for (k = K; k < Kp; k++) out[k] = 0.0f;
}

static void team_widen(float *out, const void *x, int64_t stride, int64_t M, int64_t K, int64_t Kp, int dt) {
    const int64_t parts = ceil_to(K, PART_LEN) / PART_LEN;
#pragma omp for schedule(static) nowait
    for (int64_t i = 0; i < M * parts; i++) {
        const int64_t m = i / parts, first = i % parts * PART_LEN, end = min64(K, first + PART_LEN);
        if (dt == F32) widen_part(out + m * Kp, at(x, m * stride, F32), K, Kp, first, end, F32);
        else if (dt == BF16) widen_part(out + m * Kp, at(x, m * stride, BF16), K, Kp, first, end, BF16);
        else widen_part(out + m * Kp, at(x, m * stride, F16), K, Kp, first, end, F16);
        if (dt == F16_SHIFTED) for (int64_t k = first; k < end; k++) out[m * Kp + k] *= 0x1p112f;
    }
}

INLINE int is_widened(int64_t K, int64_t dt) { return dt != F32 || K % 4 != 0; }

int64_t linear_bytes(int64_t M, int64_t K, int64_t dt) {
    if (dt == BF16_AMX) return amx_row_bytes(M, K);
    return is_widened(K, dt) ? M * ceil_to(K, 4) * 4 : 0;
}

void team_linear(const Product *p) {
    if (p->dt == BF16_AMX) {
        team_amx_linear(p);
        return;
    }
    const int64_t M = p->M, Kp = ceil_to(p->K, 4), panels = ceil_to(p->N, NR) / NR, threads = omp_get_num_threads();
    const int dt = product_dtype(p->packed, p->N, p->K, (int)p->dt);
    Gemm gemm = {.x = p->x, .w = p->packed, .ldx = p->stride, .M = M, .K = Kp, .out = {p->y, p->bias, p->N, p->N, (int)p->out_dt}};
    if (is_widened(p->K, p->dt)) {
        team_widen(p->rows, p->x, p->stride, M, p->K, Kp, dt);
        gemm.x = p->rows;
        gemm.ldx = Kp;
        BARRIER
    }
    /* Divide the panels among the threads; with too few panels also the row blocks. */
    const int64_t blocks = ceil_to(M, ROW_BLOCK) / ROW_BLOCK;
    const int64_t row_parts = max64(1, min64(blocks, threads * 2 / max64(panels, 1)));
    const int64_t panel_parts = max64(1, threads / row_parts);
    for (int64_t t = omp_get_thread_num(); t < row_parts * panel_parts; t += threads) {
        const int64_t i = t % panel_parts, j = t / panel_parts;
        const int64_t p0 = panels * i / panel_parts, p1 = panels * (i + 1) / panel_parts;
        for (int64_t b = blocks * j / row_parts; b < blocks * (j + 1) / row_parts; b++)
            run_row_block(&gemm, dt, b * ROW_BLOCK, min64(M, (b + 1) * ROW_BLOCK), p0, p1);
    }
}

void run_linear(void *y, const void *x, int64_t stride, const void *packed, const float *bias, int64_t M, int64_t N,
                int64_t K, int64_t dt, int64_t out_dt, int64_t threads) {
    static __thread void *buffer;
    static __thread size_t capacity;
    if (M <= 0) return;
    void *rows = scratch(&buffer, &capacity, (size_t)linear_bytes(M, K, dt));
    const Product p = {y, x, stride, packed, bias, M, N, K, dt, out_dt, rows};
    TEAM(threads, M * N * K > MIN_PARALLEL_PRODUCTS, team_linear(&p));
}
