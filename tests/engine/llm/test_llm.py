"""The offline engine end to end, on a tiny model."""

from pathlib import Path
from typing import Any

import pytest
from scripted import reference

from holdfast import SamplingParams
from holdfast.core.results import Result
from holdfast.engine.config import EngineConfig
from holdfast.engine.engine import Engine
from holdfast.engine.llm.llm import LLM
from holdfast.errors import DeterminismRefused
from support.deferred_engine import deferred_engine
from support.stepping import finish
from support.tiny import EOS, IM_START

PROMPTS = ["the quick brown fox", "a", "the dog sleeps over the lazy fox, and then the quick dog jumps " * 3]
GREEDY = {"temperature": 0.0, "ignore_eos": True}


def settings(**changes: Any) -> SamplingParams:
    usual = {"max_tokens": 20, "temperature": 0, "deterministic": True, "ignore_eos": True, "logprobs": 3}
    return SamplingParams(**{**usual, **changes})


def bits(result: Result) -> tuple[Any, ...]:
    """What must not change: ids, and the bits of logprobs."""
    return result.token_ids, result.text, result.finish_reason, result.logprobs


def test_results_come_in_prompt_order(llm: LLM) -> None:
    params = [settings(max_tokens=n) for n in (17, 2, 9)]
    results = llm.generate(PROMPTS, params)
    for prompt, one, result in zip(PROMPTS, params, results, strict=True):
        assert llm.engine.tokenizer.decode(list(result.prompt_token_ids)) == prompt
        assert len(result.token_ids) == one.max_tokens
        assert result.finish_reason == "length"
    assert llm.generate([]) == []


def test_token_ids_are_used_unchanged(llm: LLM) -> None:
    ids = llm.engine.tokenizer.encode("the quick brown fox")
    assert llm.generate([ids], settings())[0].token_ids == llm.generate(PROMPTS[:1], settings())[0].token_ids
    unusual = [IM_START, 310, 319, EOS]
    assert llm.generate([unusual], settings(max_tokens=1))[0].prompt_token_ids == tuple(unusual)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_answer_is_equal_alone_in_a_batch_and_in_both_modes(
    auto_llm: LLM, verify_llm: LLM, temperature: float
) -> None:
    mine = settings(temperature=temperature, seed=11)
    seen = set()
    for llm in (auto_llm, verify_llm):
        for before, after in ((0, 0), (1, 3), (5, 2)):
            others = [[n + 3] * (n + 1) for n in range(before + after)]
            prompts = [*others[:before], PROMPTS[0], *others[before:]]
            params = [SamplingParams(max_tokens=9, **GREEDY)] * len(prompts)
            params[before] = mine
            seen.add(bits(llm.generate(prompts, params)[before]))
    assert len(seen) == 1


@pytest.mark.parametrize("deterministic", [True, False])
def test_prompts_that_share_a_prefix_are_computed_once_and_change_no_bit(
    llm: LLM, deterministic: bool
) -> None:
    """The prefix is longer than a pass."""
    cache = llm.engine.scheduler.prefix_cache
    prefix = [3 + n * n % 200 for n in range(176)]
    prompts = [[*prefix, 210 + number, 7, 9] for number in range(6)]
    alone = []
    for prompt in prompts:
        cache.clear()
        alone += llm.generate([prompt], settings(deterministic=deterministic))
    cache.clear()
    together = llm.generate(prompts, settings(deterministic=deterministic))
    assert [result.stats.cached_tokens for result in together] == [0] + [176] * 5
    if deterministic:
        assert [bits(result) for result in together] == [bits(result) for result in alone]
    cache.clear()


# Ahead of the device. The runner is the scripted one, whose results can be read only when they are waited for, in order.


def answers(engine: Engine, *prompts: tuple[int, ...], **changes: Any) -> dict[int, Result]:
    for prompt in prompts:
        engine.submit(engine.prepare(prompt, settings(logprobs=None, **changes)))
    return finish(engine)


