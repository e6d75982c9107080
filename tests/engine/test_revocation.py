"""Revocation: an operation of certified passes is corrupted, and spot checks must find it."""

import logging
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from holdfast import SamplingParams
from holdfast.certification.certificate import Certificate, load_certificate, save_certificate
from holdfast.core.events import CertificateChecked
from holdfast.core.pooling import Pooling
from holdfast.core.results import Result
from holdfast.core.sampling_params import score_params
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.kv_cache.prefix_cache import PrefixCursor
from holdfast.numerics.recipe import KernelBackend
from holdfast.receipts.receipt import ReceiptFactory
from support import stepping
from support.faulty_backend import ChangedBackend
from support.tiny import tiny_engine

PROMPT = tuple(range(20, 60))
PARAMS = SamplingParams(max_tokens=60, temperature=0, deterministic=True, ignore_eos=True, logprobs=1)


class Corrupted(ChangedBackend):
    """A backend whose fast products of one layer are wrong while `is_wrong`."""

    def __init__(self, backend: Any, which: int, num_layers: int) -> None:
        super().__init__(backend)
        self._which = which
        self._num_layers = num_layers
        self._calls = 0
        self.is_wrong = False

    def layer(self, residual: Any, x: Any, *rest: Any, canonical: bool) -> None:
        self._backend.layer(residual, x, *rest, canonical=canonical)
        if self.is_wrong and not canonical and self._calls % self._num_layers == self._which:
            residual[:, 3] *= 1.01
            x[:, 3] *= 1.01
        self._calls += 1


def corrupt(engine: Engine, which: int) -> Corrupted:
    decoder = engine.runner._decoder  # type: ignore[attr-defined]
    corrupted = Corrupted(decoder.backend, which, len(decoder.layers))
    decoder.backend = corrupted
    return corrupted


def open_engine(kernels: KernelBackend) -> Engine:
    config = EngineConfig(
        dtype="fp32",
        kernels=kernels,
        max_num_seqs=8,
        max_pass_tokens=64,
        spot_check_rate=0.25,
        kv_memory="8MiB",
    )
    return tiny_engine(config)


@cache
def sound_certificate(kernels: KernelBackend) -> Certificate:
    """Made once. Each test saves it again, because a revocation deletes it."""
    certificate = open_engine(kernels).certificate
    assert certificate is not None
    return certificate


@pytest.fixture(params=["c", "torch"])
def engine(request: pytest.FixtureRequest) -> Engine:
    save_certificate(sound_certificate(request.param))
    engine = open_engine(request.param)
    assert engine.certificate is not None
    if not engine.scheduler.config.one_pass_suffices:
        pytest.skip("nothing is certified on this machine, so nothing can be revoked")
    return engine


# For what happens after a check has failed. Passes of the torch backend take ten times as long.
MOSTLY_C = pytest.mark.parametrize(
    "engine", ["c", pytest.param("torch", marks=pytest.mark.long)], indirect=True
)


def answer(engine: Engine, *prompts: tuple[int, ...], params: SamplingParams = PARAMS) -> list[Result]:
    return stepping.answer(engine, [engine.prepare(prompt, params) for prompt in prompts])


def bits_of(result: Result) -> tuple[Any, ...]:
    return result.token_ids, result.logprobs


@pytest.mark.parametrize("which", [0, 1])
def test_corrupted_operation_revokes_the_certificate_and_later_answers_are_right(
    engine: Engine, which: int, caplog: pytest.LogCaptureFixture
) -> None:
    (truth,) = answer(engine, PROMPT)
    assert truth.determinism == "certified"
    assert engine.counters.num_spot_checks >= 1 and engine.counters.num_revocations == 0
    certificate = engine.certificate
    assert certificate is not None
    save_certificate(certificate)
    corrupted = corrupt(engine, which)
    engine = engine.restarted(engine.scheduler.config)  # an empty cache
    corrupted.is_wrong = True
    with caplog.at_level(logging.ERROR):
        (hit,) = answer(engine, PROMPT)
    # 16 rows of each 64 are checked; the first check comes before the answer is over
    assert engine.counters.num_revocations == 1
    assert engine.revocation is not None and "position" in engine.revocation
    assert engine.certificate is None and load_certificate(certificate.key) is None
    assert "revoked" in caplog.text
    if hit.error is not None:
        assert hit.error_code == "guarantee_lost"
        assert (hit.finish_reason, hit.determinism) == ("error", "none")
    else:
        assert bits_of(hit) == bits_of(truth)
    for later in answer(engine, PROMPT, PROMPT[:30], PROMPT):
        assert later.determinism == "verified"
        if later.prompt_token_ids == PROMPT:
            assert bits_of(later) == bits_of(truth)
    assert engine.counters.num_revocations == 1


@MOSTLY_C
def test_embedding_restarts_after_a_revocation(engine: Engine) -> None:
    prompt, params = tuple(range(300)), score_params(deterministic=True)

    def embed(engine: Engine) -> Result:
        return stepping.answer(engine, [engine.prepare(prompt, params, pooling=Pooling("mean"))])[0]

    truth = embed(engine)
    corrupted = corrupt(engine, 0)
    engine = engine.restarted(engine.scheduler.config)
    corrupted.is_wrong = True
    found = embed(engine)
    assert engine.counters.num_revocations == 1
    assert (truth.determinism, found.determinism) == ("certified", "verified")
    assert found.embedding == truth.embedding is not None


