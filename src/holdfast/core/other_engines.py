"""Words of other engines, answered with ours: commands, options, arguments in Python, HTTP routes.

Users of ollama, vLLM, SGLang and llama.cpp type what they are used to. The answer is one line that says
what to use instead. Nothing is run, because the other word does not mean exactly that.
"""

import shlex
from collections.abc import Collection, Sequence

_CHAT_OR_SERVE = (
    "to talk: holdfast chat {model}; for one prompt: holdfast generate -m {model} PROMPT; "
    "to serve it: holdfast serve {model}"
)
_NO_DOWNLOAD = "a model is downloaded when it is first used: holdfast serve {model}, or holdfast generate -m {model} PROMPT"
_LIST = "holdfast models lists the models on this machine"
_STATUS = "a server says at /health and /metrics what it does; holdfast doctor checks this machine"
_NOT_MANAGED = "Holdfast keeps no models of its own; holdfast models says where each one is"

# Other engines' commands: what to type here. {model} is the next argument, or MODEL.
COMMANDS = {
    **dict.fromkeys(("run", "cli", "llama-cli"), _CHAT_OR_SERVE),
    **dict.fromkeys(("pull", "download", "get", "fetch"), _NO_DOWNLOAD),
    **dict.fromkeys(("list", "ls", "model", "list-models"), _LIST),
    **dict.fromkeys(("ps", "status", "stop"), _STATUS),
    **dict.fromkeys(("rm", "remove", "delete", "cp", "create", "push", "import"), _NOT_MANAGED),
    **dict.fromkeys(
        ("server", "start", "serve-model", "launch", "launch_server", "launch-server", "api_server", "llama-server"),
        "to serve a model: holdfast serve {model}",
    ),
    **dict.fromkeys(
        ("complete", "completion", "ask", "prompt", "predict", "run-batch"),
        "to answer prompts: holdfast generate PROMPT, or holdfast generate --prompts-file FILE",
    ),
    **dict.fromkeys(("show", "info", "inspect"), "holdfast models shows what is known of each model"),
    **dict.fromkeys(("collect-env", "env", "check", "version"), "holdfast doctor checks this machine; holdfast --version"),
    **dict.fromkeys(("benchmark", "llama-bench"), "holdfast bench --help lists the benchmarks"),
    **dict.fromkeys(("verify", "compare"), "holdfast replay compares an answer with its receipt, or two receipts"),
    **dict.fromkeys(("logprobs", "perplexity", "loglikelihood"), "holdfast score PROMPT COMPLETION"),
    "help": "holdfast --help, or holdfast COMMAND --help",
}  # fmt: skip

# Other engines' options: ours.
OPTIONS = {
    **dict.fromkeys(("--model", "-m", "--model-path", "--model-id"), "model"),
    **dict.fromkeys(("--ctx-size", "-c", "--context-length", "--max-seq-len", "--max-model-length"), "--max-model-len"),
    **dict.fromkeys(("--threads", "--num-thread"), "--num-threads"),
    **dict.fromkeys(("--parallel", "--max-running-requests", "--max-batch-size"), "--max-num-seqs"),
    **dict.fromkeys(("--max-num-batched-tokens", "--chunked-prefill-size", "--batch-size", "-b"), "--max-pass-tokens"),
    **dict.fromkeys(
        ("--gpu-memory-utilization", "--mem-fraction-static", "--kv-cache-memory-bytes", "--gpu-memory"),
        "--kv-memory, such as 20GiB",
    ),
    **dict.fromkeys(("--enable-prefix-caching", "--enable-radix-cache"), "--prefix-cache, which is the default"),
    **dict.fromkeys(("--no-enable-prefix-caching", "--disable-radix-cache"), "--no-prefix-cache"),
    **dict.fromkeys(("--alias", "-a"), "--served-model-name"),
    **dict.fromkeys(("--data-parallel-size", "--dp", "--dp-size"), "--replicas"),
    **dict.fromkeys(("--seed", "--random-seed"), "--default-seed"),
    **dict.fromkeys(("--speculative-config", "--speculative-algorithm"), "--speculation"),
    **dict.fromkeys(("--allowed-origins",), "--allowed-origin, once for each"),
    **dict.fromkeys(("--uvicorn-log-level", "--log-requests-level"), "--log-level"),
    **dict.fromkeys(
        ("--disable-log-requests", "--no-enable-log-requests", "--log-disable"),
        "--log-level, with warning",
    ),
    **dict.fromkeys(("--otlp-traces-endpoint",), "--otlp-endpoint"),
    **dict.fromkeys(("--enable-deterministic-inference", "--deterministic-inference"), "--deterministic"),
    **dict.fromkeys(("--n-predict", "--num-predict", "--max-new-tokens"), "--max-tokens"),
    **dict.fromkeys(("--temp",), "--temperature"),
    **dict.fromkeys(("--grammar", "--guided-grammar"), "--lark"),
    **dict.fromkeys(("--guided-regex",), "--regex"),
    **dict.fromkeys(("--guided-json", "--format"), "--json-schema"),
}  # fmt: skip

