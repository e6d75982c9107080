/* Prototypes of the kernels. Tensors are contiguous unless there is a stride. Strides are in
 * elements. dt is a dtype code of simd.h. */
#ifndef HOLDFAST_KERNELS_H
#define HOLDFAST_KERNELS_H

#include <stdint.h>

/* A kernel `run_...` starts threads if its work is worth it. Its part `team_...` is called by all threads
 * of a parallel region with the same arguments, and does the share of the calling thread. It ends without
 * a barrier. */
#define PRAGMA(text) _Pragma(#text)
#define TEAM(threads, is_worth, call)                                \
    PRAGMA(omp parallel num_threads((int)(threads)) if (is_worth)) { \
        DEFAULT_FP;                                                  \
        call;                                                        \
    }
#define BARRIER PRAGMA(omp barrier)
#define PART_LEN 256 /* elements of a row that one thread converts, where there are few rows */

void run_thread_ids(int64_t *ids, int64_t threads);
void run_pack(void *packed, const void *w, int64_t stride, int64_t N, int64_t K, int64_t dt, int64_t threads);
void run_linear(void *y, const void *x, int64_t stride, const void *packed, const float *bias, int64_t M, int64_t N,
                int64_t K, int64_t dt, int64_t out_dt, int64_t threads);

/* y [M, N] of dtype out_dt, contiguous = x W^T + bias. x [M, K] of dtype dt, rows `stride` elements apart;
 * bias [N] or NULL. rows: scratch memory of the team, as many bytes as `linear_bytes` or
 * `block_linear_bytes` says. */
typedef struct {
    void *y;
    const void *x;
    int64_t stride;
    const void *packed;
    const float *bias;
    int64_t M, N, K, dt, out_dt;
    void *rows;
} Product;
int64_t linear_bytes(int64_t M, int64_t K, int64_t dt);
void team_linear(const Product *p);
void run_rms_norm(void *out, const void *x, int64_t row_stride, const void *weight, int64_t rows, int64_t heads,
                  int64_t D, double eps, int64_t dt, int64_t wdt, int64_t is_centered, int64_t threads);
void team_rms_norm(void *out, const void *x, int64_t row_stride, const void *weight, int64_t rows, int64_t heads,
                   int64_t D, double eps, int64_t dt, int64_t wdt, int64_t is_centered);

/* residual += scale * norm(delta), out = norm(residual): [rows, D], a norm only if its weight is not
 * NULL. wdt: the weights' dtype, dt or F32. */
typedef struct {
    void *out, *residual;
    const void *delta, *delta_norm, *weight;
    int64_t rows, D, dt, wdt, is_centered, threads;
    double eps, scale;
} AddNorm;
void run_add_rms_norm(const AddNorm *a);
void team_add_rms_norm(const AddNorm *a);
void run_soft_cap(float *x, int64_t count, double cap, int64_t threads);
void run_exp(float *x, int64_t count, int64_t threads);
void run_rope(void *q, int64_t q_stride, int64_t q_heads, void *k, int64_t k_stride, int64_t k_heads,
              const float *cos, const float *sin, int64_t rows, int64_t D, int64_t dt, int64_t threads);
void team_rope(void *q, int64_t q_stride, int64_t q_heads, void *k, int64_t k_stride, int64_t k_heads, const float *cos,
               const float *sin, int64_t rows, int64_t D, int64_t dt);
void run_activation_mul(void *out, const void *gate_up, int64_t rows, int64_t width, int64_t is_gelu, int64_t dt,
                        int64_t threads);
void team_activation_mul(void *out, const void *gate_up, int64_t rows, int64_t width, int64_t is_gelu, int64_t dt);
void team_positive_squares(void *out, const void *x, int64_t rows, int64_t width, int64_t dt);
/* gate_up [rows, 2 * width], gate first -> gate * sigmoid(alpha * gate) * (up + 1), rounded once; gate is limited
 * to `limit`, up to -limit .. limit. */
void run_swiglu_mul(void *out, const void *gate_up, int64_t rows, int64_t width, double alpha, double limit, int64_t dt,
                    int64_t threads);
