"""Engines of random weights as a user gets them: each is a new process that builds an `LLM` and runs the
jobs it is sent.

    python benchmarks/engines.py

reads JSON lines: first the options of `LLM(...)`, then jobs. It writes a line for each: what the
build took by stage, then the figures of a job, or {"error": ...}. It makes public calls only and
prepares nothing, so the first job of a kind includes what is compiled or captured on first use.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast import LLM, Result, SamplingParams, StructuredOutput
from holdfast.errors import EngineStopped
from holdfast.models.config import DecoderConfig, parse_config
from holdfast.models.dummy import tiny_fields
from holdfast.models.shapes import published_config

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}
Figures = dict[str, float]
# Shapes that a CPU computes in no time, and what their engines are given. The second has eight experts in each
# layer, of which a token has two.
TINY_SHAPES: Mapping[str, dict[str, Any]] = {
    "tiny": {},
    "tiny-moe": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 48,
        "norm_topk_prob": True,
    },
}
_DELTA_LAYERS: Mapping[str, Any] = {
    "num_attention_heads": 16,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
# Models with recurrent layers. The whole Qwen3-Next-80B-A3B has 48 layers, which one H200 cannot hold.
RECURRENT_SHAPES: Mapping[str, dict[str, Any]] = {
    "qwen3-next-24-layers": {
        **_DELTA_LAYERS,
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "hidden_size": 2048,
        "intermediate_size": 5120,
        "num_hidden_layers": 24,
        "num_key_value_heads": 2,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "vocab_size": 151936,
    },
    "qwen3.5-9b": {
        **_DELTA_LAYERS,
        "architectures": ["Qwen3_5ForCausalLM"],
        "model_type": "qwen3_5_text",
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 32,
        "num_key_value_heads": 4,
        "vocab_size": 248320,
    },
    "granite-4.0-h-micro": {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "shared_intermediate_size": 8192,
        "num_hidden_layers": 40,
        "layer_types": ["attention" if layer in (5, 15, 25, 35) else "mamba" for layer in range(40)],
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "position_embedding_type": "nope",
        "mamba_n_heads": 64,
        "mamba_d_head": 64,
        "mamba_d_state": 128,
        "mamba_n_groups": 1,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.015625,
        "logits_scaling": 8.0,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "vocab_size": 100352,
    },
}
_TINY_OPTIONS = {
    "certification": "startup",
    "max_num_seqs": 8,
    "max_pass_tokens": 64,
    "kv_memory": "16MiB",
}
_END_SECONDS = 30.0


def shape_config(shape: str) -> DecoderConfig:
    """Return the configuration of a published shape, of a recurrent one or of a tiny one."""
    fields = _fields_of(shape)
    return published_config(shape) if fields is None else parse_config(fields)


def _fields_of(shape: str) -> dict[str, Any] | None:
    """Return the fields of a shape that the library does not know by name."""
    if shape in TINY_SHAPES:
        return tiny_fields(**TINY_SHAPES[shape])
    return {**RECURRENT_SHAPES[shape], "torch_dtype": "bfloat16"} if shape in RECURRENT_SHAPES else None


@contextmanager
def llm_options(shape: str, dtype: str | None) -> Iterator[dict[str, Any]]:
    """Yield the options of an `LLM` of random weights. A shape that the library does not know by name is
    a folder while the block runs."""
    options: dict[str, Any] = {"load_format": "dummy", **({} if dtype is None else {"dtype": dtype})}
    fields = _fields_of(shape)
    if fields is None:
        yield {"model": shape, **options}
        return
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(fields))
        yield {"model": folder, **options, **(_TINY_OPTIONS if shape in TINY_SHAPES else {})}


@dataclass(frozen=True)
class Job:
    """A batch of greedy requests, all submitted at once, each with the length of its prompt and answer.

    number: of the job. Prompts are random tokens drawn by it, so no prompt was seen before.
    shared_len: so many first tokens are those of all prompts.
    params: further settings of every request. seeded: each request gets a seed.
    kind: "receipts" reads every receipt within the time; "json" measures seven of eight requests while
        the others have a JSON schema.
    times_prefill: the same lengths run again, for one token, which gives the time of a decode step.
    """

    number: int
    vocab_size: int
    prompt_lens: Sequence[int]
    output_lens: Sequence[int]
    deterministic: bool
    shared_len: int = 0
    params: Mapping[str, Any] = field(default_factory=dict)
    seeded: bool = False
    kind: str = ""
    times_prefill: bool = False

    def draw(self, rng: random.Random) -> list[list[int]]:
        ids = range(self.vocab_size)
        shared = rng.choices(ids, k=self.shared_len)
        return [shared + rng.choices(ids, k=length - self.shared_len) for length in self.prompt_lens]

    def settings(self) -> list[SamplingParams]:
        params: dict[str, Any] = {"temperature": 0, "ignore_eos": True, **self.params}
        return [
            SamplingParams(
                max_tokens=count,
                deterministic=self.deterministic,
                seed=place if self.seeded else None,
                **params,
            )
            for place, count in enumerate(self.output_lens)
        ]


class EngineProcess:
    """A process with an `LLM`. `run` is for one job at a time."""

    def __init__(self, options: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> None:
        """Start it, and wait until the `LLM` is built. Raises `EngineStopped` if it cannot be."""
        self._started = time.perf_counter()
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self.start_up_seconds: Figures = self._ask(options)
        except BaseException:
            self.close()
            raise

    @property
    def seconds(self) -> float:
        """The time since the start of the process."""
        return time.perf_counter() - self._started

    def run(self, job: Job) -> Figures:
        """The figures of a job. Raises `EngineStopped` if it fails."""
        return self._ask(asdict(job))

    def close(self) -> None:
        """End the process: the end of its input ends it, unless it hangs."""
        try:
            self._process.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def __enter__(self) -> "EngineProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, line: Mapping[str, Any]) -> Figures:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
            reply = self._process.stdout.readline()
        except BrokenPipeError:
            reply = ""
        if not reply:
            raise EngineStopped(f"the engine's process ended with {self._process.wait(_END_SECONDS)}")
        read: dict[str, Any] = json.loads(reply)
        if "error" in read:
            raise EngineStopped(read["error"])
        return read


def run_job(llm: LLM, job: Job) -> Figures:
    """What a job's requests took, and what their results say.

    speed is output tok/s of the batch, or prompt tok/s if every answer is one token. certified counts
    the answers that were committed by certificate.
    """
    rng = random.Random(job.number)
    if job.kind == "json":
        return _time_neighbours(llm, job, rng)
    figures = _time_batch(llm, job.draw(rng), job.settings(), read_receipts=job.kind == "receipts")
    if job.times_prefill:
        first = [replace(params, max_tokens=1) for params in job.settings()]
        prefill = _time_batch(llm, job.draw(rng), first)["seconds"]
        figures["prefill_seconds"] = prefill
        figures["step_ms"] = 1e3 * (figures["seconds"] - prefill) / (max(job.output_lens) - 1)
    return figures


def _time_batch(
    llm: LLM, prompts: list[list[int]], params: list[SamplingParams], *, read_receipts: bool = False
) -> Figures:
    started = time.perf_counter()
    results = llm.generate(prompts, params, use_tqdm=False)
    if read_receipts:
        assert all(result.receipt is not None for result in results)
    seconds = time.perf_counter() - started
    _require_complete(results, params)
    num_output, num_prompt = sum(len(one.token_ids) for one in results), sum(map(len, prompts))
    counts: Figures = {
        "answers": len(results),
        "certified": sum(one.determinism == "certified" for one in results),
        "verified": sum(one.determinism == "verified" for one in results),
        "preemptions": sum(one.stats.preemptions for one in results),
        "cached_tokens": sum(one.stats.cached_tokens for one in results),
        "ngram_candidates": sum(one.stats.looked_up for one in results),
        "rolled_back": sum(one.stats.rolled_back for one in results),
    }
    num_tokens = num_output if num_output > len(results) else num_prompt
    return {
        "speed": num_tokens / seconds,
        "seconds": seconds,
        **{name: count for name, count in counts.items() if count},
    }


def _require_complete(results: Sequence[Result], params: Sequence[SamplingParams]) -> None:
    for result, one in zip(results, params, strict=True):
        if result.error is not None:
            raise EngineStopped(f"a request failed: {result.error}")
        if len(result.token_ids) != one.max_tokens:
            raise EngineStopped(
                f"a request generated {len(result.token_ids)} tokens instead of {one.max_tokens}"
            )


def _time_neighbours(llm: LLM, job: Job, rng: random.Random) -> Figures:
    """The speed of seven of eight requests beside the others, which have a JSON schema and come from a
    second thread. Their speed while the others have none is `without`."""
    params = job.settings()
    few, others = params[::8], [one for place, one in enumerate(params) if place % 8]
    plain = [replace(one, temperature=0.8, seed=1) for one in few]
    structured = [
        replace(one, ignore_eos=False, structured=StructuredOutput(json_schema=SCHEMA)) for one in plain
    ]
    llm.generate(job.draw(rng)[:1], structured[:1], use_tqdm=False)  # compiles the grammar

    def measure(companions: list[SamplingParams]) -> Figures:
        prompts = job.draw(rng)
        own = [prompt for place, prompt in enumerate(prompts) if place % 8]
        return _beside(
            lambda: llm.generate(prompts[::8], companions, use_tqdm=False),
            lambda: _time_batch(llm, own, others),
        )

    without = measure(plain)["speed"]
    return {**measure(structured), "without": without}


def _beside(companion: Callable[[], object], measure: Callable[[], Figures]) -> Figures:
    """Measure while a second thread runs its own requests on the same engine."""
    errors: list[Exception] = []

    def run() -> None:
        try:
            companion()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    figures = measure()
    thread.join()
    if errors:
        raise errors[0]
    return figures


def main() -> None:
    """Build the `LLM` of the first line, and run a job for each further one."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints is no reply
    llm: LLM | None = None
    for line in sys.stdin:
        try:
            read = json.loads(line)
            if llm is None:
                llm = LLM(**read)
                reply: dict[str, Any] = dict(llm.engine.start_up_seconds)
            else:
                reply = run_job(llm, Job(**read))
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies)
    if llm is not None:
        llm.close()


if __name__ == "__main__":
    main()
