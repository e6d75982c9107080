"""Speed on a CPU: Holdfast against a peer, on the same weights. The peer is Hugging Face generate in
this process, or llama.cpp on the same GGUF file.

All variants are measured in turn, round after round, and the best time of each counts: other load
on the machine slows one round, not one variant. Ratios within a run are comparable; times of
different runs are not.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Protocol

import torch

from holdfast.bench.machine import machine_name
from holdfast.bench.speed.command import measure, measure_first_start, measure_peer
from holdfast.bench.speed.hugging_face import HuggingFace
from holdfast.bench.speed.llama_cpp import LlamaCpp, PeerName, find_llama_cpp
from holdfast.core.sampling_params import SamplingParams
from holdfast.engine.builder import assemble, torch_dtype
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.errors import ConfigError
from holdfast.models.checkpoint import Checkpoint, open_checkpoint
from holdfast.models.locate import locate
from holdfast.numerics.backends.torch.backend import has_native_gemm
from holdfast.scheduler.policy import DeterminismMode
from holdfast.text.tokenizer import Tokenizer, open_tokenizer

STREAMS = (1, 8, 32)
PREFILL = 512
DECODE_PROMPT = 32


@dataclass(frozen=True)
class CpuVariant:
    """One way to run the same work. deterministic is None for the peer."""

    name: str
    mode: DeterminismMode = "off"
    deterministic: bool | None = None


HUGGING_FACE = CpuVariant("Hugging Face")
LLAMA_CPP = CpuVariant("llama.cpp")
ORDINARY = CpuVariant("ordinary", "off", False)
AUTO = CpuVariant("deterministic, auto", "auto", True)
VERIFY = CpuVariant("deterministic, verify", "verify", True)
OWN_VARIANTS = (ORDINARY, AUTO, VERIFY)


class Peer(Protocol):
    """Another engine with the same weights."""

    def seconds(self, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
        """The time of one greedy batch. All prompts have the same length."""
        ...


@dataclass
class CpuSpeedReport:
    """tok/s by variant and cell. command holds the fields of `CommandCost`, peer_command those of
    `PeerCost`."""

    machine: str
    threads: int
    torch: str
    model: str
    dtype: str
    hugging_face_dtype: str | None  # None if the peer is another
    rounds: int
    num_tokens: int
    speed: dict[str, dict[str, float]] = field(default_factory=dict)
    command: dict[str, float] | None = None
    peer: str = HUGGING_FACE.name
    peer_version: str | None = None
    peer_command: dict[str, float] | None = None

    def ratio(self, variant: str, over: str, cell: str) -> float:
        return self.speed[variant][cell] / self.speed[over][cell]


class CpuBench:
    """One model in Holdfast and in a peer, a Hugging Face model if none is given."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        tokenizer: Tokenizer,
        name: str,
        num_threads: int | None,
        dtype: str,
        num_tokens: int,
        peer: LlamaCpp | None = None,
    ) -> None:
        config = EngineConfig(
            certification="startup",
            dtype=dtype,
            num_threads=num_threads,
            max_num_seqs=max(STREAMS),
            kv_memory="512MiB",
        )
        self.engine: Engine = assemble(config, checkpoint, tokenizer)
        dtype_used = torch_dtype(config, None)
        # Where the CPU has no instructions for this dtype, fp32 is the fastest dtype of Hugging Face.
        peer_dtype = dtype_used if has_native_gemm(dtype_used) else torch.float32
        self._num_tokens = num_tokens
        self.report = CpuSpeedReport(
            machine=machine_name(),
            threads=torch.get_num_threads(),
            torch=torch.__version__,
            model=name,
            dtype=_block_formats(self.engine) or str(dtype_used).removeprefix("torch."),
            hugging_face_dtype=None if peer is not None else str(peer_dtype).removeprefix("torch."),
            rounds=0,
            num_tokens=num_tokens,
            peer=(HUGGING_FACE if peer is None else LLAMA_CPP).name,
            peer_version=None if peer is None else peer.version,
        )
        self._peer: Peer = HuggingFace(checkpoint, peer_dtype) if peer is None else peer
        self._rng = random.Random(0)
        self._best: dict[tuple[CpuVariant, int, int, int], float] = {}  # seconds

    def run(self, rounds: int, log: Callable[[str], None]) -> CpuSpeedReport:
        """Measure every cell of every variant, round after round."""
        variants = (CpuVariant(self.report.peer), *OWN_VARIANTS)
        for number in range(rounds):
            for variant in variants:
                log(f"round {number + 1} of {rounds}: {variant.name}")
                self._time(variant, 1, PREFILL, 1)
                for streams in STREAMS:
                    self._time(variant, streams, DECODE_PROMPT, 1)
                    self._time(variant, streams, DECODE_PROMPT, self._num_tokens)
        self.report.rounds = rounds
        for variant in variants:
            cells = {"prefill": PREFILL / self._best[variant, 1, PREFILL, 1]}
            cells |= {str(streams): self._decode_speed(variant, streams) for streams in STREAMS}
            self.report.speed[variant.name] = cells
        return self.report

    def _decode_speed(self, variant: CpuVariant, streams: int) -> float:
        """Decoded tokens per second: the time of all tokens minus the time of the first one.

        Best times are subtracted, not times of one round: one slow prefill must not make decoding
        look fast. llama.cpp times the tokens after the first by itself.
        """
        first = 0.0 if variant == LLAMA_CPP else self._best[variant, streams, DECODE_PROMPT, 1]
        whole = self._best[variant, streams, DECODE_PROMPT, self._num_tokens]
        if whole <= first:
            raise ConfigError(
                f"{variant.name}: {self._num_tokens} tokens for {streams} streams took no longer than one token; "
                "give more --num-tokens or --rounds"
            )
        return streams * (self._num_tokens - 1) / (whole - first)

    def _time(self, variant: CpuVariant, streams: int, prompt_len: int, num_tokens: int) -> None:
        seconds = self._seconds(variant, streams, prompt_len, num_tokens)
        key = (variant, streams, prompt_len, num_tokens)
        self._best[key] = min(seconds, self._best.get(key, seconds))

    def _seconds(self, variant: CpuVariant, streams: int, prompt_len: int, num_tokens: int) -> float:
        prompts = [self._prompt(prompt_len) for _ in range(streams)]
        if variant.deterministic is None:
            return self._peer.seconds(prompts, num_tokens)
        # No n-gram speculation: `bench ngram` measures it on text that repeats.
        schedule = replace(
            self.engine.scheduler.config, determinism=variant.mode, prefix_cache=False, speculation="off"
        )
        engine = self.engine.restarted(schedule)
        params = SamplingParams(
            max_tokens=num_tokens, temperature=0, ignore_eos=True, deterministic=variant.deterministic
        )
        started = time.perf_counter()
        for prompt in prompts:
            engine.submit(engine.prepare(prompt, params))
        while engine.has_work:
            engine.step()
        return time.perf_counter() - started

    def _prompt(self, length: int) -> list[int]:
        highest = min(40000, self.engine.limits.vocab_size)
        return [self._rng.randrange(100, highest) for _ in range(length)]


