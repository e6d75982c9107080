/* Entry points for Python: each takes one array of 64-bit words, its arguments in the order of
 * kernels.h. ctypes converts one packed array in a third of the time of a dozen arguments. */
#include "kernels.h"
#include "simd.h"

#define P(i) ((void *)(intptr_t)a[i])

INLINE double as_double(int64_t word) {
    double x;
    memcpy(&x, &word, sizeof x);
    return x;
}
#define D(i) as_double(a[i])

#define ENTRY(name, ...)                       \
    API void holdfast_##name(const int64_t *a) { \
        DEFAULT_FP;                            \
        __VA_ARGS__;                           \
    }

ENTRY(pack, run_pack(P(0), P(1), a[2], a[3], a[4], a[5], a[6]))
ENTRY(linear, run_linear(P(0), P(1), a[2], P(3), P(4), a[5], a[6], a[7], a[8], a[9], a[10]))
ENTRY(rms_norm, run_rms_norm(P(0), P(1), a[2], P(3), a[4], a[5], a[6], D(7), a[8], a[9], a[10], a[11]))
ENTRY(add_rms_norm, run_add_rms_norm((const AddNorm *)a))
ENTRY(rope, run_rope(P(0), a[1], a[2], P(3), a[4], a[5], P(6), P(7), a[8], a[9], a[10], a[11]))
ENTRY(activation_mul, run_activation_mul(P(0), P(1), a[2], a[3], a[4], a[5], a[6]))
ENTRY(swiglu_mul, run_swiglu_mul(P(0), P(1), a[2], a[3], D(4), D(5), a[6], a[7]))
ENTRY(soft_cap, run_soft_cap(P(0), a[1], D(2), a[3]))
ENTRY(exp, run_exp(P(0), a[1], a[2]))
ENTRY(store_kv, run_store_kv(P(0), P(1), P(2), a[3], P(4), a[5], P(6), a[7], a[8], a[9], a[10], a[11], a[12]))
ENTRY(attention, {
    const Attention attention = {P(0), P(1), a[2], P(3), P(4), P(5), P(6), P(7), P(8), a[9], a[10], a[11], a[12], a[13], a[14],
                                 a[15], a[18], (float)D(16), (float)D(17), (int)a[19]};
    run_attention(&attention, a[20]);
})
ENTRY(block_pack, run_block_pack(P(0), P(1), a[2], a[3], a[4], a[5]))
ENTRY(block_linear, run_block_linear(P(0), P(1), a[2], P(3), P(4), a[5], a[6], a[7], a[8], a[9], a[10]))
ENTRY(block_rows, run_block_rows(P(0), P(1), P(2), a[3], a[4], a[5], a[6]))
ENTRY(packed_rows, run_packed_rows(P(0), P(1), P(2), a[3], a[4], a[5]))
ENTRY(block_reference, run_block_reference(P(0), P(1), a[2], P(3), P(4), a[5], a[6], a[7], a[8], a[9], a[10]))
ENTRY(recurrence, run_recurrence((const Recurrent *)a, a[28]))
ENTRY(short_conv, run_short_conv((const Recurrent *)a, a[28]))
ENTRY(gated_norm, run_gated_norm((const GatedNorm *)a, a[12]))
ENTRY(sigmoid_mul, run_sigmoid_mul(P(0), P(1), P(2), a[3], a[4], a[5], a[6], a[7]))
ENTRY(thread_ids, run_thread_ids(P(0), a[1]))
ENTRY(layers, run_layers((const Layers *)a))
ENTRY(noise, run_noise(P(0), a[1], a[2], a[3]))
ENTRY(sample, run_sample(P(0), P(1), a[2], a[3], P(4), P(5), P(6), P(7), P(8), P(9), a[10]))
ENTRY(logsumexp, run_logsumexp(P(0), P(1), a[2], a[3], a[4]))
ENTRY(greedy, run_greedy(P(0), P(1), P(2), a[3], a[4], a[5]))
ENTRY(topk, run_topk(P(0), P(1), P(2), a[3], a[4], a[5], a[6]))
