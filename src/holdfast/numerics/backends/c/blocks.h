/* The quantised number formats of GGUF files, and the product with them that every kernel computes.
 *
 * A row of weights is a run of groups of 32 numbers: weight = scale * (q - zero) + offset. The K
 * formats store eight groups in a super-block; Q6_K has a scale for each half of a group.
 *
 * The product of a row of activations x with a row of weights:
 *
 *     x is quantised per group:  largest = max |x|, step = largest / 127, a = x * (127 / largest)
 *                                rounded to the nearest even integer: within -127 .. 127
 *     total = sum of a * (q - zero) over the group, exact in int32; Q6_K multiplies the sums of the
 *             two halves by their integer scales
 *     y = fma(total, scale * step, y), then fma(offset, step * sum of a, y) if the format has offsets
 *
 * in fp32, for the groups in order, from y = 0; then the bias is added and the result rounded once.
 * Integer sums have no order, so the bits depend on no instruction set, tile, batch or thread. */
#ifndef HOLDFAST_BLOCKS_H
#define HOLDFAST_BLOCKS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

/* The type numbers of GGUF. */
enum { Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13, Q6_K = 14 };
enum { GROUP = 32 };

#define BLOCKS_INLINE static inline __attribute__((always_inline))

BLOCKS_INLINE int block_groups(const int type) { return type >= Q4_K ? 8 : 1; }
BLOCKS_INLINE int block_bytes(const int type) {
    return type == Q4_0   ? 18
           : type == Q4_1 ? 20
           : type == Q5_0 ? 22
           : type == Q5_1 ? 24
           : type == Q8_0 ? 34
           : type == Q4_K ? 144
           : type == Q5_K ? 176
                          : 210;
}
BLOCKS_INLINE int block_zero(const int type) {
    return type == Q4_0 ? 8 : type == Q5_0 ? 16 : type == Q6_K ? 32 : 0;
}
BLOCKS_INLINE int has_offsets(const int type) { return type == Q4_1 || type == Q5_1 || type == Q4_K || type == Q5_K; }
BLOCKS_INLINE int64_t row_bytes(const int type, int64_t K) { return K / (GROUP * block_groups(type)) * block_bytes(type); }

/* One group of a block as stored. Bits of scales stay fp16; 6-bit and 8-bit scales are 1 elsewhere. */
typedef struct {
    uint8_t q[GROUP]; /* of Q8_0: int8 */
    uint16_t scale, offset;
    int8_t scales[2]; /* K formats: of the group; Q6_K: of its halves */
    uint8_t offset_scale;
} Group;

void read_group(Group *group, const uint8_t *row, int64_t index, int type);
/* The 32 numbers of a group, each rounded once to dtype dt, from out [element] on. */
void write_group(void *out, int64_t element, const Group *group, int type, int dt);
BLOCKS_INLINE float bits_as_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
BLOCKS_INLINE uint32_t float_as_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

#define NAN_BITS 0x7fc00000u
/* A result that is not a number has the same bits on every CPU. */
BLOCKS_INLINE float one_nan(float x) { return x == x ? x : bits_as_float(NAN_BITS); }

/* ---- activations ---- */

typedef struct {
    float step, sum;    /* sum: step times the sum of q */
    int32_t halves[2];  /* the sums of q over each half */
} GroupSums;

/* Quantise one group of x. Numbers below 2^-100 count as zero. A group with an infinity or a NaN has
 * the step NaN. */
BLOCKS_INLINE void quantize_group(int8_t *restrict q, GroupSums *sums, const float *restrict x) {
    int32_t largest_bits = 0;
    for (int i = 0; i < GROUP; i++) {
        const int32_t bits = (int32_t)(float_as_bits(x[i]) & 0x7fffffffu);
        largest_bits = bits > largest_bits ? bits : largest_bits;
    }
    float step = 0.0f, factor = 0.0f;
    if (largest_bits >= 0x7f800000) step = bits_as_float(NAN_BITS);
    else if (largest_bits >= 0x0d800000) {
        const float largest = bits_as_float((uint32_t)largest_bits);
        step = largest / 127.0f;
        factor = 127.0f / largest;
    }
    int32_t rounded[GROUP];
    const int is_zero = factor == 0.0f;
    for (int i = 0; i < GROUP; i++) {
        const float shifted = x[i] * factor + 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
        rounded[i] = is_zero ? 0 : (int32_t)(float_as_bits(shifted) - 0x4b400000u);
    }
    for (int h = 0; h < 2; h++) {
        int32_t sum = 0;
        for (int i = 0; i < GROUP / 2; i++) sum += rounded[h * (GROUP / 2) + i];
        sums->halves[h] = sum;
    }
    for (int i = 0; i < GROUP; i++) q[i] = (int8_t)rounded[i];
    sums->step = step;
    sums->sum = step * (float)(sums->halves[0] + sums->halves[1]);
}

#endif
