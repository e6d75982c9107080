"""Every kind of request in every state of an engine: all complete, and deterministic ones have the bits of the request
alone.

    mode       certifying: before the certificate is adopted │ auto │ verify │ off
    graphs     captured │ lazy: captured at their first or second use │ eager: none
    streams    how many requests run at once
    requests   plain: of settings that head graphs take │ processed: with penalties, lists, grammars and logprobs too

Half of the requests have a seed. Answers end one after the other, so that passes shrink through many sizes. The
vocabulary is as large as that of Llama 3.
"""

import random
from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from engines import HAS_GPU, answers, default_device, eager, outcome, prompt, with_runner
from holdfast import SamplingParams
from holdfast.core.results import Result
from holdfast.core.structured_output import StructuredOutput
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.start.builder import assemble
from holdfast.engine.start.preflight import OpenedModel
from holdfast.models.dummy import DummyCheckpoint, tiny_config
from holdfast.numerics.batch_sizes import padded_batch_sizes
from holdfast.worker.model_runner import ModelRunner

VOCAB = 128_256 if HAS_GPU else 512
MAX_TOKENS = 24 if HAS_GPU else 6
MAX_LEN = 1024
STREAMS = (1, 7, 32, 128, 257) if HAS_GPU else (1, 7)
MODES = ("certifying", "auto", "verify", "off")
PLAIN: list[dict[str, Any]] = [
    {"temperature": 0.8, "top_p": 0.95},
    {"temperature": 0},
    {"temperature": 0.8, "top_p": 0.95, "logprobs": 0},
    {"temperature": 1.2},
    {"temperature": 0.7, "top_k": 50},
    {"temperature": 0, "logprobs": 0},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 0.9, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
]
PROCESSED: list[dict[str, Any]] = [
    *PLAIN,
    {"temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.3},
    {"temperature": 0, "presence_penalty": 0.7, "frequency_penalty": 0.4, "logprobs": 2},
    {"temperature": 0.8, "logprobs": 3},
    {"temperature": 0.8, "top_p": 0.9, "structured": StructuredOutput(regex="[a-z]{40}")},
    {"temperature": 0, "structured": StructuredOutput(regex="[0-9a-f]{40}"), "logprobs": 1},
    {"temperature": 0.8, "bad_token_ids": (5, 6, 7), "logit_bias": {9: 3.0}, "min_tokens": 1},
    {"temperature": 0.9, "top_p": 0.9, "allowed_token_ids": tuple(range(20, 90)), "bad_words": ("ab", "q")},
]
KINDS = {"plain": PLAIN, "processed": PROCESSED}
Requests = list[tuple[tuple[int, ...], SamplingParams]]


def params_of(
    settings: dict[str, Any], max_tokens: int, *, seed: int | None, is_deterministic: bool
) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens,
        seed=seed,
        deterministic=is_deterministic,
        ignore_eos="structured" not in settings,
        **settings,
    )


# With each setting one request whose answer is known, always in the same words.
PROBES: Requests = [
    (prompt(9 + number, number), params_of(settings, MAX_TOKENS, seed=2**53 - number, is_deterministic=True))
    for number, settings in enumerate(PROCESSED)
]


class Engines:
    """One model in every state."""

    def __init__(self) -> None:
        model = tiny_config(
            hidden_size=512,
            intermediate_size=1024,
            num_attention_heads=8,
            num_key_value_heads=2,
            head_dim=64,
            vocab_size=VOCAB,
            torch_dtype="bfloat16" if HAS_GPU else "float32",
        )
        config = EngineConfig(
            device=default_device().type,
            certification="background",
            max_num_seqs=320,
            max_model_len=MAX_LEN,
            kv_memory="256MiB" if HAS_GPU else "32MiB",
            prefix_cache=False,
            speculation="off",
        )
        checkpoint = DummyCheckpoint(model, deviation=0.05, device=default_device())
        self.engine = assemble(OpenedModel(config, model), checkpoint)
        alone = eager(self.engine)
        schedule = replace(alone.scheduler.config, determinism="verify", async_scheduling=False)
        alone = alone.restarted(schedule)
        self.known = {index: answers(alone, [probe])[0] for index, probe in enumerate(PROBES)}
        self._alone = cast(ModelRunner, alone.runner)
        self._schedule = schedule
        self._captured: ModelRunner | None = None

    def alone(self, request: tuple[tuple[int, ...], SamplingParams]) -> Result:
        """The answer of a request that runs alone, in reference passes without graphs."""
        engine = with_runner(self.engine.restarted(self._schedule), self._alone)
        return answers(engine, [request])[0]

    def open(self, mode: str, graphs: str) -> Engine:
        if mode != "certifying":
            self.engine.certify()
        schedule = self.engine.scheduler.config
        assert (self.engine.certificate is None) is (mode == "certifying")
        assert schedule.commits_at_once or mode == "certifying"
        if mode in ("verify", "off"):
            schedule = replace(schedule, determinism=mode)  # type: ignore[arg-type]
        return with_runner(self.engine.restarted(schedule), self._runner(graphs))

    def _runner(self, graphs: str) -> ModelRunner:
        if graphs == "eager":
            return self._alone
        if graphs == "captured" and self._captured is not None:
            return self._captured
        given = cast(ModelRunner, self.engine.runner)
        runner = ModelRunner(given._decoder, given._store)
        runner.capture(padded_batch_sizes(8192), (256, 512), max_len=MAX_LEN, lazily=True)
        if graphs == "captured":
            while HAS_GPU and runner.capture_next():
                pass
            self._captured = runner
        return runner


