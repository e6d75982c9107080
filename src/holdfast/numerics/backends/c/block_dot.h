/* Integer dot products of two k-groups: the only part of the quantised product that is written for
 * each instruction set.
 *
 * A vector of weights holds VL columns of four consecutive k each. `dot_pair` adds, to VL sums,
 * the products of two such vectors with four activations each. Weights are unsigned below 64, or int8 for Q8_0 (is_wide):
 * with VNNI those are stored with 128 added, as Q8_ZERO says. Every sum is exact. */
#ifndef HOLDFAST_BLOCK_DOT_H
#define HOLDFAST_BLOCK_DOT_H

#include "simd.h"

#ifdef HOLDFAST_PLAIN
#define BLOCK_FORM "plain"
#elif VL == 16 && defined(__AVX512VNNI__)
#define BLOCK_FORM "avx512-vnni"
#define Q8_ZERO 128
#elif VL == 16
#define BLOCK_FORM "avx512"
#elif VL == 8 && (defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__)))
#define BLOCK_FORM "avx-vnni"
#define Q8_ZERO 128
#elif VL == 8
#define BLOCK_FORM "avx2"
#elif defined(__ARM_FEATURE_DOTPROD) && defined(__ARM_FEATURE_MATMUL_INT8)
#define BLOCK_FORM "neon-i8mm"
#define ROW_PAIRS 1
#elif defined(__ARM_FEATURE_DOTPROD)
#define BLOCK_FORM "neon-dotprod"
#else
#define BLOCK_FORM "neon"
#endif
#ifndef Q8_ZERO
#define Q8_ZERO 0
#endif
/* SIGNED_WEIGHTS: the weights of dot_pair may be negative. */
#if VL == 4 || defined(HOLDFAST_PLAIN)
#define SIGNED_WEIGHTS 1
INLINE vi subtract_bytes(vi w, const int zero) {
    int8_t bytes[4 * VL];
    memcpy(bytes, &w, sizeof w);
    for (int i = 0; i < 4 * VL; i++) bytes[i] = (int8_t)(bytes[i] - zero);
    memcpy(&w, bytes, sizeof w);
    return w;
}
#else
#define SIGNED_WEIGHTS 0
INLINE vi subtract_bytes(vi w, const int zero) { return (void)zero, w; }
#endif
/* ROW_PAIRS: one instruction multiplies two rows by two columns, over eight k. */
#ifndef ROW_PAIRS
#define ROW_PAIRS 0
#endif

INLINE int32_t four_bytes(const int8_t *p) {
    int32_t word;
    memcpy(&word, p, 4);
    return word;
}