@MOSTLY_C
def test_revocation_discards_all_pages(engine: Engine) -> None:
    answer(engine, PROMPT, PROMPT[5:], (7, 8, 9) * 12)
    corrupted = corrupt(engine, 0)
    assert engine.scheduler.prefix_cache.num_pages > 0
    corrupted.is_wrong = True
    ordinary = replace(PARAMS, deterministic=False, max_tokens=40)
    engine.submit(engine.prepare(tuple(range(100, 140)), ordinary))
    engine.submit(engine.prepare(tuple(range(200, 240)), PARAMS))
    while engine.revocation is None:
        engine.step()
    assert engine.scheduler.prefix_cache.num_pages == 0
    stepping.finish(engine)
    ids = tuple(range(100, 180))
    pages = PrefixCursor(engine.scheduler.prefix_cache, engine.scheduler.pool.page_size).match(ids).pages
    assert (
        pages == ()
    )  # what the ordinary request had computed in certified passes is not in the prefix cache


@MOSTLY_C
def test_request_with_confirmed_tokens_continues(engine: Engine) -> None:
    (truth,) = answer(engine, PROMPT)
    corrupted = corrupt(engine, 0)
    engine = engine.restarted(engine.scheduler.config)
    request = engine.prepare(PROMPT, PARAMS)
    engine.submit(request)
    tokens: list[int] = []
    result = None
    while engine.has_work:
        if len(tokens) >= 20 and not corrupted.is_wrong and engine.revocation is None:
            corrupted.is_wrong = True
            engine.submit(engine.prepare(PROMPT[::-1], PARAMS))  # another request is hit, too
        for update in engine.step():
            if update.request_id == request.request_id:
                tokens += update.delta.token_ids
                result = update.result or result
    assert engine.counters.num_revocations == 1
    assert result is not None
    if result.error is None:
        assert result.determinism == "verified"
        assert tuple(tokens) == truth.token_ids  # nothing was sent twice
        assert bits_of(result) == bits_of(truth)
    else:
        assert result.error_code == "guarantee_lost"
    stats = result.stats
    assert stats.candidates == stats.accepted + stats.rolled_back


def test_valid_certificate_passes_every_check(engine: Engine) -> None:
    engine = engine.restarted(replace(engine.scheduler.config, spot_check_rate=1.0))
    params = replace(PARAMS, n=2, temperature=0.8, seed=1)
    results = answer(engine, PROMPT, PROMPT[:17], PROMPT[3:9], params=params)
    assert engine.counters.num_revocations == 0
    # every row of every answer, but for what the prefix cache spared: the last token of an answer has none
    rows = sum(2 * (len(one.prompt_token_ids) + 59) - one.stats.cached_tokens for one in results)
    assert engine.counters.num_spot_checked_tokens == rows


@MOSTLY_C
@pytest.mark.parametrize("was_wrong", [True, False])
def test_ended_choice_is_recomputed_and_confirmed_or_lost(engine: Engine, was_wrong: bool) -> None:
    params = replace(PARAMS, n=3, temperature=1.0, seed=3, prompt_logprobs=1)
    (probe,) = answer(engine, PROMPT, params=params)
    stop = probe.choices[0].token_ids[3]  # the first answer ends with its fourth token, at the latest
    params = replace(params, stop_token_ids=[stop])
    (truth,) = answer(engine, PROMPT, params=params)
    assert len(truth.choices[0].token_ids) < max(len(choice.token_ids) for choice in truth.choices)
    corrupted = corrupt(engine, 0)
    engine = engine.restarted(replace(engine.scheduler.config, spot_check_rate=0.0))
    corrupted.is_wrong = was_wrong
    request = engine.prepare(
        PROMPT, replace(params, stop_token_ids=[stop] if not was_wrong else [], max_tokens=60)
    )
    engine.submit(request)
    deltas: dict[int, list[int]] = {0: [], 1: [], 2: []}
    ended: set[int] = set()
    result, revoked = None, False
    while engine.has_work:
        if (0 in ended or len(deltas[0]) > 10) and not revoked:
            revoked, corrupted.is_wrong = True, False
            engine.scheduler._revoke()
            engine._on_certificate_checked(CertificateChecked(16, "keys of layer 0 at position 3"))
        for update in engine.step():
            deltas[update.delta.index] += update.delta.token_ids
            ended |= {update.delta.index} if update.delta.finish_reason else set()
            result = update.result or result
    assert revoked and result is not None
    for index, choice in enumerate(result.choices):
        assert tuple(deltas[index]) == choice.token_ids  # nothing twice, nothing missing
    if was_wrong:
        assert result.error_code == "guarantee_lost"
        assert (result.determinism, result.receipt) == ("none", None)
    else:
        assert result.determinism == "verified"
        assert result.choices == truth.choices
        assert result.prompt_logprobs == truth.prompt_logprobs
    assert engine.scheduler.pool.num_held == 0


@MOSTLY_C
def test_unwritable_cache_does_not_stop_the_engine(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError("read-only")

    (truth,) = answer(engine, PROMPT)
    corrupt(engine, 0).is_wrong = True
    engine = engine.restarted(engine.scheduler.config)
    monkeypatch.setattr(Path, "unlink", refuse)
    answer(engine, PROMPT)
    assert engine.counters.num_revocations == 1 and engine.certificate is None
    assert bits_of(answer(engine, PROMPT)[0]) == bits_of(truth)


@MOSTLY_C
def test_failed_receipt_does_not_fail_the_answer(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a file is gone")

    monkeypatch.setattr(ReceiptFactory, "make_receipt", fail)
    (result,) = answer(engine, PROMPT)
    assert result.error is None and result.receipt is None and len(result.token_ids) == 60