def _block_formats(engine: Engine) -> str:
    """The quantised formats that the engine computes with as they are, such as "Q4_1"; empty if it has
    dequantised the weights."""
    recipe = engine.fingerprint.parts["recipe"]
    return str(recipe.get("blocks", "")) if isinstance(recipe, Mapping) else ""


def run(
    model: str | None,
    rounds: int,
    num_tokens: int,
    num_threads: int | None,
    dtype: str,
    log: Callable[[str], None],
    peer: PeerName = "hugging-face",
    peer_dir: Path | None = None,
) -> CpuSpeedReport:
    """The whole benchmark on one model: first the command lines, then both engines in turn."""
    located = locate(model)
    threads = num_threads or torch.get_num_threads()
    other = find_llama_cpp(peer_dir, located.path, threads) if peer == "llama.cpp" else None
    cost = measure(model, dtype, num_threads, log)
    imported, first = measure_first_start(model, dtype, num_threads, log)
    cost = replace(cost, import_torch_seconds=imported, first_start_seconds=first)
    peer_cost = None if other is None else measure_peer(other.command, log)
    checkpoint = open_checkpoint(located.path)
    tokenizer = open_tokenizer(checkpoint.path)
    bench = CpuBench(checkpoint, tokenizer, located.name, num_threads, dtype, num_tokens, other)
    report = bench.run(rounds, log)
    report.command = asdict(cost)
    report.peer_command = None if peer_cost is None else asdict(peer_cost)
    return report
