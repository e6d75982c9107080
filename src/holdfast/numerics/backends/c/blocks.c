/* Reading of GGUF's quantised blocks: single groups, whole rows, and the reference of the product. */
#include "blocks.h"

#include "kernels.h"
#include "simd.h"

static uint16_t u16_at(const uint8_t *p) {
    uint16_t value;
    memcpy(&value, p, 2);
    return value;
}

/* fp16 to fp32, exact. */
static float fp16_value(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = (half >> 10) & 31u, mantissa = half & 0x3ffu;
    if (exponent == 0) { /* zero or subnormal: mantissa * 2^-24 */
        const float size = (float)mantissa * 5.9604644775390625e-8f;
        return bits_as_float(float_as_bits(size) | sign);
    }
    if (exponent == 31) return bits_as_float(sign | 0x7f800000u | mantissa << 13);
    return bits_as_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* The nibbles of `packed` [16], the low halves first; then bit i of `fifth` is worth 16 to number i. */
static void read_nibbles(uint8_t *q, const uint8_t *packed, const uint8_t *fifth) {
    for (int i = 0; i < 16; i++) {
        q[i] = packed[i] & 15;
        q[i + 16] = packed[i] >> 4;
    }
    if (fifth == NULL) return;
    for (int i = 0; i < GROUP; i++) q[i] |= (uint8_t)((fifth[i / 8] >> (i % 8) & 1) << 4);
}

/* Twelve bytes hold eight 6-bit scales and offsets: EEaaaaaa x4, eebbbbbb x4, bbbbaaaa x4. */
static void read_k_scales(Group *group, const uint8_t *packed, int64_t j) {
    if (j < 4) {
        group->scales[0] = (int8_t)(packed[j] & 63);
        group->offset_scale = packed[j + 4] & 63;
    } else {
        group->scales[0] = (int8_t)((packed[j + 4] & 15) | (packed[j - 4] >> 6 << 4));
        group->offset_scale = (uint8_t)((packed[j + 4] >> 4) | (packed[j] >> 6 << 4));
    }
    group->scales[1] = group->scales[0];
}

static void read_k_group(Group *group, const uint8_t *block, int64_t j, int type) {
    if (type == Q6_K) {
        const uint8_t *low = block + j / 4 * 64 + j % 2 * 32, *high = block + 128 + j / 4 * 32;
        for (int i = 0; i < GROUP; i++) {
            const int nibble = j % 4 < 2 ? low[i] & 15 : low[i] >> 4;
            group->q[i] = (uint8_t)(nibble | (high[i] >> (2 * (j % 4)) & 3) << 4);
        }
        memcpy(group->scales, block + 192 + 2 * j, 2);
        group->scale = u16_at(block + 208);
        return;
    }
    group->scale = u16_at(block);
    group->offset = u16_at(block + 2);
    read_k_scales(group, block + 4, j);
    const uint8_t *nibbles = block + (type == Q4_K ? 16 : 48) + j / 2 * 32;
    for (int i = 0; i < GROUP; i++) group->q[i] = j % 2 ? nibbles[i] >> 4 : nibbles[i] & 15;
    if (type == Q5_K)
        for (int i = 0; i < GROUP; i++) group->q[i] |= (uint8_t)((block[16 + i] >> j & 1) << 4);
}

/* The group `index` of a row. */
void read_group(Group *group, const uint8_t *row, int64_t index, int type) {
    const uint8_t *block = row + index / block_groups(type) * block_bytes(type);
    group->scales[0] = group->scales[1] = 1;
    group->offset_scale = 1;
    group->offset = 0;
    if (type >= Q4_K) {
        read_k_group(group, block, index % 8, type);
        return;
    }
    group->scale = u16_at(block);
    if (has_offsets(type)) group->offset = u16_at(block + 2);
    if (type == Q8_0) memcpy(group->q, block + 2, GROUP);
    else if (type == Q4_0) read_nibbles(group->q, block + 2, NULL);
    else if (type == Q4_1) read_nibbles(group->q, block + 4, NULL);
    else if (type == Q5_0) read_nibbles(group->q, block + 6, block + 2);
    else read_nibbles(group->q, block + 8, block + 4);
}

static int32_t weight_of(const Group *group, int i, int type) {
    return type == Q8_0 ? (int8_t)group->q[i] : group->q[i] - block_zero(type);
}

/* The offset of a group, added to every number: Q4_K and Q5_K subtract theirs. */
static float offset_of(const Group *group, int type) {
    const float offset = fp16_value(group->offset);
    return type >= Q4_K ? -(offset * (float)group->offset_scale) : offset;
}

static void store_float(void *out, int64_t i, float value, int dt) {
    const vf v = splat(value);
    if (dt == F32) ((float *)out)[i] = value;
    else if (dt == BF16) store_tail((char *)out + i * 2, v, 1, BF16);
    else store_tail((char *)out + i * 2, v, 1, F16);
}

static float load_float(const void *in, int64_t i, int dt) {
    if (dt == F32) return ((const float *)in)[i];
    const uint16_t bits = ((const uint16_t *)in)[i];
    return dt == BF16 ? bits_as_float((uint32_t)bits << 16) : fp16_value(bits);
}

static void dequantize_group(float *out, const Group *group, int type) {
    const float scale = fp16_value(group->scale), offset = offset_of(group, type);
    for (int i = 0; i < GROUP; i++) {
        const float value = scale * (float)group->scales[i / 16] * (float)weight_of(group, i, type);
        out[i] = has_offsets(type) ? value + offset : value;
    }
}

void write_group(void *out, int64_t element, const Group *group, int type, int dt) {
    float values[GROUP];
    dequantize_group(values, group, type);
    for (int64_t i = 0; i < GROUP; i += VL) {
        const vf v = load_v(values + i, F32);
        if (dt == F32) store_v((float *)out + element + i, v, F32);
        else if (dt == BF16) store_v((uint16_t *)out + element + i, v, BF16);
        else store_v((uint16_t *)out + element + i, v, F16);
    }
}

/* out [rows, K] of dtype dt: the rows `ids` of a table of blocks, each number rounded once. */
void run_block_rows(void *out, const void *table, const int64_t *ids, int64_t rows, int64_t K, int64_t type, int64_t dt) {
    for (int64_t r = 0; r < rows; r++) {
        const uint8_t *row = (const uint8_t *)table + ids[r] * row_bytes((int)type, K);
        for (int64_t g = 0; g < K / GROUP; g++) {
            Group group;
            read_group(&group, row, g, (int)type);
            write_group(out, r * K + g * GROUP, &group, (int)type, (int)dt);
        }
    }
}

/* ---- the reference ---- */

static float add_group(float y, const int8_t *a, const GroupSums *sums, const Group *group, int type) {
    int32_t halves[2] = {0, 0};
    for (int i = 0; i < GROUP; i++) halves[i / 16] += a[i] * weight_of(group, i, type);
    float scale = fp16_value(group->scale);
    int32_t total = halves[0] + halves[1];
    if (type == Q6_K) total = halves[0] * group->scales[0] + halves[1] * group->scales[1];
    else scale = scale * (float)group->scales[0];
    y = __builtin_fmaf((float)total, scale * sums->step, y);
    return has_offsets(type) ? __builtin_fmaf(offset_of(group, type), sums->sum, y) : y;
}

/* The definition in plain C, from blocks as they are in the file: y [M, N] = x [M, K] times w [N, K]. */
void run_block_reference(void *y, const void *x, int64_t stride, const void *w, const float *bias, int64_t M, int64_t N,
                         int64_t K, int64_t type, int64_t dt, int64_t out_dt) {
    for (int64_t m = 0; m < M; m++)
        for (int64_t n = 0; n < N; n++) {
            float result = 0.0f;
            for (int64_t g = 0; g < K / GROUP; g++) {
                float values[GROUP];
                int8_t a[GROUP];
                GroupSums sums;
                Group group;
                for (int i = 0; i < GROUP; i++) values[i] = load_float(x, m * stride + g * GROUP + i, (int)dt);
                quantize_group(a, &sums, values);
                read_group(&group, (const uint8_t *)w + n * row_bytes((int)type, K), g, (int)type);
                result = add_group(result, a, &sums, &group, (int)type);
            }
            if (bias) result += bias[n];
            store_float(y, m * N + n, one_nan(result), (int)out_dt);
        }
}
