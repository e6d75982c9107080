"""An engine process without a model: the real connection, scheduler and engine loop, a runner that sleeps.

    python -m holdfast.bench.frontend.sleeping_engine --step-ms 8 --token-us 10 FD

It takes the place of `holdfast.server.ipc.engine_process`. Nothing chooses it but a caller who passes its
command on: `Supervisor`, `EngineLink.start` and `holdfast.server.main.run` take `command`, and
`sleeping_command` makes it:

    run(server, engine, command=sleeping_command(StepTime(step=0.008, token=1e-5)))

`sleeping_server` runs a whole server with such an engine. The same configuration gives the same
fingerprint and the same answers in every process, so replicas agree. The tokenizer and the context length
are the served model's; weights are not read. Answers end at max_tokens. Grammars are refused; embeddings
fail.
"""

import argparse
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from holdfast.bench.frontend.sleeping_runner import SleepingRunner, StepTime
from holdfast.core.cancel_token import CancelToken
from holdfast.core.grammar import Grammar
from holdfast.core.structured_output import StructuredOutput
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.preflight import OpenedModel, open_model
from holdfast.engine.status import ShowProgress
from holdfast.errors import ConfigError, InvalidRequest
from holdfast.kv_cache.page_pool import PagePool
from holdfast.numerics.batch_sizes import padded_batch_sizes
from holdfast.receipts.fingerprint import Fingerprint
from holdfast.receipts.machine import describe_machine
from holdfast.receipts.receipt import ReceiptFactory
from holdfast.receipts.signing import SigningKey
from holdfast.scheduler.policy import SchedulerConfig
from holdfast.scheduler.scheduler import Scheduler
from holdfast.server.ipc.engine_process import SWITCH_SECONDS, ignore_signals, serve
from holdfast.text.tokenizer import Tokenizer
from holdfast.worker.device import cpu_name

_PAGE_SIZE, _REFERENCE_TOKENS = 64, 256  # as on a GPU
_KV_POSITIONS = 2048  # for each request that may run
_MAX_WORDS = 1000


def sleeping_command(times: StepTime) -> tuple[str, ...]:
    """The command of an engine process that sleeps so long in each step."""
    settings = ("--step-ms", f"{1e3 * times.step:g}", "--token-us", f"{1e6 * times.token:g}")
    return sys.executable, "-m", "holdfast.bench.frontend.sleeping_engine", *settings


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
    fingerprint = _KnownFingerprint(_fingerprint(opened, times))
    machine = describe_machine("cpu", "sleeping engine", cpu_name(), ())
    return Engine(
        Scheduler(schedule, PagePool(-(-num_positions // _PAGE_SIZE) + 1, _PAGE_SIZE)),
        SleepingRunner(times, words_of(opened.tokenizer)),
        opened.tokenizer,
        opened.limits,
        None,
        _NoGrammars(),
        ReceiptFactory(fingerprint, config.model, machine, key),
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
    return Fingerprint(
        {
            "weights": f"sleeping, {1e3 * times.step:g} ms a step, {1e6 * times.token:g} us a token",
            "dtype": opened.config.dtype,
            "tokenizer": opened.tokenizer.digest(),
        }
    )


class _KnownFingerprint:
    """In place of a `FingerprintTask`: there are no weights to hash."""

    def __init__(self, fingerprint: Fingerprint) -> None:
        self._fingerprint = fingerprint

    def get(self) -> Fingerprint:
        return self._fingerprint


class _NoGrammars:
    def compile(self, structured: StructuredOutput, token: CancelToken | None = None) -> Grammar:
        raise InvalidRequest("a sleeping engine has no structured output")

    def is_compiled(self, structured: StructuredOutput) -> bool:
        return True  # refusing takes no time


def parse_times(arguments: Sequence[str]) -> tuple[StepTime, list[str]]:
    """The times in these arguments, and all other arguments."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--step-ms", type=float, default=0.0)
    parser.add_argument("--token-us", type=float, default=0.0)
    found, others = parser.parse_known_args(arguments)
    return StepTime(found.step_ms / 1e3, found.token_us / 1e6), others


def main() -> None:
    ignore_signals()
    sys.setswitchinterval(SWITCH_SECONDS)
    times, (descriptor,) = parse_times(sys.argv[1:])

    def make(config: EngineConfig, show: ShowProgress) -> Engine:
        return build_sleeping(config, times)

    sys.exit(serve(socket.socket(fileno=int(descriptor)), make))


if __name__ == "__main__":
    main()
