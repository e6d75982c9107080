/* The AVX-512 intrinsics of the kernels by their documented meaning, lane by lane, for a CPU without them.
 * Emulators of x86 such as qemu-user have no AVX-512. */
#include <stdint.h>
#include <string.h>

typedef float __m128 __attribute__((vector_size(16)));
typedef float __m256 __attribute__((vector_size(32)));
typedef float __m512 __attribute__((vector_size(64)));
typedef long long __m256i __attribute__((vector_size(32)));
typedef long long __m512i __attribute__((vector_size(64)));

#define _MM_FROUND_TO_NEAREST_INT 0
#define _MM_FROUND_NO_EXC 8
#define EMULATED static inline __attribute__((unused))
#define EACH_LANE for (int i = 0; i < 16; i++)

EMULATED __m512 _mm512_set1_ps(float x) {
    __m512 v;
    EACH_LANE v[i] = x;
    return v;
}
EMULATED __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
    EACH_LANE c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
}
EMULATED __m512 _mm512_max_ps(__m512 a, __m512 b) {
    EACH_LANE b[i] = a[i] > b[i] ? a[i] : b[i];
    return b;
}
EMULATED __m512 _mm512_min_ps(__m512 a, __m512 b) {
    EACH_LANE b[i] = a[i] < b[i] ? a[i] : b[i];
    return b;
}
EMULATED __m512 _mm512_loadu_ps(const void *p) {
    __m512 v;
    memcpy(&v, p, sizeof v);
    return v;
}
EMULATED void _mm512_storeu_ps(void *p, __m512 v) { memcpy(p, &v, sizeof v); }
EMULATED __m256i _mm256_loadu_si256(const void *p) {
    __m256i v;
    memcpy(&v, p, sizeof v);
    return v;
}
EMULATED void _mm256_storeu_si256(void *p, __m256i v) { memcpy(p, &v, sizeof v); }
EMULATED __m512 _mm512_castsi512_ps(__m512i v) { return (__m512)v; }
EMULATED __m512i _mm512_cvtepu16_epi32(__m256i halves) {
    uint16_t in[16];
    uint32_t out[16];
    __m512i v;
    memcpy(in, &halves, sizeof in);
    EACH_LANE out[i] = in[i];
    memcpy(&v, out, sizeof v);
    return v;
}
EMULATED __m512i _mm512_slli_epi32(__m512i v, int count) {
    uint32_t lanes[16];
    memcpy(lanes, &v, sizeof lanes);
    EACH_LANE lanes[i] <<= count;
    memcpy(&v, lanes, sizeof v);
    return v;
}
EMULATED __m256i _mm512_cvtepi32_epi16(__m512i v) {
    uint32_t in[16];
    uint16_t out[16];
    __m256i halves;
    memcpy(in, &v, sizeof in);
    EACH_LANE out[i] = (uint16_t)in[i];
    memcpy(&halves, out, sizeof halves);
    return halves;
}
EMULATED __m512 _mm512_cvtepi32_ps(__m512i v) {
    int32_t in[16];
    __m512 out;
    memcpy(in, &v, sizeof in);
    EACH_LANE out[i] = (float)in[i];
    return out;
}
EMULATED __m512 _mm512_cvtph_ps(__m256i halves) {
    _Float16 in[16];
    __m512 out;
    memcpy(in, &halves, sizeof in);
    EACH_LANE out[i] = (float)in[i];
    return out;
}
EMULATED __m256i _mm512_cvtps_ph(__m512 v, int rounding) {
    _Float16 out[16];
    __m256i halves;
    (void)rounding;
    EACH_LANE out[i] = (_Float16)v[i];
    memcpy(&halves, out, sizeof halves);
    return halves;
}
EMULATED __m256i _mm512_castsi512_si256(__m512i v) {
    __m256i half;
    memcpy(&half, &v, sizeof half);
    return half;
}
EMULATED __m256i _mm512_extracti64x4_epi64(__m512i v, int part) {
    __m256i half;
    memcpy(&half, (const char *)&v + part * sizeof half, sizeof half);
    return half;
}
EMULATED __m128 _mm256_castps256_ps128(__m256 v) { return (__m128){v[0], v[1], v[2], v[3]}; }
EMULATED __m128 _mm256_extractf128_ps(__m256 v, int part) {
    return (__m128){v[4 * part], v[4 * part + 1], v[4 * part + 2], v[4 * part + 3]};
}
EMULATED __m128 _mm_movehl_ps(__m128 a, __m128 b) { return (__m128){b[2], b[3], a[2], a[3]}; }
EMULATED __m128 _mm_movehdup_ps(__m128 v) { return (__m128){v[1], v[1], v[3], v[3]}; }
EMULATED float _mm_cvtss_f32(__m128 v) { return v[0]; }
