/* The AVX-512 and AMX intrinsics of the kernels by their documented meaning, for a CPU without them.
 * Emulators of x86 such as qemu-user have no AVX-512. */
#include <stdint.h>
#include <string.h>

typedef float __m128 __attribute__((vector_size(16)));
typedef float __m256 __attribute__((vector_size(32)));
typedef float __m512 __attribute__((vector_size(64)));
typedef long long __m128i __attribute__((vector_size(16)));
typedef uint64_t __mmask64;
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

/* ---- bytes and 16-bit integers ---- */

typedef int8_t Bytes __attribute__((vector_size(64)));
typedef uint8_t UnsignedBytes __attribute__((vector_size(64)));
typedef int16_t Words __attribute__((vector_size(64)));
typedef int32_t Integers __attribute__((vector_size(64)));

EMULATED __m512i _mm512_setzero_si512(void) { return (__m512i){0}; }
EMULATED __m512i _mm512_set1_epi32(int32_t x) { return (__m512i)((Integers){0} + x); }
EMULATED __m512i _mm512_set1_epi16(int16_t x) { return (__m512i)((Words){0} + x); }
EMULATED __m512i _mm512_add_epi16(__m512i a, __m512i b) { return (__m512i)((Words)a + (Words)b); }
EMULATED __m512i _mm512_abs_epi8(__m512i v) {
    Bytes lanes = (Bytes)v;
    for (int i = 0; i < 64; i++) lanes[i] = (int8_t)(lanes[i] < 0 ? -lanes[i] : lanes[i]);
    return (__m512i)lanes;
}
EMULATED __mmask64 _mm512_movepi8_mask(__m512i v) {
    __mmask64 mask = 0;
    for (int i = 0; i < 64; i++) mask |= (__mmask64)(((Bytes)v)[i] < 0) << i;
    return mask;
}
EMULATED __m512i _mm512_mask_sub_epi8(__m512i source, __mmask64 mask, __m512i a, __m512i b) {
    Bytes lanes = (Bytes)source;
    for (int i = 0; i < 64; i++)
        if (mask >> i & 1) lanes[i] = (int8_t)(((Bytes)a)[i] - ((Bytes)b)[i]);
    return (__m512i)lanes;
}
/* Sums of two products of unsigned and signed bytes, saturated to 16 bits. */
EMULATED __m512i _mm512_maddubs_epi16(__m512i a, __m512i b) {
    Words out;
    for (int i = 0; i < 32; i++) {
        int32_t sum = 0;
        for (int j = 0; j < 2; j++) sum += ((UnsignedBytes)a)[2 * i + j] * ((Bytes)b)[2 * i + j];
        out[i] = (int16_t)(sum > 32767 ? 32767 : sum < -32768 ? -32768 : sum);
    }
    return (__m512i)out;
}
EMULATED __m512i _mm512_madd_epi16(__m512i a, __m512i b) {
    Integers out;
    EACH_LANE out[i] = ((Words)a)[2 * i] * ((Words)b)[2 * i] + ((Words)a)[2 * i + 1] * ((Words)b)[2 * i + 1];
    return (__m512i)out;
}
EMULATED __m512i _mm512_dpbusd_epi32(__m512i sum, __m512i a, __m512i b) {
    Integers out = (Integers)sum;
    EACH_LANE for (int j = 0; j < 4; j++) out[i] += ((UnsignedBytes)a)[4 * i + j] * ((Bytes)b)[4 * i + j];
    return (__m512i)out;
}
EMULATED __m128i _mm_loadu_si128(const void *p) {
    __m128i v;
    memcpy(&v, p, sizeof v);
    return v;
}
EMULATED __m512i _mm512_cvtepu8_epi32(__m128i bytes) {
    uint8_t in[16];
    Integers out;
    memcpy(in, &bytes, sizeof in);
    EACH_LANE out[i] = in[i];
    return (__m512i)out;
}

/* ---- tiles: eight registers of up to 16 rows of 64 bytes ---- */

static __thread uint8_t tiles[8][16][64], tile_config[64];

EMULATED int tile_row_bytes(int t) { return tile_config[16 + 2 * t] | tile_config[17 + 2 * t] << 8; }
EMULATED int tile_rows(int t) { return tile_config[48 + t]; }
EMULATED void _tile_loadconfig(const void *config) {
    memcpy(tile_config, config, sizeof tile_config);
    memset(tiles, 0, sizeof tiles);
}
EMULATED void _tile_release(void) { memset(tile_config, 0, sizeof tile_config); }
EMULATED void _tile_zero(int t) { memset(tiles[t], 0, sizeof tiles[t]); }
EMULATED void _tile_loadd(int t, const void *base, long stride) {
    _tile_zero(t);
    for (int r = 0; r < tile_rows(t); r++) memcpy(tiles[t][r], (const char *)base + r * stride, (size_t)tile_row_bytes(t));
}
EMULATED void _tile_stored(int t, void *base, long stride) {
    for (int r = 0; r < tile_rows(t); r++) memcpy((char *)base + r * stride, tiles[t][r], (size_t)tile_row_bytes(t));
}
/* Adds products of signed bytes of rows of a and unsigned bytes of columns of b, four at a time. */
EMULATED void _tile_dpbsud(int sums, int a, int b) {
    if (tile_row_bytes(a) != 4 * tile_rows(b) || tile_rows(sums) != tile_rows(a) || tile_row_bytes(sums) != tile_row_bytes(b))
        __builtin_trap(); /* an invalid instruction */
    for (int m = 0; m < tile_rows(sums); m++)
        for (int n = 0; n < tile_row_bytes(sums) / 4; n++) {
            int32_t sum;
            memcpy(&sum, &tiles[sums][m][4 * n], 4);
            for (int k = 0; k < tile_row_bytes(a); k++) sum += (int8_t)tiles[a][m][k] * tiles[b][k / 4][4 * n + k % 4];
            memcpy(&tiles[sums][m][4 * n], &sum, 4);
        }
}