_UNSUPPORTED = {
    **dict.fromkeys(
        ("--tensor-parallel-size", "--tp", "--tp-size", "--pipeline-parallel-size", "--enable-expert-parallel"),
        "Holdfast uses one GPU for a model; --replicas serves it on several",
    ),
    **dict.fromkeys(
        ("--quantization", "-q", "--load-in-4bit", "--kv-cache-dtype"),
        "a model is served as it is stored: give a .gguf file for quantised weights",
    ),
    **dict.fromkeys(("--trust-remote-code",), "Holdfast never runs code from a model; leave it out"),
    **dict.fromkeys(
        ("--n-gpu-layers", "--gpu-layers"), "a model is on the GPU or on the CPU as a whole: --device"
    ),
    **dict.fromkeys(
        ("--enforce-eager", "--compilation-config", "--block-size", "--swap-space", "--api-server-count"),
        "there is nothing to choose; leave it out",
    ),
    **dict.fromkeys(
        ("--enable-chunked-prefill", "--enable-auto-tool-choice", "--async-scheduling"),
        "it is always on; leave it out",
    ),
    **dict.fromkeys(("--revision",), "a revision is part of the model's name: ORG/NAME@REVISION"),
    **dict.fromkeys(("--tokenizer", "--tokenizer-mode"), "a model is served with its own tokenizer; leave it out"),
    **dict.fromkeys(("--enable-lora", "--lora-modules", "--lora"), "merge the adapter into the weights first"),
    **dict.fromkeys(
        ("--structured-outputs-config", "--guided-decoding-backend"),
        "grammars are always compiled by llguidance; leave it out",
    ),
}  # fmt: skip


# Routes of other engines, and of OpenAI, that the server does not have: why, and what to use.
ROUTES = {
    "/v1/moderations": "moderation is not supported",
    "/v1/assistants": "assistants are not supported; use POST /v1/chat/completions",
    "/v1/images/generations": "images are not supported",
    "/v1/audio/speech": "audio is not supported",
    "/v1/audio/transcriptions": "audio is not supported",
    "/v1/files": "files are not supported",
    "/v1/batches": "batches are not supported; send a list of prompts to POST /v1/completions, or concurrent requests",
    **dict.fromkeys(
        ("/generate", "/completion"), "this server has OpenAI's routes; use POST /v1/completions"
    ),
    "/infill": "infilling is not supported",
    "/apply-template": "templates are applied by POST /v1/chat/completions, and by POST /tokenize with messages",
    **dict.fromkeys(
        ("/props", "/slots", "/load"), "use GET /v1/models, GET /v1/certificate and GET /metrics"
    ),
    **dict.fromkeys(
        ("/rerank", "/v1/rerank", "/v2/rerank", "/classify", "/pooling", "/score"),
        "rerankers and classifiers are not supported; POST /v1/embeddings has embeddings, POST /v1/score the logprobs "
        "of a completion",
    ),
}


def command_hint(command: str, rest: Sequence[str]) -> str | None:
    """Return what to type instead of another engine's command, or None if it is not known."""
    hint = COMMANDS.get(command)
    if hint is None:
        return None
    model = next((shlex.quote(one) for one in rest if not one.startswith("-")), "MODEL")
    return f"there is no command {command}; {hint.format(model=model)}"


def option_hint(command: str, option: str, names: Collection[str]) -> str | None:
    """Return what to give instead of another engine's option, or None if it is not known.

    names are the options and arguments that the command has.
    """
    if option in _UNSUPPORTED and "--device" in names:
        return f"{command} has no option {option}: {_UNSUPPORTED[option]}"
    ours = OPTIONS.get(option)
    if ours is None or ours.split(",")[0] not in names:
        return None
    wanted = f"its model without an option: holdfast {command} MODEL" if ours == "model" else ours
    return f"{command} has no option {option}; give {wanted}"


def argument_hint(name: str, names: Collection[str]) -> str | None:
    """Return what to give instead of another engine's argument in Python, or None if it is not known.

    names: the arguments there are.
    """
    option = f"--{name.replace('_', '-')}"
    if option in _UNSUPPORTED:
        return _UNSUPPORTED[option]
    ours, comma, rest = OPTIONS.get(option, "").partition(",")
    argument = ours.removeprefix("--").replace("-", "_")
    if argument in names:
        return f"use {argument}{comma}{rest}"
    return f"holdfast serve has {ours}" if ours else None