void run_store_kv(void *keys, void *values, const void *k, int64_t k_stride, const void *v, int64_t v_stride,
               const int64_t *slots, int64_t rows, int64_t heads, int64_t D, int64_t page, int64_t dt,
               int64_t threads);
void team_store_kv(void *keys, void *values, const void *k, int64_t k_stride, const void *v, int64_t v_stride,
                   const int64_t *slots, int64_t rows, int64_t heads, int64_t D, int64_t page, int64_t dt);

/* out [rows, heads, D]; q [rows, heads, D], rows `q_stride` elements apart. */
typedef struct {
    char *out;
    const char *q;
    int64_t q_stride;
    const char *keys, *values;
    const int64_t *positions;
    const int32_t *span_starts, *page_table;
    const float *sinks; /* [heads] or NULL */
    int64_t rows, spans, max_pages, heads, kv_heads, D, page, window;
    float scale, soft_cap;
    int dt;
} Attention;

/* Queries of one KV head: tokens row .. row+rows-1 of a span, query heads head .. head+group-1. */
typedef struct {
    int64_t span, row, rows, kv_head, head, group;
} Tile;
typedef struct {
    const Tile *tiles;
    int64_t count, num_products;
} Tiles;
void run_attention(const Attention *a, int64_t threads);
/* All tiles of a pass. They are the same for all its layers, and last until this thread calls it again. */
Tiles attention_tiles(const Attention *a, int64_t threads);
void team_attention(const Attention *a, const Tiles *tiles);
/* Prefetch what the calling thread will read in `team_attention`. */
void team_prefetch_kv(const Attention *a, const Tiles *tiles);

/* Weights in GGUF's quantised blocks: block_linear.c, blocks.c. type is GGUF's number of the format. */
void run_block_pack(void *packed, const void *w, int64_t N, int64_t K, int64_t type, int64_t threads);
void run_block_linear(void *y, const void *x, int64_t stride, const void *packed, const float *bias, int64_t M, int64_t N,
                      int64_t K, int64_t dt, int64_t out_dt, int64_t threads);
int64_t block_linear_bytes(int64_t M, int64_t K);
void team_block_linear(const Product *p);
void run_block_rows(void *out, const void *table, const int64_t *ids, int64_t rows, int64_t K, int64_t type, int64_t dt);
void run_packed_rows(void *out, const void *packed, const int64_t *ids, int64_t rows, int64_t K, int64_t dt);
void run_block_reference(void *y, const void *x, int64_t stride, const void *w, const float *bias, int64_t M, int64_t N,
                         int64_t K, int64_t type, int64_t dt, int64_t out_dt);

/* A recurrent layer: recurrence.c. A span of the pass is six words of `RecurrentBatch.spans`. */
typedef struct {
    int32_t slot, start, checkpoint, store, first_row, end_row;
} RecurrentSpan;

/* The tokens that a pass computes, replayed ones among them, by number: the span of each, and the first of each span. */
typedef struct {
    const RecurrentSpan *spans;
    const int32_t *span_of, *firsts;
    int64_t num_spans, count;
} RecurrentTokens;
/* The same for all layers of a pass. They last until this thread calls it again. */
RecurrentTokens recurrent_tokens(const int32_t *spans, int64_t num_spans);

/* out [rows, out_width], x [rows, input width] with `stride` elements from row to row. conv fp32 [kernel, conv_width]; conv_bias,
 * dt_bias and skip may be NULL where there are none. state fp32 [slots, heads, state_rows, columns], log [slots, log_len,
 * log_width]. prepared: scratch memory of `recurrent_bytes`. Each field is one 64-bit word, in the order of backend.py. */
typedef struct {
    void *out;
    const void *x;
    const float *conv, *conv_bias, *decay, *dt_bias, *skip;
    float *state;
    void *log;
    const int32_t *spans;
    int64_t stride, rows, num_spans, kernel, log_len, log_width, conv_width, out_width;
    int64_t heads, groups, state_rows, columns, is_delta, dt; /* is_delta: 2 if heads take groups in turns */
    double beta_scale, dt_min, dt_max;
    float *prepared;
} Recurrent;
int64_t recurrent_bytes(const Recurrent *a, const RecurrentTokens *tokens);
void run_recurrence(const Recurrent *a, int64_t threads);
void team_recurrence(const Recurrent *a, const RecurrentTokens *tokens);
void run_short_conv(const Recurrent *a, int64_t threads);
void team_short_conv(const Recurrent *a, const RecurrentTokens *tokens);

