/* The vector type in plain C: VL lanes of the compiler's vector extension, on any CPU.
 *
 * It is the reference of the other forms, and what a CPU without their instructions runs. Included by simd.h. */
#ifndef HOLDFAST_SIMD_PLAIN_H
#define HOLDFAST_SIMD_PLAIN_H

INLINE vf splat(float x) {
    vf v;
    for (int i = 0; i < VL; i++) v[i] = x;
    return v;
}

/* Loops over arrays, which compilers vectorise. */
INLINE vf fma_v(vf a, vf b, vf c) {
    float x[VL], y[VL], z[VL];
    memcpy(x, &a, sizeof x), memcpy(y, &b, sizeof y), memcpy(z, &c, sizeof z);
    for (int i = 0; i < VL; i++) z[i] = __builtin_fmaf(x[i], y[i], z[i]);
    memcpy(&c, z, sizeof c);
    return c;
}

INLINE vf max_v(vf a, vf b) { return (vf)(((vi)(a > b) & (vi)a) | (~(vi)(a > b) & (vi)b)); }
INLINE vf min_v(vf a, vf b) { return (vf)(((vi)(a < b) & (vi)a) | (~(vi)(a < b) & (vi)b)); }

INLINE float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Exact. A subnormal half is a multiple of 2^-24. */
INLINE float half_to_float(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 31u, mantissa = half & 0x3ffu;
    if (exponent == 31) return float_of(sign | 0x7f800000u | (mantissa ? mantissa << 13 | 0x400000u : 0));
    if (exponent) return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
    const float size = (float)mantissa * 0x1p-24f;
    return sign ? -size : size;
}

/* Rounded to nearest even. */
INLINE uint16_t half_of_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (bits >> 13 & 0x1ffu));
    if (bits >= 0x477ff000u) return sign | 0x7c00u; /* 65520 and more */
    if (bits < 0x38800000u) { /* subnormal: adding 1/2 rounds to a multiple of 2^-24 */
        const float sum = float_of(bits) + 0.5f;
        memcpy(&bits, &sum, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000u));
    }
    return (uint16_t)(sign | ((bits - 0x38000000u + 0xfffu + (bits >> 13 & 1u)) >> 13));
}

static __attribute__((noinline)) void widen_halves(float *out, const uint16_t *in) {
    for (int i = 0; i < VL; i++) out[i] = half_to_float(in[i]);
}

static __attribute__((noinline)) void round_to_halves(uint16_t *out, const float *in) {
    for (int i = 0; i < VL; i++) out[i] = half_of_float(in[i]);
}

INLINE vf load_v(const void *p, const int dt) {
    float out[VL];
    uint16_t in[VL];
    vf v;
    if (dt != F32) memcpy(in, p, sizeof in);
    if (dt == F32) memcpy(out, p, sizeof out);
    else if (dt == F16) widen_halves(out, in);
    else for (int i = 0; i < VL; i++) out[i] = float_of((uint32_t)in[i] << 16);
    memcpy(&v, out, sizeof v);
    return v;
}

/* With BF16 the lanes are the bits to be stored. */
INLINE void store_plain(void *p, vf v, const int dt) {
    float in[VL];
    uint32_t bits[VL];
    uint16_t out[VL];
    memcpy(in, &v, sizeof in), memcpy(bits, &v, sizeof bits);
    if (dt == F16) round_to_halves(out, in);
    else for (int i = 0; i < VL; i++) out[i] = (uint16_t)bits[i];
    memcpy(p, dt == F32 ? (const void *)in : (const void *)out, VL * (size_t)size_of(dt));
}

#endif