@pytest.fixture(scope="module")
def engines() -> Engines:
    return Engines()


def batch(
    kind: str, num_streams: int, rng: random.Random, *, may_be_deterministic: bool
) -> tuple[Requests, list[int]]:
    """So many requests of a kind, in any order; and which of them are probes, by their place: -1 for others."""
    settings = KINDS[kind]
    found: list[tuple[int, tuple[tuple[int, ...], SamplingParams]]] = []
    if may_be_deterministic:
        chosen = rng.sample(range(len(settings)), min(3, num_streams))
        found += [(index, PROBES[index]) for index in chosen]
    while len(found) < num_streams:
        number = len(found)
        params = params_of(
            settings[number % len(settings)],
            rng.randint(1, MAX_TOKENS),
            seed=rng.getrandbits(64) if rng.random() < 0.5 else None,
            is_deterministic=may_be_deterministic and rng.random() < 0.7,
        )
        found.append((-1, (prompt(rng.randint(1, 40), number), params)))
    rng.shuffle(found)
    return [request for _, request in found], [index for index, _ in found]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_streams", STREAMS)
@pytest.mark.parametrize("graphs", ["lazy", "eager", "captured"])
@pytest.mark.parametrize("mode", MODES)  # varies slowest: the certificate is adopted once
def test_requests_complete_with_the_bits_of_the_request_alone(
    engines: Engines, mode: str, graphs: str, num_streams: int, kind: str
) -> None:
    rng = random.Random(f"{mode} {graphs} {num_streams} {kind}")
    requests, probes = batch(kind, num_streams, rng, may_be_deterministic=mode != "off")
    found = answers(engines.open(mode, graphs), requests)
    for (_, params), result, index in zip(requests, found, probes, strict=True):
        assert len(result.token_ids) == params.max_tokens
        assert all(0 <= token_id < VOCAB for token_id in result.token_ids)
        assert result.determinism != "none" or not params.deterministic
        if index >= 0:
            assert outcome(result) == outcome(engines.known[index]), PROCESSED[index]
    unseeded = [
        (asked, params, result)
        for (asked, params), result in zip(requests, found, strict=True)
        if params.seed is None and params.deterministic and params.temperature
    ]
    for asked, params, result in unseeded[:1]:
        assert outcome(engines.alone((asked, replace(params, seed=result.seed)))) == outcome(result)


@pytest.mark.parametrize("graphs", ["lazy", "eager", "captured"])
@pytest.mark.parametrize("mode", ["auto", "verify"])
def test_logits_that_are_no_numbers_end_one_request(engines: Engines, mode: str, graphs: str) -> None:
    engine = engines.open(mode, graphs)
    table = cast(torch.Tensor, cast(ModelRunner, engine.runner)._decoder._embedding)
    known = [outcome(engines.known[number]) for number in range(len(PLAIN))]
    used = {token_id for result in engines.known.values() for token_id in result.token_ids}
    broken = next(token_id for token_id in range(VOCAB - 1, 0, -1) if token_id not in used)
    requests = PROBES[: len(PLAIN)] * (8 if HAS_GPU else 1)
    requests.insert(5, ((3, broken, 4), PROBES[0][1]))
    row = table[broken].clone()
    table[broken] = torch.nan
    try:
        found = answers(engine, requests, may_fail=True)
    finally:
        table[broken] = row
    ended = found.pop(5)
    assert (ended.error_code, ended.token_ids) == ("not_finite", ())
    for number, result in enumerate(found):
        assert result.error is None and outcome(result) == known[number % len(known)]
