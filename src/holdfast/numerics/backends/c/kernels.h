/* Prototypes of the kernels. Tensors are contiguous unless there is a stride. Strides are in
 * elements. dt is a dtype code of simd.h. */
#ifndef HOLDFAST_KERNELS_H
#define HOLDFAST_KERNELS_H

#include <stdint.h>

void run_pack(void *packed, const void *w, int64_t stride, int64_t N, int64_t K, int64_t dt, int64_t threads);
void run_linear(void *y, const void *x, int64_t stride, const void *packed, const float *bias, int64_t M, int64_t N,
                int64_t K, int64_t dt, int64_t out_dt, int64_t threads);
void run_rms_norm(void *out, const void *x, int64_t row_stride, const void *weight, int64_t rows, int64_t heads,
                  int64_t D, double eps, int64_t dt, int64_t wdt, int64_t is_centered, int64_t threads);

/* residual += scale * norm(delta), out = norm(residual): [rows, D], a norm only if its weight is not
 * NULL. wdt: the weights' dtype, dt or F32. */
typedef struct {
    void *out, *residual;
    const void *delta, *delta_norm, *weight;
    int64_t rows, D, dt, wdt, is_centered, threads;
    double eps, scale;
} AddNorm;
void run_add_rms_norm(const AddNorm *a);
void run_soft_cap(float *x, int64_t count, double cap, int64_t threads);
void run_exp(float *x, int64_t count, int64_t threads);
void run_rope(void *q, int64_t q_stride, int64_t q_heads, void *k, int64_t k_stride, int64_t k_heads,
              const float *cos, const float *sin, int64_t rows, int64_t D, int64_t dt, int64_t threads);
void run_activation_mul(void *out, const void *gate_up, int64_t rows, int64_t width, int64_t is_gelu, int64_t dt,
                        int64_t threads);
/* gate_up [rows, 2 * width], gate first -> gate * sigmoid(alpha * gate) * (up + 1), rounded once; gate is limited
 * to `limit`, up to -limit .. limit. */
void run_swiglu_mul(void *out, const void *gate_up, int64_t rows, int64_t width, double alpha, double limit, int64_t dt,
                    int64_t threads);
void run_store_kv(void *keys, void *values, const void *k, int64_t k_stride, const void *v, int64_t v_stride,
               const int64_t *slots, int64_t rows, int64_t heads, int64_t D, int64_t page, int64_t dt,
               int64_t threads);
void run_attention(void *out, const void *q, int64_t q_stride, const void *keys, const void *values,
                   const int64_t *positions, const int32_t *span_starts, const int32_t *page_table,
                   const float *sinks, int64_t rows, int64_t spans, int64_t max_pages, int64_t heads, int64_t kv_heads, int64_t D, int64_t page,
                   double scale, double soft_cap, int64_t window, int64_t dt, int64_t threads);

/* Weights in GGUF's quantised blocks: block_linear.c, blocks.c. type is GGUF's number of the format. */
void run_block_pack(void *packed, const void *w, int64_t N, int64_t K, int64_t type, int64_t threads);
void run_block_linear(void *y, const void *x, int64_t stride, const void *packed, const float *bias, int64_t M, int64_t N,
                      int64_t K, int64_t dt, int64_t out_dt, int64_t threads);
void run_block_rows(void *out, const void *table, const int64_t *ids, int64_t rows, int64_t K, int64_t type, int64_t dt);
void run_packed_rows(void *out, const void *packed, const int64_t *ids, int64_t rows, int64_t K, int64_t dt);
void run_block_reference(void *y, const void *x, int64_t stride, const void *w, const float *bias, int64_t M, int64_t N,
                         int64_t K, int64_t type, int64_t dt, int64_t out_dt);

/* The arguments of one decoder layer; each field is one 64-bit word, in the order of backend.py.
 * x is the normed input of the layer, then that of the next layer. residual is updated. */
typedef struct {
    void *residual, *x;                                  /* [rows, hidden] */
    const void *qkv, *o, *gate_up, *down;                /* packed */
    const float *qkv_bias, *o_bias, *gate_up_bias, *down_bias; /* or NULL */
    const void *q_norm, *k_norm;                         /* [head_dim], [heads * head_dim] or NULL */
    const void *attention_norm, *mlp_norm;               /* of what is added to the residual; or NULL */
    const void *post_norm, *next_norm;                   /* [hidden] or NULL */
    void *keys, *values;
    const float *cos, *sin;
    const int64_t *positions, *slots;
    const int32_t *span_starts, *page_table;
    int64_t rows, spans, max_pages, hidden, heads, kv_heads, head_dim, intermediate, page, window, dt, threads;
    int64_t norm_dt, is_centered, norms_whole_rows, is_parallel, is_gelu;
    double eps, scale, soft_cap, residual_scale;
    int64_t blocks; /* which weights are quantised blocks: 1 qkv, 2 o, 4 gate_up, 8 down */
} LayerArguments;
void run_layer(const LayerArguments *l);
void run_noise(float *out, int64_t seed, int64_t position, int64_t n);
void run_sample(int64_t *out, const float *logits, int64_t rows, int64_t n, const float *temperature,
                const int32_t *top_k, const float *top_p, const float *min_p, const int64_t *seeds,
                const int64_t *positions, int64_t threads);
void run_logsumexp(float *out, const float *logits, int64_t rows, int64_t n, int64_t threads);
void run_topk(float *values, int64_t *ids, const float *logits, int64_t rows, int64_t n, int64_t k, int64_t threads);

#endif
