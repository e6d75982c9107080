/* Calls every C kernel with fixed numbers and prints a digest of the bits of each result.
 *
 * Inputs come from integer hashing, so they are the same on every machine. Of each operation there are an
 * "ordinary" case (random signs, mantissas and scales) and a "hostile" one: subnormal numbers, the largest
 * finite ones, both zeros, infinities and NaNs among them. All NaNs count as equal. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { F32, BF16, F16 };
static const char *DTYPES[] = {"fp32", "bf16", "fp16"};
static const char *KINDS[] = {"ordinary", "hostile"};

extern int64_t holdfast_block_bytes(int64_t type, int64_t n, int64_t k);
extern int64_t holdfast_packed_bytes(int64_t n, int64_t k, int64_t dt);
#define KERNEL(name) extern void holdfast_##name(const int64_t *arguments);
KERNEL(pack) KERNEL(linear) KERNEL(rms_norm) KERNEL(add_rms_norm) KERNEL(rope) KERNEL(activation_mul)
KERNEL(swiglu_mul) KERNEL(soft_cap) KERNEL(exp) KERNEL(store_kv) KERNEL(attention) KERNEL(layers) KERNEL(noise)
KERNEL(recurrence) KERNEL(short_conv) KERNEL(gated_norm) KERNEL(sigmoid_mul)
KERNEL(block_pack) KERNEL(block_linear) KERNEL(block_rows)
KERNEL(sample) KERNEL(logsumexp) KERNEL(topk)

/* ---- arguments: one 64-bit word each ---- */
static int64_t words[64];
static int num_words;
static void begin(void) {
    memset(words, 0, sizeof words); /* arguments that are not given are 0 */
    num_words = 0;
}
static void p(const void *pointer) { words[num_words++] = (int64_t)(intptr_t)pointer; }
static void i(int64_t value) { words[num_words++] = value; }
static void d(double value) { memcpy(&words[num_words++], &value, 8); }

/* ---- inputs ---- */
static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static size_t size_of(int dt) { return dt == F32 ? 4 : 2; }
static int hostile;
static uint64_t counter;

/* The bits of a number: sign, an exponent of -4 to 3, a random mantissa. */
static uint32_t ordinary_bits(uint64_t h, int dt) {
    const uint32_t sign = (uint32_t)(h >> 63), step = (uint32_t)(h >> 40) & 7u;
    if (dt == F32) return sign << 31 | (123 + step) << 23 | ((uint32_t)h & 0x7fffffu);
    if (dt == BF16) return sign << 15 | (123 + step) << 7 | ((uint32_t)h & 0x7fu);
    return sign << 15 | (11 + step) << 10 | ((uint32_t)h & 0x3ffu);
}

/* One number in eight is special; one in 4096 is infinite or no number. */
static uint32_t hostile_bits(uint64_t h, int dt) {
    static const uint32_t fp32[] = {0x80000000u, 0x00000001u, 0x807fffffu, 0x00400000u, 0x00800000u, 0x7e7fffffu, 0xfe000000u, 0x00000000u};
    static const uint32_t bf16[] = {0x8000u, 0x0001u, 0x807fu, 0x0040u, 0x0080u, 0x7e7fu, 0xfe00u, 0x0000u};
    static const uint32_t fp16[] = {0x8000u, 0x0001u, 0x83ffu, 0x0200u, 0x0400u, 0x7bffu, 0xfbffu, 0x0000u};
    static const uint32_t infinite[3][4] = {{0x7f800000u, 0xff800000u, 0x7fc00001u, 0xffc12345u}, {0x7f80u, 0xff80u, 0x7fc1u, 0xffc2u}, {0x7c00u, 0xfc00u, 0x7e01u, 0xfe02u}};
    const uint32_t *special = dt == F32 ? fp32 : dt == BF16 ? bf16 : fp16;
    if ((h >> 12 & 4095) == 0) return infinite[dt][h >> 24 & 3];
    return (h >> 5 & 7) == 0 ? special[h >> 30 & 7] : ordinary_bits(h, dt);
}

