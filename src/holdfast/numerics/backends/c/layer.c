/* Consecutive decoder layers as one call and one parallel region: the same kernels in the same order as the
 * single operations, so the same bits.
 *
 * A small model with one request spends more time between kernels than in some of them. Here the threads
 * are started once, and between two kernels there is a barrier only where one reads what another thread
 * has written: rows of the same number belong to the same thread in all kernels that divide rows. */
#include "kernels.h"
#include "simd.h"

/* What the kernels of a layer write, for all rows; every layer writes the same memory. */
typedef struct {
    char *qkv, *q, *k, *attended, *delta, *added, *gate_up, *activated; /* qkv: also the result of in_proj; attended: of a recurrence */
    void *product_rows; /* scratch memory of the products */
    float *prepared;    /* of a recurrence */
    Tiles tiles;
    RecurrentTokens tokens;
} Buffers;

/* A weight of a layer: 0 qkv, 1 o, 2 gate_up, 3 down, 4 in_proj, 5 out_proj. */
typedef struct {
    const void *packed;
    const float *bias;
    int64_t N, K;
    int is_blocks;
} Weight;

INLINE int64_t qkv_width(const Layers *p) { return ((p->is_gated ? 2 : 1) * p->heads + 2 * p->kv_heads) * p->head_dim; }

static Weight weight_of(const Layers *p, const Layer *l, int index) {
    const int64_t is_blocks = l->blocks >> index & 1;
    switch (index) {
        case 0: return (Weight){l->qkv, l->qkv_bias, qkv_width(p), p->hidden, (int)is_blocks};
        case 1: return (Weight){l->o, l->o_bias, p->hidden, p->heads * p->head_dim, (int)is_blocks};
        case 2: return (Weight){l->gate_up, l->gate_up_bias, (p->activation == 2 ? 1 : 2) * l->intermediate, p->hidden, (int)is_blocks};
        case 3: return (Weight){l->down, l->down_bias, p->hidden, l->intermediate, (int)is_blocks};
        case 4: return (Weight){l->in_proj, l->in_bias, l->in_width, p->hidden, (int)is_blocks};
        default: return (Weight){l->out_proj, l->out_bias, p->hidden, l->recurrent->out_width, (int)is_blocks};
    }
}

INLINE int64_t plain_dtype(int64_t dt) { return dt == BF16_AMX ? BF16 : dt; }

static void team_project(const Layers *p, const Layer *l, int index, void *y, const void *x, const Buffers *b) {
    const Weight w = weight_of(p, l, index);
    const int64_t dt = plain_dtype(p->dt);
    const Product product = {y, x, w.K, w.packed, w.bias, p->rows, w.N, w.K, w.is_blocks ? dt : p->dt, dt, b->product_rows};
    if (w.is_blocks) team_block_linear(&product);
    else team_linear(&product);
}

static void team_attend(const Layers *p, const Layer *l, const Buffers *b) {
    const int64_t rows = p->rows, H = p->heads, KV = p->kv_heads, D = p->head_dim, dt = plain_dtype(p->dt), es = size_of((int)dt);
    const int64_t width = qkv_width(p);
    char *q = b->qkv, *k = b->qkv + H * D * es, *v = b->qkv + (H + KV) * D * es;
    int64_t q_stride = width, k_stride = width;
    if (l->q_norm) {
        const int64_t is_whole = l->norms_whole_rows; /* one norm over all heads of a row */
        team_rms_norm(b->q, q, width, l->q_norm, rows, is_whole ? 1 : H, is_whole ? H * D : D, p->eps, dt, l->norm_dt, p->is_centered);
        team_rms_norm(b->k, k, width, l->k_norm, rows, is_whole ? 1 : KV, is_whole ? KV * D : D, p->eps, dt, l->norm_dt, p->is_centered);
        q = b->q, k = b->k, q_stride = H * D, k_stride = KV * D;
    }
    team_rope(q, q_stride, H, k, k_stride, KV, p->cos[l->rope], p->sin[l->rope], rows, D, dt);
    team_store_kv(l->keys, l->values, k, k_stride, v, width, p->slots, rows, KV, D, p->page, dt);
    BARRIER
    const Attention attention = {
        .out = b->attended, .q = q, .q_stride = q_stride, .keys = l->keys, .values = l->values, .positions = p->positions,
        .span_starts = p->span_starts, .page_table = p->page_table, .rows = rows, .spans = p->spans, .max_pages = p->max_pages,
        .heads = H, .kv_heads = KV, .D = D, .page = p->page, .window = l->window, .scale = (float)p->scale,
        .soft_cap = (float)p->soft_cap, .dt = (int)dt};
    team_attention(&attention, &b->tiles);
    if (p->is_gated) {
        BARRIER
        team_sigmoid_mul(b->attended, b->attended, b->qkv + (H + 2 * KV) * D * es, width, rows, H * D, dt);
    }
}

/* The recurrence of a layer on the result of in_proj, and its gate. */
static void team_mix(const Layers *p, const Layer *l, const Buffers *b) {
    Recurrent a = *l->recurrent;
    a.out = b->attended, a.x = b->qkv, a.stride = l->in_width, a.rows = p->rows, a.prepared = b->prepared;
    a.spans = p->recurrent_spans, a.num_spans = p->num_recurrent_spans;
    if (l->is_short_conv) team_short_conv(&a, &b->tokens);
    else team_recurrence(&a, &b->tokens);
    if (!l->has_gate) return;
    BARRIER
    const char *gate = b->qkv + (l->in_width - a.out_width) * size_of((int)a.dt);
    const GatedNorm norm = {a.out, a.out, gate, l->gate_norm, l->in_width, a.rows, a.out_width, l->gate_group, l->is_gate_norm_shared, l->gates_first, a.dt, l->gate_eps};
    team_gated_norm(&norm);
}