/* out, x [rows, width], gate with `stride` elements from row to row; weight [group] (is_shared), [width] or NULL. */
typedef struct {
    void *out;
    const void *x, *gate;
    const float *weight;
    int64_t stride, rows, width, group, is_shared, gates_first, dt;
    double eps;
} GatedNorm;
void run_gated_norm(const GatedNorm *a, int64_t threads);
void team_gated_norm(const GatedNorm *a);
void run_sigmoid_mul(void *out, const void *x, const void *gate, int64_t stride, int64_t rows, int64_t width, int64_t dt,
                     int64_t threads);
void team_sigmoid_mul(void *out, const void *x, const void *gate, int64_t stride, int64_t rows, int64_t width, int64_t dt);

/* A decoder layer; each field is one 64-bit word, in the order of layers.py. */
typedef struct {
    const void *qkv, *o, *gate_up, *down;                      /* packed; gate_up NULL: there is no MLP */
    const float *qkv_bias, *o_bias, *gate_up_bias, *down_bias; /* or NULL */
    const void *q_norm, *k_norm;                               /* [head_dim], [heads * head_dim] or NULL */
    const void *attention_norm, *mlp_norm;                     /* of what is added to the residual; or NULL */
    const void *post_norm, *next_norm;                         /* [hidden] or NULL */
    int64_t blocks; /* which weights are quantised blocks: 1 qkv, 2 o, 4 gate_up, 8 down */
    int64_t intermediate, window, norm_dt, norms_whole_rows;
    void *keys, *values;
    int64_t rope; /* which cos and sin */
    /* In place of attention, where in_proj is not NULL. Of `recurrent` the fields of the pass are not set. */
    const void *in_proj, *out_proj;         /* packed; in `blocks`: 16 in_proj, 32 out_proj */
    const float *in_bias, *out_bias;        /* or NULL */
    const Recurrent *recurrent;
    int64_t in_width, is_short_conv, has_gate; /* the gate is the last out_width columns of in_proj's result */
    const float *gate_norm;
    int64_t gate_group, is_gate_norm_shared, gates_first;
    double gate_eps;
} Layer;

/* Consecutive layers of a pass, of one shape. x is the normed input of the first layer, then that of the
 * layer after the last one. residual is updated. */
typedef struct {
    void *residual, *x; /* [rows, hidden] */
    const Layer *layers;
    int64_t num_layers;
    const float *cos[2], *sin[2]; /* [rows, head_dim / 2] each */
    const int64_t *positions, *slots;
    const int32_t *span_starts, *page_table;
    int64_t rows, spans, max_pages, page, hidden, heads, kv_heads, head_dim, dt, threads;
    int64_t is_centered, is_parallel, activation; /* 0 SiLU, 1 GELU, 2 the square of the positive part, without a gate */
    double eps, scale, soft_cap, residual_scale;
    const int32_t *recurrent_spans;
    int64_t num_recurrent_spans, is_gated; /* a gate of attention's output follows q, k and v */
} Layers;
void run_layers(const Layers *p);
void run_noise(float *out, int64_t seed, int64_t position, int64_t n);
void run_sample(int64_t *out, const float *logits, int64_t rows, int64_t n, const float *temperature,
                const int32_t *top_k, const float *top_p, const float *min_p, const int64_t *seeds,
                const int64_t *positions, int64_t threads);
void run_logsumexp(float *out, const float *logits, int64_t rows, int64_t n, int64_t threads);
void run_greedy(int64_t *ids, float *logprobs, const float *logits, int64_t rows, int64_t n, int64_t threads);
void run_topk(float *values, int64_t *ids, const float *logits, int64_t rows, int64_t n, int64_t k, int64_t threads);

#endif