static void *numbers(int64_t count, int dt) {
    char *out = calloc((size_t)count + 64, 4);
    for (int64_t at = 0; at < count; at++) {
        const uint64_t h = mix(++counter * 0x9e3779b97f4a7c15ull);
        const uint32_t bits = hostile ? hostile_bits(h, dt) : ordinary_bits(h, dt);
        memcpy(out + (size_t)at * size_of(dt), &bits, size_of(dt)); /* little-endian */
    }
    return out;
}

static void *zeros(int64_t count, int dt) { return calloc((size_t)count + 64, size_of(dt)); }

/* ---- digests: FNV-1a, 64 bits ---- */
static uint64_t digest = 0xcbf29ce484222325ull;

static void add_bits(uint64_t bits, int bytes) {
    for (int k = 0; k < bytes; k++) digest = (digest ^ (bits >> 8 * k & 255)) * 0x100000001b3ull;
}

static void add(const void *out, int64_t count, int dt) {
    static const uint32_t infinity[] = {0x7f800000u, 0x7f80u, 0x7c00u}, unsigned_bits[] = {0x7fffffffu, 0x7fffu, 0x7fffu};
    for (int64_t at = 0; at < count; at++) {
        uint32_t bits = 0;
        memcpy(&bits, (const char *)out + (size_t)at * size_of(dt), size_of(dt));
        if ((bits & unsigned_bits[dt]) > infinity[dt]) bits = infinity[dt] + 1;
        add_bits(bits, (int)size_of(dt));
    }
}

static void add_ids(const int64_t *out, int64_t count) {
    for (int64_t at = 0; at < count; at++) add_bits((uint64_t)out[at], 8);
}

/* Print the digest of one case and begin the next with inputs of its own. */
static void print(const char *name, int dt) {
    printf("%s %s %s %016llx\n", name, DTYPES[dt], KINDS[hostile], (unsigned long long)digest);
    digest = 0xcbf29ce484222325ull;
    counter = mix(counter);
}

/* ---- operations ---- */
static const int64_t THREADS = 2;

static void *packed(int64_t n, int64_t k, int dt) {
    void *weight = numbers(n * k, dt), *out = calloc((size_t)holdfast_packed_bytes(n, k, dt) + 64, 1);
    begin(), p(out), p(weight), i(k), i(n), i(k), i(dt), i(THREADS);
    holdfast_pack(words);
    free(weight);
    return out;
}

static void linear(int dt) {
    static const int64_t shapes[][3] = {{1, 70, 33}, {2, 96, 64}, {3, 33, 130}, {7, 40, 61}, {30, 129, 96}, {100, 64, 200}};
    for (int s = 0; s < 6; s++) {
        const int64_t m = shapes[s][0], n = shapes[s][1], k = shapes[s][2];
        void *w = packed(n, k, dt), *x = numbers(m * k, dt);
        float *bias = numbers(n, F32);
        for (int out_dt = F32; out_dt <= dt; out_dt += dt ? dt : 1) {
            void *y = zeros(m * n, out_dt);
            begin(), p(y), p(x), i(k), p(w), p(s % 2 ? bias : NULL), i(m), i(n), i(k), i(dt), i(out_dt), i(THREADS);
            holdfast_linear(words);
            add(y, m * n, out_dt);
            free(y);
        }
        free(w), free(x), free(bias);
    }
    print("linear", dt);
}

static const int64_t WIDTHS[] = {1, 5, 16, 64, 90, 576, 1000, 2049};

