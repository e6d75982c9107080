/* One decoder layer as one call: the same kernels in the same order as the single operations, so
 * the same bits.
 *
 * It exists because a small model with one request spends more time between kernels than in some
 * of them. */
#include "kernels.h"
#include "simd.h"

typedef struct {
    char *at;
} Arena;

/* The next block of the scratch memory, aligned to a cache line. */
static void *arena_alloc(Arena *arena, int64_t bytes) {
    void *block = arena->at;
    arena->at += ceil_to(bytes, 64);
    return block;
}

/* A product with the weight number `index`: 0 qkv, 1 o, 2 gate_up, 3 down. */
static void project(const LayerArguments *l, int index, void *y, const void *x, int64_t N, int64_t K) {
    const void *weights[] = {l->qkv, l->o, l->gate_up, l->down};
    const float *biases[] = {l->qkv_bias, l->o_bias, l->gate_up_bias, l->down_bias};
    const int64_t dt = l->dt == BF16_AMX ? BF16 : l->dt;
    if (l->blocks >> index & 1) run_block_linear(y, x, K, weights[index], biases[index], l->rows, N, K, dt, dt, l->threads);
    else run_linear(y, x, K, weights[index], biases[index], l->rows, N, K, l->dt, dt, l->threads);
}

void run_layer(const LayerArguments *l) {
    static __thread void *buffer;
    static __thread size_t capacity;
    const int64_t rows = l->rows, H = l->heads, KV = l->kv_heads, D = l->head_dim, es = size_of((int)l->dt);
    const int64_t dt = l->dt == BF16_AMX ? BF16 : l->dt, width = (H + 2 * KV) * D, threads = l->threads;
    const int64_t elements = width + 2 * H * D + KV * D + 2 * l->hidden + 3 * l->intermediate;
    Arena arena = {scratch(&buffer, &capacity, (size_t)(rows * elements * es + 9 * 64))};

    char *qkv = arena_alloc(&arena, rows * width * es);
    project(l, 0, qkv, l->x, width, l->hidden);
    char *q = qkv, *k = qkv + H * D * es, *v = qkv + (H + KV) * D * es;
    int64_t q_stride = width, k_stride = width;
    if (l->q_norm) {
        char *normed_q = arena_alloc(&arena, rows * H * D * es), *normed_k = arena_alloc(&arena, rows * KV * D * es);
        const int64_t is_whole = l->norms_whole_rows; /* one norm over all heads of a row */
        run_rms_norm(normed_q, q, width, l->q_norm, rows, is_whole ? 1 : H, is_whole ? H * D : D, l->eps, dt, l->norm_dt, l->is_centered, threads);
        run_rms_norm(normed_k, k, width, l->k_norm, rows, is_whole ? 1 : KV, is_whole ? KV * D : D, l->eps, dt, l->norm_dt, l->is_centered, threads);
        q = normed_q, k = normed_k, q_stride = H * D, k_stride = KV * D;
    }
    run_rope(q, q_stride, H, k, k_stride, KV, l->cos, l->sin, rows, D, dt, threads);
    run_store_kv(l->keys, l->values, k, k_stride, v, width, l->slots, rows, KV, D, l->page, dt, threads);
    char *attended = arena_alloc(&arena, rows * H * D * es), *delta = arena_alloc(&arena, rows * l->hidden * es);
    run_attention(attended, q, q_stride, l->keys, l->values, l->positions, l->span_starts, l->page_table, NULL, rows, l->spans,
                  l->max_pages, H, KV, D, l->page, l->scale, l->soft_cap, l->window, dt, threads);
    project(l, 1, delta, attended, l->hidden, H * D);
    AddNorm add = {.out = l->x, .residual = l->residual, .delta = delta, .delta_norm = l->attention_norm, .weight = l->post_norm,
                   .rows = rows, .D = l->hidden, .dt = dt, .wdt = l->norm_dt, .is_centered = l->is_centered, .threads = threads,
                   .eps = l->eps, .scale = l->residual_scale};
    if (l->is_parallel) add.out = arena_alloc(&arena, rows * l->hidden * es); /* the MLP reads x, as attention did */
    run_add_rms_norm(&add);

    char *gate_up = arena_alloc(&arena, rows * 2 * l->intermediate * es), *activated = arena_alloc(&arena, rows * l->intermediate * es);
    project(l, 2, gate_up, l->x, 2 * l->intermediate, l->hidden);
    run_activation_mul(activated, gate_up, rows, l->intermediate, l->is_gelu, dt, threads);
    project(l, 3, delta, activated, l->hidden, l->intermediate);
    add.out = l->x, add.delta_norm = l->mlp_norm, add.weight = l->next_norm;
    run_add_rms_norm(&add);
}