static void team_layer(const Layers *p, const Layer *l, const Buffers *b) {
    const int64_t dt = plain_dtype(p->dt);
    const int64_t is_recurrent = l->in_proj != NULL;
    const Attention ahead = {
        .keys = l->keys, .values = l->values, .positions = p->positions,
        .span_starts = p->span_starts, .page_table = p->page_table, .spans = p->spans, .max_pages = p->max_pages,
        .heads = p->heads, .kv_heads = p->kv_heads, .D = p->head_dim, .page = p->page, .window = l->window, .dt = (int)dt};
    if (!is_recurrent) team_prefetch_kv(&ahead, &b->tiles);
    team_project(p, l, is_recurrent ? 4 : 0, b->qkv, p->x, b);
    BARRIER
    if (is_recurrent) team_mix(p, l, b);
    else team_attend(p, l, b);
    BARRIER
    team_project(p, l, is_recurrent ? 5 : 1, b->delta, b->attended, b);
    BARRIER
    AddNorm add = {.residual = p->residual, .delta = b->delta, .rows = p->rows, .D = p->hidden, .dt = dt, .wdt = l->norm_dt,
                   .is_centered = p->is_centered, .eps = p->eps, .scale = p->residual_scale};
    add.out = p->is_parallel ? b->added : p->x; /* a parallel MLP reads x, as attention did */
    add.delta_norm = l->attention_norm, add.weight = l->gate_up ? l->post_norm : l->next_norm;
    if (!l->gate_up) add.out = p->x;
    team_add_rms_norm(&add);
    BARRIER
    if (!l->gate_up) return;
    team_project(p, l, 2, b->gate_up, p->x, b);
    BARRIER
    if (p->activation == 2) team_positive_squares(b->activated, b->gate_up, p->rows, l->intermediate, dt);
    else team_activation_mul(b->activated, b->gate_up, p->rows, l->intermediate, p->activation, dt);
    BARRIER
    team_project(p, l, 3, b->delta, b->activated, b);
    BARRIER
    add.out = p->x, add.delta_norm = l->mlp_norm, add.weight = l->next_norm;
    team_add_rms_norm(&add);
    BARRIER
}

static void team_layers(const Layers *p, const Buffers *b) {
    for (int64_t i = 0; i < p->num_layers; i++) team_layer(p, &p->layers[i], b);
}

/* The next block of the scratch memory, aligned to a cache line. */
static void *take(char **at, int64_t bytes) {
    void *block = *at;
    *at += ceil_to(bytes, 64);
    return block;
}

void run_layers(const Layers *p) {
    static __thread void *buffer;
    static __thread size_t capacity;
    const int64_t rows = p->rows, H = p->heads, KV = p->kv_heads, D = p->head_dim, row = rows * size_of((int)plain_dtype(p->dt));
    int64_t intermediate = 0, projected = 0, mixed = 0, product_bytes = 0, num_products = 0, prepared = 0;
    Buffers b;
    b.tokens = recurrent_tokens(p->recurrent_spans, p->num_recurrent_spans);
    for (int64_t i = 0; i < p->num_layers; i++) {
        const Layer *l = &p->layers[i];
        const int is_recurrent = l->in_proj != NULL;
        const int weights[] = {is_recurrent ? 4 : 0, is_recurrent ? 5 : 1, 2, 3};
        intermediate = max64(intermediate, l->intermediate);
        projected = max64(projected, weight_of(p, l, weights[0]).N), mixed = max64(mixed, weight_of(p, l, weights[1]).K);
        if (is_recurrent) prepared = max64(prepared, recurrent_bytes(l->recurrent, &b.tokens));
        for (int index = 0; index < (l->gate_up ? 4 : 2); index++) {
            const Weight w = weight_of(p, l, weights[index]);
            product_bytes = max64(product_bytes, w.is_blocks ? block_linear_bytes(rows, w.K) : linear_bytes(rows, w.K, p->dt));
            num_products = max64(num_products, rows * w.N * w.K);
        }
    }
    const int64_t sizes[] = {projected * row, H * D * row, KV * D * row, mixed * row, p->hidden * row, p->hidden * row,
                             2 * intermediate * row, intermediate * row, product_bytes, prepared};
    int64_t bytes = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) bytes += ceil_to(sizes[i], 64);
    char *at = scratch(&buffer, &capacity, (size_t)bytes);
    void **const blocks[] = {(void **)&b.qkv, (void **)&b.q, (void **)&b.k, (void **)&b.attended, (void **)&b.delta,
                             (void **)&b.added, (void **)&b.gate_up, (void **)&b.activated, &b.product_rows, (void **)&b.prepared};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) *blocks[i] = take(&at, sizes[i]);
    const Attention attention = {.positions = p->positions, .span_starts = p->span_starts, .spans = p->spans, .heads = H, .kv_heads = KV, .D = D};
    b.tiles = attention_tiles(&attention, p->threads);
    TEAM(p->threads, max64(num_products, b.tiles.num_products) > MIN_PARALLEL_PRODUCTS, team_layers(p, &b));
}