#ifdef HOLDFAST_PLAIN
INLINE vi dot_pair(vi acc, vi w0, vi w1, const int8_t *x0, const int8_t *x1, const int is_wide) {
    int8_t w[2][4 * VL];
    int32_t sums[VL];
    (void)is_wide;
    memcpy(w[0], &w0, sizeof w0), memcpy(w[1], &w1, sizeof w1), memcpy(sums, &acc, sizeof acc);
    for (int j = 0; j < 8; j++)
        for (int c = 0; c < VL; c++) sums[c] += w[j / 4][4 * c + j % 4] * (j < 4 ? x0 : x1)[j % 4];
    memcpy(&acc, sums, sizeof acc);
    return acc;
}
#elif VL == 16
INLINE __m512i splat_four(const int8_t *p) { return _mm512_set1_epi32(four_bytes(p)); }
#if defined(__AVX512VNNI__)
INLINE vi dot_pair(vi acc, vi w0, vi w1, const int8_t *x0, const int8_t *x1, const int is_wide) {
    (void)is_wide;
    const __m512i sum = _mm512_dpbusd_epi32((__m512i)acc, (__m512i)w0, splat_four(x0));
    return (vi)_mm512_dpbusd_epi32(sum, (__m512i)w1, splat_four(x1));
}
#else
INLINE __m512i pairs(__m512i w, __m512i x, const int is_wide) {
    if (!is_wide) return _mm512_maddubs_epi16(w, x);
    /* |w| <= 128 and |x| <= 127: two products are at most 32512, below the saturation at 32767. */
    const __m512i signed_x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x);
    return _mm512_maddubs_epi16(_mm512_abs_epi8(w), signed_x);
}
INLINE vi dot_pair(vi acc, vi w0, vi w1, const int8_t *x0, const int8_t *x1, const int is_wide) {
    const __m512i ones = _mm512_set1_epi16(1);
    const __m512i a = pairs((__m512i)w0, splat_four(x0), is_wide);
    const __m512i b = pairs((__m512i)w1, splat_four(x1), is_wide);
    if (!is_wide) return acc + (vi)_mm512_madd_epi16(_mm512_add_epi16(a, b), ones); /* 4 * 63 * 127 = 32004 */
    return acc + (vi)_mm512_madd_epi16(a, ones) + (vi)_mm512_madd_epi16(b, ones);
}
#endif
#elif VL == 8
INLINE __m256i splat_four(const int8_t *p) { return _mm256_set1_epi32(four_bytes(p)); }
#if Q8_ZERO
#if defined(__AVXVNNI__)
#define DPBUSD _mm256_dpbusd_avx_epi32
#else
#define DPBUSD _mm256_dpbusd_epi32
#endif
INLINE vi dot_pair(vi acc, vi w0, vi w1, const int8_t *x0, const int8_t *x1, const int is_wide) {
    (void)is_wide;
    const __m256i sum = DPBUSD((__m256i)acc, (__m256i)w0, splat_four(x0));
    return (vi)DPBUSD(sum, (__m256i)w1, splat_four(x1));
}
#else
INLINE __m256i pairs(__m256i w, __m256i x, const int is_wide) {
    if (!is_wide) return _mm256_maddubs_epi16(w, x);
    /* |w| <= 128 and |x| <= 127: two products are at most 32512, below the saturation at 32767. */
    return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
}
INLINE vi dot_pair(vi acc, vi w0, vi w1, const int8_t *x0, const int8_t *x1, const int is_wide) {
    const __m256i ones = _mm256_set1_epi16(1);
    const __m256i a = pairs((__m256i)w0, splat_four(x0), is_wide);
    const __m256i b = pairs((__m256i)w1, splat_four(x1), is_wide);
    if (!is_wide) return acc + (vi)_mm256_madd_epi16(_mm256_add_epi16(a, b), ones); /* 4 * 63 * 127 = 32004 */
    return acc + (vi)_mm256_madd_epi16(a, ones) + (vi)_mm256_madd_epi16(b, ones);
}
#endif
#elif defined(__ARM_FEATURE_DOTPROD)
/* Multiplies one k-group at a time, with the activations at x + 4 * word. */
#define DOT_WORDS 1
INLINE vi dot_word(vi acc, vi w, const int8_t *x, const int64_t word) {
    const int8x16_t four = vld1q_s8(x + 16 * (word / 4));
    switch (word % 4) {
        case 0: return (vi)vdotq_laneq_s32((int32x4_t)acc, (int8x16_t)w, four, 0);
        case 1: return (vi)vdotq_laneq_s32((int32x4_t)acc, (int8x16_t)w, four, 1);
        case 2: return (vi)vdotq_laneq_s32((int32x4_t)acc, (int8x16_t)w, four, 2);
        default: return (vi)vdotq_laneq_s32((int32x4_t)acc, (int8x16_t)w, four, 3);
    }
}
#else
INLINE vi dot_pair(vi acc, vi w0, vi w1, const int8_t *x0, const int8_t *x1, const int is_wide) {
    (void)is_wide;
    const int8x8_t a = vreinterpret_s8_s32(vdup_n_s32(four_bytes(x0)));
    const int8x8_t b = vreinterpret_s8_s32(vdup_n_s32(four_bytes(x1)));
    /* Two products of -128 and 127 are within 16 bits. */
    int16x8_t low = vmull_s8(vget_low_s8((int8x16_t)w0), a), high = vmull_s8(vget_high_s8((int8x16_t)w0), a);
    int32x4_t low_sums = vpaddlq_s16(low), high_sums = vpaddlq_s16(high); /* columns 0, 0, 1, 1 and 2, 2, 3, 3 */
    low = vmull_s8(vget_low_s8((int8x16_t)w1), b), high = vmull_s8(vget_high_s8((int8x16_t)w1), b);
    low_sums = vpadalq_s16(low_sums, low), high_sums = vpadalq_s16(high_sums, high);
    return acc + (vi)vpaddq_s32(low_sums, high_sums);
}
#endif

#ifndef DOT_WORDS
#define DOT_WORDS 0
#endif

#if ROW_PAIRS
/* Sums of two rows r, r + 1 and four columns: {r c0, r c1, r+1 c0, r+1 c1} and the same of c2, c3. */
typedef struct {
    int32x4_t low, high;
} PairSum;

/* Add the products of two k-groups with eight activations of each of two rows. */
INLINE PairSum dot_row_pair(PairSum sum, vi w0, vi w1, int8x16_t x) {
    sum.low = vmmlaq_s32(sum.low, x, vreinterpretq_s8_s32(vzip1q_s32((int32x4_t)w0, (int32x4_t)w1)));
    sum.high = vmmlaq_s32(sum.high, x, vreinterpretq_s8_s32(vzip2q_s32((int32x4_t)w0, (int32x4_t)w1)));
    return sum;
}

INLINE vi first_row(PairSum sum) {
    return (vi)vzip1q_s64(vreinterpretq_s64_s32(sum.low), vreinterpretq_s64_s32(sum.high));
}
INLINE vi second_row(PairSum sum) {
    return (vi)vzip2q_s64(vreinterpretq_s64_s32(sum.low), vreinterpretq_s64_s32(sum.high));
}
#endif

/* VL unsigned bytes, and VL signed bytes, as int32. */
INLINE vi load_u8(const uint8_t *p) {
#ifdef HOLDFAST_PLAIN
    vi v;
    for (int i = 0; i < VL; i++) v[i] = p[i];
    return v;
#elif VL == 16
    return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
#elif VL == 8
    return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
#else
    uint32_t word;
    memcpy(&word, p, 4);
    return (vi)vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(word)))));
#endif
}
INLINE vi load_i8(const int8_t *p) { return ((load_u8((const uint8_t *)p) << 24) >> 24); }
INLINE vf float_v(vi v) { return (vf)__builtin_convertvector(v, vf); }
INLINE vi splat_i(int32_t x) { return (vi){0} + x; }

#endif