static void norms(int dt) {
    for (int s = 0; s < 8; s++)
        for (int form = 0; form < 3; form++) { /* weights of the dtype; fp32; fp32 and centered */
            const int64_t rows = 5, n = WIDTHS[s], wdt = form ? F32 : dt;
            void *x = numbers(rows * n, dt), *weight = numbers(n, (int)wdt), *out = zeros(rows * n, dt);
            begin(), p(out), p(x), i(n), p(weight), i(rows), i(1), i(n), d(1e-5), i(dt), i(wdt), i(form == 2), i(THREADS);
            holdfast_rms_norm(words);
            add(out, rows * n, dt);
            free(x), free(weight), free(out);
        }
    print("rms_norm", dt);
}

static void add_norms(int dt) {
    for (int s = 0; s < 8; s++)
        for (int form = 0; form < 4; form++) { /* with and without the norm of delta, with and without a scale */
            const int64_t rows = 4, n = WIDTHS[s];
            void *residual = numbers(rows * n, dt), *delta = numbers(rows * n, dt), *weight = numbers(n, dt), *out = zeros(rows * n, dt);
            begin(), p(out), p(residual), p(delta), p(form & 1 ? weight : NULL), p(weight), i(rows), i(n), i(dt), i(dt), i(0), i(THREADS);
            d(1e-6), d(form & 2 ? 0.22 : 1.0);
            holdfast_add_rms_norm(words);
            add(residual, rows * n, dt), add(out, rows * n, dt);
            free(residual), free(delta), free(weight), free(out);
        }
    print("add_rms_norm", dt);
}

static void rope(int dt) {
    static const int64_t dims[] = {64, 80, 20};
    for (int s = 0; s < 3; s++) {
        const int64_t rows = 6, heads = 3, dim = dims[s];
        void *q = numbers(rows * heads * dim, dt), *k = numbers(rows * dim, dt);
        float *cos = numbers(rows * dim / 2, F32), *sin = numbers(rows * dim / 2, F32);
        begin(), p(q), i(heads * dim), i(heads), p(k), i(dim), i(1), p(cos), p(sin), i(rows), i(dim), i(dt), i(THREADS);
        holdfast_rope(words);
        add(q, rows * heads * dim, dt), add(k, rows * dim, dt);
        free(q), free(k), free(cos), free(sin);
    }
    print("rope", dt);
}

static void activations(int dt) {
    for (int form = 0; form < 3; form++) {
        const int64_t rows = 5, width = 1001;
        void *x = numbers(rows * 2 * width, dt), *out = zeros(rows * width, dt);
        begin(), p(out), p(x), i(rows), i(width);
        if (form < 2) i(form), i(dt), i(THREADS), holdfast_activation_mul(words);
        else d(1.702), d(7.0), i(dt), i(THREADS), holdfast_swiglu_mul(words);
        add(out, rows * width, dt);
        free(x), free(out);
    }
    print("activations", dt);
}

static void elementwise(void) {
    const int64_t count = 5003;
    for (int form = 0; form < 2; form++) {
        float *x = numbers(count, F32);
        begin(), p(x), i(count);
        if (form) d(30.0), i(THREADS), holdfast_soft_cap(words);
        else i(THREADS), holdfast_exp(words);
        add(x, count, F32);
        free(x);
    }
    print("exp, soft_cap", F32);
}

#define PAGE 16
#define PAGES 12
#define CONTEXT (PAGE * PAGES)