def test_async_step_reads_the_results_of_the_step_before(auto_llm: LLM) -> None:
    engine = deferred_engine(auto_llm, "auto")
    engine.submit(engine.prepare((1, 2, 3), settings(max_tokens=3)))
    seen = []
    while engine.has_work:
        updates = engine.step()
        seen.append((sum(len(update.delta.token_ids) for update in updates), engine.runner.num_started))  # type: ignore[attr-defined]
    assert seen == [(0, 1), (1, 2), (1, 3), (1, 3)]
    assert engine.step() == []


@pytest.mark.parametrize("mode", ["auto", "verify"])
@pytest.mark.parametrize("breaks_at", [("start", 0), ("start", 3), ("wait", 0), ("wait", 3)])
def test_failed_pass_ends_all_in_flight_and_no_others(
    auto_llm: LLM, mode: str, breaks_at: tuple[str, int]
) -> None:
    engine = deferred_engine(auto_llm, mode, max_num_seqs=2)
    engine.runner.breaks_at = breaks_at  # type: ignore[attr-defined]
    results = answers(engine, (1, 2, 3), (4, 5), (6, 7))
    reasons = [results[number].finish_reason for number in sorted(results)]
    assert reasons == ["error", "error", "length"]
    lost = results[min(results)]
    assert lost.error == "a pass failed: RuntimeError: a cosmic ray"
    assert lost.token_ids == reference((1, 2, 3), settings())[: len(lost.token_ids)]
    assert results[max(results)].token_ids == reference((6, 7), settings())


def test_abort_in_flight_leaves_no_requests(auto_llm: LLM) -> None:
    engine = deferred_engine(auto_llm, "auto")
    request = engine.prepare((1, 2, 3), settings())
    engine.submit(request)
    for _ in range(3):
        engine.step()
    (update,) = engine.abort(request.request_id)
    assert update.result is not None and update.result.finish_reason == "abort"
    assert engine.has_work and not engine.has_requests, "what is in flight is still to be read"
    assert finish(engine) == {}


def test_determinism_off_refuses_deterministic_requests_only(tiny_llama: Path) -> None:
    llm = LLM(str(tiny_llama), dtype="fp32", determinism="off", max_pass_tokens=64)
    with pytest.raises(DeterminismRefused, match="determinism off; start it with determinism auto or verify"):
        llm.generate(PROMPTS[:1], settings())
    result = llm.generate(PROMPTS[:1], settings(deterministic=False))[0]
    assert (result.determinism, len(result.token_ids)) == ("none", 20)
    assert llm.engine.certificate is None
    assert llm.engine.counters.num_canonical_passes == 0


def test_progress_is_shown_in_order(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE_DIR", str(tmp_path))  # so that there is something to certify
    seen: dict[str, list[tuple[int, int]]] = {}
    LLM.from_config(
        EngineConfig(str(tiny_llama), max_pass_tokens=64),
        progress=lambda what, done, total: seen.setdefault(what, []).append((done, total)),
    )
    assert list(seen) == ["Loading weights", "Certifying"]
    for steps in seen.values():
        assert [done for done, _ in steps] == list(range(1, len(steps) + 1))
        assert {total for _, total in steps} == {len(steps)}


def test_llm_with_deterministic_default_gives_one_answer_without_settings(tiny_llama: Path) -> None:
    with_default = LLM(str(tiny_llama), deterministic=True)
    alone = with_default.generate(PROMPTS[0])[0]
    assert alone.determinism != "none" and alone.seed == 0
    assert alone.receipt is not None and alone.receipt["settings"]["deterministic"] is True
    for result in with_default.generate([*PROMPTS, PROMPTS[0]])[::3]:
        assert bits(result) == bits(alone)
    assert with_default.generate(PROMPTS[0], SamplingParams(deterministic=False))[0].determinism == "none"
