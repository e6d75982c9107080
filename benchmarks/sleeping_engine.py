"""An engine process without a model: the real connection, scheduler and engine loop, a runner that sleeps.

    python benchmarks/sleeping_engine.py --step-ms 8 --token-us 10 FD       # what a server starts, with its socket

The runner sleeps like a GPU step and gives scripted tokens: the token after position p of a request is a function
of its seed, the length of its prompt and p. So every pass is canonical, and every engine with the same script gives
the same answer. The tokenizer and the context length are the served model's; weights are not read. Answers end
at max_tokens. Grammars are refused; embeddings fail.
"""

import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.core.cancel_token import CancelToken
from holdfast.core.step_plan import PassKind, PassResult, Sampled, Span, StepPlan, TokenLogprob
from holdfast.core.structured_output import Grammar, StructuredOutput
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.start.preflight import OpenedModel, open_model
from holdfast.engine.status import ShowProgress
from holdfast.errors import ConfigError, InvalidRequest
from holdfast.kv_cache.page_pool import PagePool
from holdfast.numerics.batch_sizes import padded_batch_sizes
from holdfast.ray.config import ReplicasConfig
from holdfast.receipts.fingerprint import Fingerprint
from holdfast.receipts.machine import describe_machine
from holdfast.receipts.receipt import ReceiptFactory
from holdfast.receipts.signing import SigningKey
from holdfast.scheduler.policy import SchedulerConfig
from holdfast.scheduler.scheduler import Scheduler
from holdfast.server.config import ModelConfig, ServerConfig
from holdfast.server.ipc.host_main import SWITCH_SECONDS, ignore_signals, serve
from holdfast.server.main import run
from holdfast.text.tokenizer import Tokenizer
from holdfast.worker.device import cpu_name
from measure import new_parser

_PAGE_SIZE, _REFERENCE_TOKENS = 64, 256  # as on a GPU
_KV_POSITIONS = 2048  # for each request that may run
_MAX_WORDS = 1000


_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class StepTime:
    """The seconds of a step: a fixed part, and more for each token of its passes. If both are 0,
    results are there at once."""

    step: float = 0.0
    token: float = 0.0

    def of(self, plan: StepPlan) -> float:
        """The seconds that this plan takes."""
        return self.step + self.token * sum(one.num_tokens for one in plan.passes)


class SleepingRunner:
    """Runs plans on a device that only sleeps. Plans run one after the other, as on a GPU.

    token_ids are the tokens that answers are made of.
    """

    def __init__(self, times: StepTime, token_ids: Sequence[int]) -> None:
        self._times = times
        self._token_ids = tuple(token_ids)
        self._busy_until = 0.0

    def run(self, plan: StepPlan) -> Sequence[PassResult]:
        return self.start(plan)()

    def start(self, plan: StepPlan) -> Callable[[], Sequence[PassResult]]:
        """Start a plan and return at once. The callable sleeps until the device is done with it."""
        now = time.monotonic()
        ends = self._busy_until = max(now, self._busy_until) + self._times.of(plan)

        def wait() -> Sequence[PassResult]:
            results = [self._run(one.kind, one.spans) for one in plan.passes]
            left = ends - time.monotonic()
            if left > 0:
                time.sleep(left)
            return results

        return wait

    def _run(self, kind: PassKind, spans: Sequence[Span]) -> PassResult:
        assert kind is not PassKind.CHECK, "there are no spot checks"
        assert not any(span.num_pooled for span in spans), "there are no hidden states"
        samples = tuple([self._sample(span) for span in spans])
        scored = any(span.scored_ids for span in spans)
        return PassResult(samples, tuple(map(_score, spans)) if scored else ())

    def _sample(self, span: Span) -> tuple[Sampled, ...]:
        first = span.start + span.sample_from + 1
        return tuple([self._sample_at(span, position) for position in range(first, span.stop + 1)])

    def _sample_at(self, span: Span, position: int) -> Sampled:
        ids, sampling = self._token_ids, span.sampling
        at = _mix(sampling.seed, sampling.prompt_len, position) % len(ids)
        if span.logprobs is None:
            return Sampled(ids[at])
        # The most likely tokens are the next ones of the list.
        top = [(ids[(at + rank) % len(ids)], -1.0 - rank) for rank in range(span.logprobs)]
        return Sampled(ids[at], TokenLogprob(ids[at], -1.0, tuple(top)))


def _score(span: Span) -> tuple[TokenLogprob, ...]:
    return tuple([TokenLogprob(token_id, -1.0) for token_id in span.scored_ids])