/* Three requests: a decode token, a chunk, the end of a long context. */
static void attention(int dt) {
    static const int64_t dims[] = {64, 80, 20};
    static const int32_t starts[] = {0, 1, 12, 14};
    static const int64_t positions[] = {77, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 189, 190};
    const int64_t rows = 14, heads = 6, kv_heads = 2;
    for (int form = 0; form < 12; form++) { /* head dims; a window; a soft cap or sinks */
        const int64_t dim = dims[form % 3], window = form / 3 % 2 ? 50 : 0;
        const int is_capped = form >= 6;
        void *keys = zeros(PAGES * 3 * PAGE * kv_heads * dim, dt), *values = zeros(PAGES * 3 * PAGE * kv_heads * dim, dt);
        int64_t slots[CONTEXT];
        int32_t table[3 * PAGES];
        for (int k = 0; k < 3 * PAGES; k++) table[k] = 3 * PAGES - 1 - k;
        for (int r = 0; r < 3; r++) {
            void *k = numbers(CONTEXT * kv_heads * dim, dt), *v = numbers(CONTEXT * kv_heads * dim, dt);
            for (int64_t at = 0; at < CONTEXT; at++) slots[at] = table[r * PAGES + at / PAGE] * PAGE + at % PAGE;
            begin(), p(keys), p(values), p(k), i(kv_heads * dim), p(v), i(kv_heads * dim), p(slots), i(CONTEXT), i(kv_heads), i(dim), i(PAGE), i(dt), i(THREADS);
            holdfast_store_kv(words);
            free(k), free(v);
        }
        void *q = numbers(rows * heads * dim, dt), *out = zeros(rows * heads * dim, dt);
        float *sinks = numbers(heads, F32);
        begin(), p(out), p(q), i(heads * dim), p(keys), p(values), p(positions), p(starts), p(table), p(form >= 9 ? sinks : NULL);
        i(rows), i(3), i(PAGES), i(heads), i(kv_heads), i(dim), i(PAGE), d(0.125), d(is_capped ? 50.0 : 0.0), i(window), i(dt), i(THREADS);
        holdfast_attention(words);
        add(out, rows * heads * dim, dt);
        free(keys), free(values), free(q), free(out), free(sinks);
    }
    print("attention", dt);
}

static void layer(int dt) {
    const int64_t rows = 5, hidden = 96, heads = 3, kv_heads = 1, dim = 32, inner = 160, width = (heads + 2 * kv_heads) * dim;
    static const int64_t positions[] = {0, 1, 2, 3, 4}, slots[] = {0, 1, 2, 3, 4};
    static const int32_t starts[] = {0, 5}, table[] = {0};
    void *residual = numbers(rows * hidden, dt), *x = numbers(rows * hidden, dt), *norm = numbers(hidden, dt);
    void *qkv = packed(width, hidden, dt), *o = packed(hidden, heads * dim, dt);
    void *gate_up = packed(2 * inner, hidden, dt), *down = packed(hidden, inner, dt);
    void *keys = zeros(PAGE * dim, dt), *values = zeros(PAGE * dim, dt);
    float *cos = numbers(rows * dim / 2, F32), *sin = numbers(rows * dim / 2, F32);
    begin(), p(qkv), p(o), p(gate_up), p(down);
    for (int k = 0; k < 8; k++) p(NULL); /* biases, norms of q and k, norms of what is added */
    p(norm), p(norm), i(0), i(inner), i(0), i(dt), i(0), p(keys), p(values), i(0);
    int64_t one[64];
    memcpy(one, words, sizeof one);
    begin(), p(residual), p(x), p(one), i(1), p(cos), p(cos), p(sin), p(sin), p(positions), p(slots), p(starts), p(table);
    i(rows), i(1), i(1), i(PAGE), i(hidden), i(heads), i(kv_heads), i(dim), i(dt), i(THREADS), i(0), i(0), i(0);
    d(1e-5), d(0.2), d(0.0), d(1.0);
    holdfast_layers(words);
    add(residual, rows * hidden, dt), add(x, rows * hidden, dt), add(keys, PAGE * dim, dt), add(values, PAGE * dim, dt);
    free(residual), free(x), free(norm), free(qkv), free(o), free(gate_up), free(down), free(keys), free(values), free(cos), free(sin);
    print("layer", dt);
}

