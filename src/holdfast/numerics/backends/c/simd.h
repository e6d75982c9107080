/* One SIMD vector type for every CPU, and conversions between it and the three dtypes.
 *
 * Invariant: every form (AVX-512, AVX2, NEON, plain C) and every compiler gives the same bits.
 *
 *   - A lane is one output element (a column, a position, a dimension), or one of the SUM_LANES
 *     running sums of a reduction. So the vector width never decides the order of a sum.
 *   - A multiply-add is written as fma_v(); the compiler may not contract other operations.
 *   - Only operations are used whose result IEEE 754 defines: + - * / sqrt fma, comparisons and
 *     conversions. exp, log and tanh are made of them here. No function of libm decides a bit.
 *   - Every thread rounds to nearest and keeps subnormal numbers (DEFAULT_FP).
 *   - The tail of an array runs the same lanes as a full vector.
 *
 * A NaN stays a NaN in every form. Its sign and payload are not defined in fp32 and fp16. */
#ifndef HOLDFAST_SIMD_H
#define HOLDFAST_SIMD_H

#include <math.h> /* constants only */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#else /* one thread; the bits are the same */
static inline int omp_get_thread_num(void) { return 0; }
static inline int omp_get_num_threads(void) { return 1; }
#endif

/* HOLDFAST_PLAIN is 8 or 16: plain C with that many lanes, on any CPU. VL is 4 with NEON only. */
#if defined(HOLDFAST_PLAIN)
#define VL HOLDFAST_PLAIN
#elif defined(__AVX512F__) && defined(__AVX512BW__)
#include <immintrin.h>
#define VL 16
typedef __m512 vf;
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define VL 8
typedef __m256 vf;
#elif defined(__aarch64__)
#include <arm_neon.h>
#define VL 4
typedef float32x4_t vf;
#else
#define HOLDFAST_PLAIN 8
#define VL 8
#endif
#ifdef HOLDFAST_PLAIN
typedef float vf __attribute__((vector_size(4 * VL)));
#endif

typedef int32_t vi __attribute__((vector_size(4 * VL)));
typedef uint32_t vu __attribute__((vector_size(4 * VL)));

#define INLINE static inline __attribute__((always_inline))
#define API __attribute__((visibility("default")))
#ifdef HOLDFAST_PLAIN
#define UNROLL /* unrolled plain C takes minutes to compile */
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

/* Smaller work is done by one thread: it takes tens of microseconds. Where another process keeps a
 * CPU busy, the threads of a parallel region wait for each other for milliseconds. */
#define MIN_PARALLEL (1 << 14)          /* elements that are read or written */
#define MIN_PARALLEL_PRODUCTS (1 << 17) /* products of a GEMM or of attention */

/* BF16_AMX: bf16 whose products AMX computes; only of packed weights and of GEMMs. */
enum { F32 = 0, BF16 = 1, F16 = 2, BF16_AMX = 3 };

