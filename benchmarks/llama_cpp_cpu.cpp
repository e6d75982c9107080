// The CPU seconds of llama.cpp on one thread, for benchmarks/cpu_recurrent.py:
//
//     llama_cpp_cpu MODEL PREFILL PROMPT STEPS STREAMS...
//
// Build libllama (docs/build-llama-cpp.sh), then
//     g++ -O2 -I CHECKOUT/include -I CHECKOUT/ggml/include llama_cpp_cpu.cpp -L BUILD/bin -lllama -lggml -lggml-base
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "llama.h"

static double cpu_seconds() { return (double)clock() / CLOCKS_PER_SEC; }

/* The seconds of `count` tokens for each stream, at positions from `first` on, in one batch. */
static double decode(llama_context *context, int streams, int first, int count) {
    llama_batch batch = llama_batch_init(streams * count, 0, 1);
    for (int stream = 0; stream < streams; stream++)
        for (int i = 0; i < count; i++) {
            const int at = batch.n_tokens++;
            batch.token[at] = 100 + rand() % 39900, batch.pos[at] = first + i;
            batch.n_seq_id[at] = 1, batch.seq_id[at][0] = stream, batch.logits[at] = i == count - 1;
        }
    const double started = cpu_seconds();
    if (llama_decode(context, batch)) exit(2);
    llama_synchronize(context);
    const double seconds = cpu_seconds() - started;
    llama_batch_free(batch);
    return seconds;
}

static llama_context *open_context(llama_model *model, int streams, int length) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)(streams * (length + 64)), params.n_seq_max = (uint32_t)streams;
    params.n_batch = 512 > streams * length ? 512 : (uint32_t)(streams * length), params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = 1;
    llama_context *context = llama_init_from_model(model, params);
    if (!context) exit(3);
    decode(context, streams, 0, 1); /* warm-up */
    llama_memory_clear(llama_get_memory(context), true);
    return context;
}

int main(int argc, char **argv) {
    if (argc < 6) return 1;
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);
    llama_backend_init();
    llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
    if (!model) return 4;
    const int prefill = atoi(argv[2]), prompt = atoi(argv[3]), steps = atoi(argv[4]);
    llama_context *context = open_context(model, 1, prefill);
    printf("{\"prefill %d\": %.6f", prefill, decode(context, 1, 0, prefill));
    llama_free(context);
    for (int arg = 5; arg < argc; arg++) {
        const int streams = atoi(argv[arg]);
        context = open_context(model, streams, prompt + steps);
        decode(context, streams, 0, prompt);
        double total = 0;
        for (int step = 0; step < steps; step++) total += decode(context, streams, prompt + step, 1);
        printf(", \"%d stream%s\": %.6f", streams, streams > 1 ? "s" : "", total);
        llama_free(context);
    }
    printf("}\n");
    llama_model_free(model);
    return 0;
}