/* Weights in quantised blocks: random bits, with scales near 1, or any fp16 in the hostile case. */
static void blocks(int dt) {
    static const struct {
        int64_t type, length, bytes, scales_at, num_scales;
    } formats[] = {{2, 32, 18, 0, 1}, {3, 32, 20, 0, 2}, {6, 32, 22, 0, 1}, {7, 32, 24, 0, 2},
                   {8, 32, 34, 0, 1}, {12, 256, 144, 0, 2}, {13, 256, 176, 0, 2}, {14, 256, 210, 208, 1}};
    static const int64_t batches[] = {1, 2, 3, 6, 9, 17}, ids[] = {4, 0, 36};
    const int64_t n = 37, k = 512;
    for (int f = 0; f < 8; f++) {
        const int64_t row = k / formats[f].length * formats[f].bytes, type = formats[f].type;
        unsigned char *weight = calloc((size_t)(n * row), 1);
        for (int64_t at = 0; at < n * row; at++) weight[at] = (unsigned char)mix(++counter);
        for (int64_t at = 0; at < n * row; at += formats[f].bytes)
            for (int64_t s = 0; s < formats[f].num_scales && !hostile; s++)
                weight[at + formats[f].scales_at + 2 * s + 1] = weight[at + formats[f].scales_at + 2 * s + 1] % 16 + 48;
        int64_t *whole = calloc((size_t)(128 + holdfast_block_bytes(type, n, k)) / 8 + 8, 8);
        whole[0] = 1, whole[1] = type, whole[2] = n, whole[3] = 128; /* one part, its columns, where it begins */
        begin(), p(whole + 16), p(weight), i(n), i(k), i(type), i(THREADS);
        holdfast_block_pack(words);
        for (int b = 0; b < 6; b++) {
            const int64_t m = batches[b];
            void *x = numbers(m * k, dt), *y = zeros(m * n, F32), *bias = numbers(n, F32);
            begin(), p(y), p(x), i(k), p(whole), p(bias), i(m), i(n), i(k), i(dt), i(F32), i(THREADS);
            holdfast_block_linear(words);
            add(y, m * n, F32);
            free(x), free(y), free(bias);
        }
        void *rows = zeros(3 * k, dt);
        begin(), p(rows), p(weight), p(ids), i(3), i(k), i(type), i(dt);
        holdfast_block_rows(words);
        add(rows, 3 * k, dt);
        free(weight), free(whole), free(rows);
    }
    print("quantised blocks", dt);
}

#define LOG 16

/* Two passes of two requests: a prefill, and a chunk after one of three tokens that are replayed. Columns of a head fill no block. */
static void recurrence(int dt) {
    static const int32_t passes[2][2][6] = {{{0, 0, 0, 9, 0, 9}, {1, 0, 0, 2, 9, 14}}, {{1, 5, 2, 6, 0, 2}, {0, 9, 9, 12, 2, 5}}};
    static const int64_t all_rows[] = {14, 6}; /* the last one is padding */
    for (int form = 0; form < 3; form++) {     /* gated delta rule, state space, short convolution */
        const int64_t heads = 4, groups = 2, size = 24, columns = 37, kernel = 4, out_width = form == 2 ? 70 : heads * columns;
        const int64_t conv_width = form == 2 ? 70 : out_width + 2 * groups * size, log_width = conv_width + (form == 2 ? 0 : (2 - form) * heads);
        const int64_t input_width = form == 2 ? 3 * conv_width : log_width, stride = input_width + 3;
        float *conv = numbers(kernel * conv_width, F32), *bias = numbers(conv_width, F32), *skip = numbers(heads, F32);
        float *decay = numbers(heads, F32), *dt_bias = numbers(heads, F32), *state = zeros(2 * heads * size * columns, F32);
        void *log = zeros(2 * LOG * log_width, dt);
        for (int64_t h = 0; h < heads; h++) decay[h] = decay[h] > 0 ? -decay[h] : decay[h];
        for (int pass = 0; pass < 2; pass++) {
            const int64_t rows = all_rows[pass];
            void *x = numbers(rows * stride, dt), *out = numbers(rows * out_width, dt);
            begin(), p(out), p(x), p(conv), p(form ? bias : NULL), p(decay), p(dt_bias), p(skip), p(state), p(log), p(passes[pass]);
            i(stride), i(rows), i(2), i(kernel), i(LOG), i(log_width), i(conv_width), i(out_width), i(heads), i(groups), i(size), i(columns);
            i(form == 0), i(dt), d(2.0), d(0.01), d(3.0), p(NULL), i(THREADS);
            if (form == 2) holdfast_short_conv(words);
            else holdfast_recurrence(words);
            add(out, rows * out_width, dt);
            free(x), free(out);
        }
        add(state, 2 * heads * size * columns, F32), add(log, 2 * LOG * log_width, dt);
        free(conv), free(bias), free(skip), free(decay), free(dt_bias), free(state), free(log);
    }
    print("recurrence", dt);
}