INLINE int64_t size_of(const int dt) { return dt == F32 ? 4 : 2; }
INLINE int64_t ceil_to(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
INLINE int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* ---- load one vector, widened to fp32; max_v and min_v return b or NaN if an operand is NaN
 * ---- */

#ifdef HOLDFAST_PLAIN
#include "simd_plain.h"
#elif VL == 16
INLINE vf splat(float x) { return _mm512_set1_ps(x); }
INLINE vf fma_v(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf max_v(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf min_v(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vf load_v(const void *p, const int dt) {
    if (dt == F32) return _mm512_loadu_ps(p);
    if (dt == F16) return _mm512_cvtph_ps(_mm256_loadu_si256(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}
#elif VL == 8
INLINE vf splat(float x) { return _mm256_set1_ps(x); }
INLINE vf fma_v(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vf max_v(vf a, vf b) { return _mm256_max_ps(a, b); }
INLINE vf min_v(vf a, vf b) { return _mm256_min_ps(a, b); }
INLINE vf load_v(const void *p, const int dt) {
    if (dt == F32) return _mm256_loadu_ps(p);
    if (dt == F16) return _mm256_cvtph_ps(_mm_loadu_si128(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}
#else
INLINE vf splat(float x) { return vdupq_n_f32(x); }
INLINE vf fma_v(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
INLINE vf max_v(vf a, vf b) { return vmaxq_f32(a, b); }
INLINE vf min_v(vf a, vf b) { return vminq_f32(a, b); }
INLINE vf load_v(const void *p, const int dt) {
    if (dt == F32) return vld1q_f32(p);
    if (dt == F16) return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
    return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vld1_u16(p)), 16));
}
#endif

/* Two consecutive vectors. NEON widens eight bf16 with two zips, which run on both pipes (a
 * shift runs on one). */
INLINE void load_2v(const void *p, const int dt, vf *a, vf *b) {
#if VL == 4
    if (dt == BF16) {
        const uint16x8_t u = vld1q_u16(p), zero = vdupq_n_u16(0);
        *a = vreinterpretq_f32_u16(vzip1q_u16(zero, u));
        *b = vreinterpretq_f32_u16(vzip2q_u16(zero, u));
        return;
    }
    if (dt == F16) {
        const float16x8_t h = vreinterpretq_f16_u16(vld1q_u16(p));
        *a = vcvt_f32_f16(vget_low_f16(h));
        *b = vcvt_high_f32_f16(h);
        return;
    }
#endif
    *a = load_v(p, dt);
    *b = load_v((const char *)p + VL * size_of(dt), dt);
}

/* ---- store one vector, rounded to nearest even ---- */

INLINE vi bf16_bits(vf v) {
    const vu u = (vu)v;
    const vu rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const vu is_nan = (vu)(vi)(v != v); /* rounding a NaN up could make it an infinity */
    return (vi)((rounded & ~is_nan) | (0x7fc0u & is_nan));
}

INLINE void store_v(void *p, vf v, const int dt) {
#ifdef HOLDFAST_PLAIN
    store_plain(p, dt == BF16 ? (vf)bf16_bits(v) : v, dt);
#elif VL == 16
    if (dt == F32) _mm512_storeu_ps(p, v);
    else if (dt == F16) _mm256_storeu_si256(p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    else _mm256_storeu_si256(p, _mm512_cvtepi32_epi16((__m512i)bf16_bits(v)));
#elif VL == 8
    if (dt == F32) _mm256_storeu_ps(p, v);
    else if (dt == F16) _mm_storeu_si128(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
    else {
        const __m256i w = (__m256i)bf16_bits(v);
        _mm_storeu_si128(p, _mm_packus_epi32(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1)));
    }
#else
    if (dt == F32) vst1q_f32(p, v);
    else if (dt == F16) vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v)));
    else vst1_u16(p, vmovn_u32((uint32x4_t)bf16_bits(v)));
#endif
}

/* The first n lanes only; the other lanes are zero. */
INLINE vf load_tail(const void *p, int64_t n, const int dt) {
    float pad[VL] = {0};
    memcpy(pad, p, (size_t)(n * size_of(dt)));
    return load_v(pad, dt);
}

INLINE void store_tail(void *p, vf v, int64_t n, const int dt) {
    float pad[VL];
    store_v(pad, v, dt);
    memcpy(p, pad, (size_t)(n * size_of(dt)));
}

INLINE vf load_partial(const void *p, int64_t n, const int dt) { return n >= VL ? load_v(p, dt) : load_tail(p, n, dt); }
INLINE void store_partial(void *p, vf v, int64_t n, const int dt) {
    if (n >= VL) store_v(p, v, dt);
    else store_tail(p, v, n, dt);
}

/* The statements for each vector of `count` elements: `i` is its first element, `n` its number
 * of lanes in use. The tail is outside the loop, so that the loop contains no function call. */
#define FOR_EACH_VECTOR(count, ...)                                         \
    {                                                                   \
        int64_t i = 0;                                                  \
        for (; i + VL <= (count); i += VL) {                            \
            const int64_t n = VL;                                       \
            __VA_ARGS__                                                 \
        }                                                               \
        if (i < (count)) {                                              \
            const int64_t n = (count) - i;                              \
            __VA_ARGS__                                                 \
        }                                                               \
    }

INLINE const void *at(const void *p, int64_t i, const int dt) { return (const char *)p + i * size_of(dt); }
INLINE void *at_mut(void *p, int64_t i, const int dt) { return (char *)p + i * size_of(dt); }

/* v rounded to the dtype: its value after a store and a load. */
INLINE vf round_v(vf v, const int dt) {
    if (dt == F32) return v;
    if (dt == BF16) return (vf)((vu)bf16_bits(v) << 16);
#ifdef HOLDFAST_PLAIN
    uint16_t half[VL];
    store_plain(half, v, F16);
    return load_v(half, F16);
#elif VL == 16
    return _mm512_cvtph_ps(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#elif VL == 8
    return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#else
    return vcvt_f32_f16(vcvt_f16_f32(v));
#endif
}

INLINE vf select_v(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }

/* The first n lanes; the others are zero. */
INLINE vf first_lanes(vf v, int64_t n) {
    float lanes[VL];
    memcpy(lanes, &v, sizeof lanes);
    for (int64_t i = n; i < VL; i++) lanes[i] = 0.0f;
    memcpy(&v, lanes, sizeof lanes);
    return v;
}

/* acc + w * x[lane], for four consecutive x that NEON holds in one register. */
#if VL == 4
#define FMA_LANE(acc, w, name, p, lane) acc = vfmaq_laneq_f32(acc, w, name, lane)
#else
#define FMA_LANE(acc, w, name, p, lane) acc = fma_v(w, splat((p)[lane]), acc)
#endif

/* What comes before it is computed before what follows and depends on the values. On Neoverse cores an
 * instruction of a shorter latency waits after one of a longer latency, so that they are not mixed. */
INLINE void in_order(vf *values, const int count) {
#if VL == 4 && defined(__OPTIMIZE__)
    UNROLL for (int i = 0; i < count; i++) __asm__ volatile("" : "+w"(values[i]));
#endif
    (void)values, (void)count;
}

/* ---- reductions ----
 *
 * A sum over an array has SUM_LANES running sums: element i belongs to sum i % SUM_LANES. They are
 * added by one tree: i and i + 8, then i and i + 4, 2, 1. A missing element is +0, which changes no
 * sum: a running sum starts with +0 and is never -0. */
#define SUM_LANES 16
#define SUM_PARTS (SUM_LANES / VL)
typedef struct {
    vf part[SUM_PARTS];
} Sum;

INLINE Sum zero_sum(void) {
    Sum sum;
    UNROLL for (int k = 0; k < SUM_PARTS; k++) sum.part[k] = splat(0.0f);
    return sum;
}

/* The statements for each vector of `count` elements, as FOR_EACH_VECTOR; `k` is its part of a Sum. n may
 * be more than VL. */
#define FOR_EACH_PART(count, ...)                                       \
    {                                                                   \
        int64_t base = 0;                                               \
        for (; base + SUM_LANES <= (count); base += SUM_LANES)          \
            UNROLL for (int k = 0; k < SUM_PARTS; k++) {                \
                const int64_t i = base + k * VL, n = VL;                \
                __VA_ARGS__                                             \
            }                                                           \
        UNROLL for (int k = 0; k < SUM_PARTS; k++) {                    \
            const int64_t i = base + k * VL, n = (count) - i;           \
            if (n > 0) { __VA_ARGS__ }                                  \
        }                                                               \
    }

INLINE float reduce_sum(const Sum sum) {
#if VL == 4
    const vf four = (sum.part[0] + sum.part[2]) + (sum.part[1] + sum.part[3]);
    const float32x2_t pair = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(pair, 0) + vget_lane_f32(pair, 1);
#elif defined(HOLDFAST_PLAIN)
    float a[SUM_LANES];
    memcpy(a, &sum, sizeof a);
    UNROLL for (int half = SUM_LANES / 2; half > 0; half /= 2)
        UNROLL for (int i = 0; i < half; i++) a[i] = a[i] + a[i + half];
    return a[0];
#else
#if VL == 16
    const __m512i lanes = (__m512i)sum.part[0];
    const __m256 eight = (__m256)_mm512_castsi512_si256(lanes) + (__m256)_mm512_extracti64x4_epi64(lanes, 1);
#else
    const __m256 eight = sum.part[0] + sum.part[1];
#endif
    const __m128 four = _mm256_castps256_ps128(eight) + _mm256_extractf128_ps(eight, 1);
    const __m128 two = four + _mm_movehl_ps(four, four);
    return _mm_cvtss_f32(two) + _mm_cvtss_f32(_mm_movehdup_ps(two));
#endif
}

/* The larger of the two; `best` if x is a NaN. `best` is none. A maximum has the same value in any
 * order. The sign of a zero is not defined, and no caller depends on it. */
INLINE vf max_number_v(vf best, vf x) {
#if VL == 4
    return vmaxnmq_f32(best, x);
#else
    return max_v(x, best);
#endif
}

/* The largest lane that is no NaN; -inf if there is none. */
INLINE float reduce_max(vf v) {
#if VL == 4
    return vmaxnmvq_f32(vmaxnmq_f32(v, splat(-INFINITY)));
#else
    float a[VL];
    memcpy(a, &v, sizeof a);
    float m = -INFINITY;
    UNROLL for (int i = 0; i < VL; i++) m = a[i] > m ? a[i] : m;
    return m;
#endif
}

/* Four times a constant that a product is added to. The sum takes the constant's register: NEON loads it anew,
 * because a copy of a register takes the place of a product. */
typedef struct {
    float lanes[4] __attribute__((aligned(16)));
} Addend;
#define ADDEND(c) {{c, c, c, c}}
INLINE vf load_addend(const Addend *constant) {
#if VL == 4 && defined(__OPTIMIZE__)
    vf v;
    __asm__ volatile("ldr %q0, %1" : "=w"(v) : "m"(*constant));
    return v;
#else
    return splat(constant->lanes[0]);
#endif
}

/* e^x of at most SUM_PARTS vectors, about 1 ulp; 0 below -87.3 (and for -inf), e^88.3 above 88.3; NaN for NaN.
 * A step is done for all vectors before the next one: the steps of one vector wait for each other. */
#define EACH UNROLL for (int i = 0; i < count; i++)
INLINE void exp_all(vf *x, const int count) {
    static const Addend SHIFT = ADDEND(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    static const Addend C[] = {ADDEND(1.3981999507e-3f), ADDEND(8.3334519073e-3f), ADDEND(4.1665795894e-2f), ADDEND(1.6666665459e-1f),
                               ADDEND(5.0000001201e-1f)};
    vf shifted[SUM_PARTS], n[SUM_PARTS], r[SUM_PARTS], p[SUM_PARTS];
    EACH r[i] = min_v(splat(88.3f), max_v(splat(-87.3f), x[i]));
    in_order(r, count);
    EACH shifted[i] = fma_v(r[i], splat(1.44269504f), load_addend(&SHIFT));
    in_order(shifted, count);
    EACH n[i] = shifted[i] - splat(12582912.0f);
    in_order(n, count);
    EACH r[i] = fma_v(n[i], splat(-0.693359375f), r[i]);
    in_order(r, count);
    EACH r[i] = fma_v(n[i], splat(2.12194440e-4f), r[i]);
    in_order(r, count);
    EACH p[i] = splat(1.9875691500e-4f);
    UNROLL for (int c = 0; c < 5; c++) {
        EACH p[i] = fma_v(p[i], r[i], load_addend(C + c));
        in_order(p, count);
    }
    EACH p[i] = fma_v(p[i], r[i] * r[i], r[i]);
    in_order(p, count);
    EACH p[i] = p[i] + splat(1.0f);
    in_order(p, count);
    EACH {
        const vf e = p[i] * (vf)(((vi)shifted[i] << 23) + 0x3f800000); /* 2^n: the low bits of `shifted` are n */
        x[i] = (vf)(~(vi)(x[i] < splat(-87.3f)) & (vi)e);
    }
}
#undef EACH

INLINE vf exp_v(vf x) {
    exp_all(&x, 1);
    return x;
}

/* tanh(x), about 2 ulp: a polynomial below 0.625, above it 1 - 2 / (e^2x + 1); NaN for NaN. */
INLINE vf tanh_v(vf x) {
    const vf size = (vf)((vi)x & 0x7fffffff);
    const vf x2 = x * x;
    vf p = splat(-5.70498872745e-3f);
    p = fma_v(p, x2, splat(2.06390887954e-2f));
    p = fma_v(p, x2, splat(-5.37397155531e-2f));
    p = fma_v(p, x2, splat(1.33314422036e-1f));
    p = fma_v(p, x2, splat(-3.33332819422e-1f));
    const vf small = fma_v(p * x2, x, x);
    const vf large = splat(1.0f) - splat(2.0f) / (exp_v(size + size) + splat(1.0f));
    const vf signed_large = (vf)((vi)large | ((vi)x & (vi)splat(-0.0f)));
    return select_v((vi)(size < splat(0.625f)), small, signed_large);
}

INLINE vf soft_cap_v(vf x, float cap) { return tanh_v(x / splat(cap)) * splat(cap); }

/* log(x) for positive normal x, about 1 ulp. */
INLINE vf log_v(vf x) {
    const vi bits = (vi)x - 0x3f3504f3; /* bits of sqrt(1/2): the mantissa is reduced to [sqrt(1/2), sqrt(2)) */
    const vi e = bits >> 23;
    const vf m = (vf)((bits & 0x007fffff) + 0x3f3504f3) - splat(1.0f);
    vf ef;
#ifdef HOLDFAST_PLAIN
    UNROLL for (int i = 0; i < VL; i++) ef[i] = (float)e[i];
#elif VL == 16
    ef = _mm512_cvtepi32_ps((__m512i)e);
#elif VL == 8
    ef = _mm256_cvtepi32_ps((__m256i)e);
#else
    ef = vcvtq_f32_s32((int32x4_t)e);
#endif
    vf p = splat(7.0376836292e-2f);
    p = fma_v(p, m, splat(-1.1514610310e-1f));
    p = fma_v(p, m, splat(1.1676998740e-1f));
    p = fma_v(p, m, splat(-1.2420140846e-1f));
    p = fma_v(p, m, splat(1.4249322787e-1f));
    p = fma_v(p, m, splat(-1.6668057665e-1f));
    p = fma_v(p, m, splat(2.0000714765e-1f));
    p = fma_v(p, m, splat(-2.4999993993e-1f));
    p = fma_v(p, m, splat(3.3333331174e-1f));
    const vf m2 = m * m;
    vf y = p * m * m2;
    y = fma_v(ef, splat(-2.12194440e-4f), y);
    y = fma_v(m2, splat(-0.5f), y);
    return fma_v(ef, splat(0.693359375f), m + y);
}

/* log(x) of a positive normal number, about 1 ulp: 2 atanh((m - 1) / (m + 1)) + e ln 2, with x = m 2^e and m in
 * [sqrt(1/2), sqrt(2)). The same operations as `log_fp64` of numerics/elementary.py. */
INLINE double log_fp64(double x) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int64_t e = (int64_t)(bits >> 52) - 1022;
    bits = (bits & 0x000fffffffffffffull) | 0x3fe0000000000000ull; /* in [1/2, 1) */
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m < 0.70710678118654757) {
        m = 2.0 * m;
        e = e - 1;
    }
    const double s = (m - 1.0) / (m + 1.0), s2 = s * s;
    double p = 1.0 / 23.0;
    UNROLL for (int k = 21; k > 0; k -= 2) p = p * s2 + 1.0 / (double)k;
    return (double)e * 0x1.62e42feep-1 + (2.0 * s * p + (double)e * 0x1.a39ef35793c76p-33);
}

/* ---- floating-point environment ----
 *
 * Rounding mode and flushing of subnormal numbers belong to a thread, and a worker inherits them
 * from the thread that created it. So every thread of a parallel region that computes starts with
 * DEFAULT_FP: round to nearest, no flushing, until the end of its block. */
#if defined(__aarch64__)
typedef uint64_t FpState; /* FPCR; the default is 0 */
INLINE FpState fp_state(void) {
    FpState state;
    __asm__ volatile("mrs %0, fpcr" : "=r"(state)::"memory");
    return state;
}
INLINE void set_fp_state(FpState state) { __asm__ volatile("msr fpcr, %0" ::"r"(state) : "memory"); }
INLINE FpState changed_bits(FpState state) { return state; }
#elif defined(__x86_64__)
#include <xmmintrin.h>
typedef unsigned FpState; /* MXCSR: flush to zero, rounding, denormals are zero */
INLINE FpState fp_state(void) { return _mm_getcsr(); }
INLINE void set_fp_state(FpState state) { _mm_setcsr(state); }
INLINE FpState changed_bits(FpState state) { return state & 0xe040u; }
#else /* rounding only; no other CPU flushes subnormal numbers by itself */
#include <fenv.h>
typedef int FpState;
INLINE FpState fp_state(void) { return fegetround(); }
INLINE void set_fp_state(FpState state) { fesetround(state); }
INLINE FpState changed_bits(FpState state) { return state ^ FE_TONEAREST; }
#endif

INLINE FpState enter_default_fp(void) {
    const FpState state = fp_state();
    if (__builtin_expect(changed_bits(state) != 0, 0)) set_fp_state(state & ~changed_bits(state));
    return state;
}
INLINE void restore_fp(const FpState *state) {
    if (__builtin_expect(changed_bits(*state) != 0, 0)) set_fp_state(*state);
}
#define DEFAULT_FP const FpState saved_fp __attribute__((cleanup(restore_fp))) = enter_default_fp()

/* A scratch buffer that grows and is reused, one per calling thread and call site. */
INLINE void *scratch(void **slot, size_t *have, size_t need) {
    if (*have < need) {
        free(*slot);
        *have = (size_t)ceil_to((int64_t)need + 4096, 4096);
        *slot = aligned_alloc(4096, *have);
        if (*slot == NULL) {
            fprintf(stderr, "holdfast: no memory for %zu bytes of scratch\n", *have);
            abort();
        }
    }
    return *slot;
}

#endif