def _mix(seed: int, prompt_len: int, position: int) -> int:
    """A hash of three numbers (splitmix64's last steps)."""
    mixed = (seed + 0x9E3779B97F4A7C15 * (position + 1) + 0xD1B54A32D192ED03 * prompt_len) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def sleeping_command(times: StepTime) -> tuple[str, ...]:
    """The command of an engine process that sleeps so long in each step."""
    settings = ("--step-ms", f"{1e3 * times.step:g}", "--token-us", f"{1e6 * times.token:g}")
    return sys.executable, __file__, *settings


def build_sleeping(config: EngineConfig, times: StepTime) -> Engine:
    """The engine of a configuration, with a runner that sleeps."""
    if config.determinism == "verify":
        raise ConfigError("a sleeping engine has nothing to verify; use determinism auto or off")
    opened = open_model(config)
    if opened.thinking is not None:
        raise ConfigError("a sleeping engine does not think; serve another model")
    schedule = _schedule(config)
    max_len = opened.limits.max_model_len
    num_positions = max(max_len, schedule.max_num_seqs * min(max_len, _KV_POSITIONS))
    key = None if config.receipt_key is None else SigningKey.read(Path(config.receipt_key).expanduser())
    fingerprint = _fingerprint(opened, times)
    machine = describe_machine("cpu", "sleeping engine", cpu_name(), ())
    return Engine(
        Scheduler(schedule, PagePool(-(-num_positions // _PAGE_SIZE) + 1, _PAGE_SIZE)),
        SleepingRunner(times, words_of(opened.tokenizer)),
        opened.tokenizer,
        opened.limits,
        _NoGrammars(),
        ReceiptFactory(lambda: fingerprint, config.model, machine, key),
    )


def words_of(tokenizer: Tokenizer) -> list[int]:
    """Tokens of plain ASCII text, the first thousand of the vocabulary."""
    found: list[int] = []
    for token_id in range(tokenizer.vocab_size):
        if token_id in tokenizer.special_ids:
            continue
        text = tokenizer.token_bytes(token_id)
        if text.isascii() and text.strip() and text.decode().isprintable():
            found.append(token_id)
        if len(found) == _MAX_WORDS:
            break
    if not found:
        raise ConfigError("the tokenizer has no token of plain text")
    return found


def _schedule(config: EngineConfig) -> SchedulerConfig:
    limits = config.batch_limits("cuda")
    return SchedulerConfig(
        max_num_seqs=limits.max_num_seqs,
        max_pass_tokens=limits.max_pass_tokens,
        reference_tokens=_REFERENCE_TOKENS,
        determinism=config.determinism,
        certified_sizes=() if config.determinism == "off" else padded_batch_sizes(limits.max_pass_tokens),
        prefix_cache=config.prefix_cache,
        speculation=config.speculation,
        async_scheduling=True,
    )


def _fingerprint(opened: OpenedModel, times: StepTime) -> Fingerprint:
    return Fingerprint.of(
        {
            "weights": f"sleeping, {1e3 * times.step:g} ms a step, {1e6 * times.token:g} us a token",
            "dtype": opened.config.dtype,
            "tokenizer": opened.tokenizer.digest(),
        }
    )


class _NoGrammars:
    def compile(self, structured: StructuredOutput, token: CancelToken | None = None) -> Grammar:
        raise InvalidRequest("a sleeping engine has no structured output")

    def is_compiled(self, structured: StructuredOutput) -> bool:
        return True  # refusing takes no time


def serve_sleeping(
    times: StepTime, server: ServerConfig, engine: EngineConfig, replicas: ReplicasConfig
) -> int:
    """Serve with sleeping engines until a signal ends it, as `holdfast serve` does."""
    command = sleeping_command(times)
    if replicas.is_pool:
        from holdfast.ray.serve_replicas import serve_replicas

        return serve_replicas(server, engine, replicas, command)
    return run(server, [ModelConfig(engine, server.served_model_names)], command=command)


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--token-us", type=float, default=0.0)
    parser.add_argument("descriptor", type=int)
    given = parser.parse_args()
    times = StepTime(given.step_ms / 1e3, given.token_us / 1e6)
    ignore_signals()
    sys.setswitchinterval(SWITCH_SECONDS)

    def make(config: EngineConfig, show: ShowProgress) -> Engine:
        return build_sleeping(config, times)

    sys.exit(serve(socket.socket(fileno=given.descriptor), make))


if __name__ == "__main__":
    main()