static void gates(int dt) {
    for (int form = 0; form < 5; form++) { /* no norm; a norm before and after the gate, of groups and of rows; a sigmoid */
        const int64_t rows = 3, width = 270, group = form < 3 ? 90 : 270;
        void *x = numbers(rows * width, dt), *gate = numbers(rows * (width + 9), dt), *out = zeros(rows * width, dt);
        float *weight = numbers(width, F32);
        begin(), p(out), p(x), p(gate);
        if (form < 4) p(form ? weight : NULL), i(width + 9), i(rows), i(width), i(group), i(form == 1), i(form % 2), i(dt), d(1e-5), i(THREADS), holdfast_gated_norm(words);
        else i(width + 9), i(rows), i(width), i(dt), i(THREADS), holdfast_sigmoid_mul(words);
        add(out, rows * width, dt);
        free(x), free(gate), free(out), free(weight);
    }
    print("gates", dt);
}

#define ROWS 8

static void sampling(void) {
    static const int64_t sizes[] = {1, 17, 4100, 49152};
    for (int s = 0; s < 4; s++) {
        const int64_t n = sizes[s], k = n < 20 ? n : 20;
        float *logits = numbers(ROWS * n, F32), sums[ROWS], *values = calloc(ROWS * 20, 4), *noise = calloc((size_t)n + 64, 4);
        int64_t ids[ROWS * 20], seeds[ROWS], positions[ROWS];
        float temperature[ROWS], top_p[ROWS], min_p[ROWS];
        int32_t top_k[ROWS];
        for (int r = 0; r < ROWS; r++) {
            seeds[r] = (int64_t)mix((uint64_t)r), positions[r] = 1000 * r;
            temperature[r] = r == 0 ? 0.0f : 0.7f, top_p[r] = r % 2 ? 0.9f : 1.0f, min_p[r] = r == 3 ? 0.02f : 0.0f, top_k[r] = r == 5 ? 40 : 0;
        }
        begin(), p(ids), p(logits), i(ROWS), i(n), p(temperature), p(top_k), p(top_p), p(min_p), p(seeds), p(positions), i(THREADS);
        holdfast_sample(words);
        add_ids(ids, ROWS);
        begin(), p(sums), p(logits), i(ROWS), i(n), i(THREADS);
        holdfast_logsumexp(words);
        add(sums, ROWS, F32);
        begin(), p(values), p(ids), p(logits), i(ROWS), i(n), i(k), i(THREADS);
        holdfast_topk(words);
        add(values, ROWS * k, F32), add_ids(ids, ROWS * k);
        begin(), p(noise), i(seeds[1]), i(s), i(n);
        holdfast_noise(words);
        add(noise, n, F32);
        free(logits), free(values), free(noise);
    }
    print("sample, logsumexp, topk, noise", F32);
}

int main(void) {
    for (hostile = 0; hostile < 2; hostile++) {
        for (int dt = F32; dt <= F16; dt++) {
            linear(dt), norms(dt), add_norms(dt), rope(dt), activations(dt), attention(dt), layer(dt);
        }
        elementwise(), sampling();
    }
    for (hostile = 0; hostile < 2; hostile++)
        for (int dt = F32; dt <= F16; dt++) blocks(dt);
    for (hostile = 0; hostile < 2; hostile++)
        for (int dt = F32; dt <= F16; dt++) recurrence(dt), gates(dt);
    return 0;
}
