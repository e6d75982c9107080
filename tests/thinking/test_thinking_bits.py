"""Deterministic answers of a thinking model: tokens, logprob bits and thoughts do not depend on other requests."""

import random
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from ngram_faults import inject_ngram_faults

from holdfast.bench.faults import FaultyProposer
from holdfast.bench.stress import ResultBits, result_bits
from holdfast.core.pooling import Pooling
from holdfast.core.results import Result
from holdfast.core.sampling_params import SamplingParams, score_params
from holdfast.core.step_plan import Sampled
from holdfast.core.structured_output import StructuredOutput
from holdfast.engine.engine import Engine
from holdfast.scheduler.policy import DeterminismMode
from holdfast.thinking.config import CONFIG_FILE, WEIGHTS_FILE
from support.thinking_engines import (
    Ids,
    answer,
    ask_all,
    change_thinking,
    draw_prompt,
    greedy,
    open_thinker,
    thoughts_of,
    with_guesses,
)
from support.thinking_models import thinker_folder

CHUNK = 4
MODES: tuple[DeterminismMode, ...] = ("auto", "verify")
LENGTHS = (1, 3, 4, 5, 16, 17, 33, 48, 63)
SAMPLED = greedy(14, temperature=0.8, seed=11)
_rng = random.Random(4)
PROMPTS = [draw_prompt(_rng, length, 290) for length in LENGTHS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return thinker_folder(tmp_path_factory.mktemp("thinker") / "model", chunk=CHUNK)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    """Shared by all tests; each restarts it."""
    return open_thinker(folder)


@pytest.fixture(scope="module")
def plain(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The plain backbone."""
    bare = tmp_path_factory.mktemp("plain") / "model"
    ignored = shutil.ignore_patterns(CONFIG_FILE, WEIGHTS_FILE)
    shutil.copytree(folder, bare, ignore=ignored)
    return open_thinker(bare)


@pytest.fixture(scope="module")
def truths(engine: Engine) -> list[ResultBits]:
    """Each prompt alone, sampled, without a prefix cache."""
    fresh = schedule(engine, prefix_cache=False, speculation="off")
    results = [ask_all(fresh, [prompt], SAMPLED)[0] for prompt in PROMPTS]
    thoughts = [thought for result in results for _, thought in thoughts_of(result)]
    assert any(thoughts) and not all(thoughts)
    assert all(result.determinism == "certified" for result in results)
    return [result_bits(result) for result in results]


def schedule(
    engine: Engine, num_pages: int | None = None, *, max_guesses: int | None = None, **changes: Any
) -> Engine:
    usual = engine.scheduler.config
    if max_guesses is not None:
        usual = with_guesses(usual, max_guesses)
    return engine.restarted(replace(usual, **changes), num_pages)


def outcomes(results: list[Result]) -> list[ResultBits]:
    for result in results:
        stats = result.stats
        assert stats.candidates == stats.accepted + stats.rolled_back
        assert sum(len(one.token_ids) for one in result.choices) == stats.accepted + stats.canonical_tokens
        assert stats.guessed_right <= stats.guessed
    return [result_bits(result) for result in results]


def scored(engine: Engine, pairs: Iterable[tuple[Ids, Ids]], **how: Any) -> list[Result]:
    """The scores of completions after prompts."""
    params = score_params(deterministic=True, **how)
    return answer(engine, [engine.prepare(prompt, params, completion=ids) for prompt, ids in pairs])


def scores_of(results: Iterable[Result]) -> list[list[float]]:
    return [[each.logprob for each in result.prompt_logprobs or () if each] for result in results]


def logprobs_of(results: Iterable[Result]) -> list[list[float]]:
    return [[each.logprob for each in result.logprobs or ()] for result in results]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rows", [40, 128, pytest.param(32, marks=pytest.mark.long)])
def test_thinking_answer_is_invariant_to_load_cache_and_chunking(
    engine: Engine, truths: list[ResultBits], mode: DeterminismMode, rows: int
) -> None:
    one = schedule(engine, determinism=mode, max_pass_tokens=rows, spot_check_rate=1.0)
    others = [draw_prompt(random.Random(at), 5 * at + 1, 290) for at in range(8)]
    noise = [one.prepare(prompt, greedy(20, deterministic=False)) for prompt in others]
    for warm in (False, True):
        results = answer(one, [*noise, *(one.prepare(prompt, SAMPLED) for prompt in PROMPTS)])[len(noise) :]
        assert outcomes(results) == truths
        assert any(result.stats.cached_tokens for result in results) is warm
    assert one.counters.num_revocations == 0


@pytest.mark.parametrize("mode", MODES)
def test_prompts_that_share_a_prefix_at_once_share_its_thoughts(
    engine: Engine, mode: DeterminismMode
) -> None:
    prefix = draw_prompt(random.Random(8), 112, 290)
    prompts = [(*prefix, 5 + number, 6, 7) for number in range(5)]
    fresh = schedule(engine, prefix_cache=False, speculation="off")
    truth = [result_bits(ask_all(fresh, [prompt], SAMPLED)[0]) for prompt in prompts]
    results = ask_all(schedule(engine, determinism=mode, max_pass_tokens=48), prompts, SAMPLED)
    assert outcomes(results) == truth
    assert any(thought for _, thought in thoughts_of(results[0]))
    assert [result.stats.cached_tokens for result in results] == [0] + [112] * 4


@pytest.mark.parametrize("mode", MODES)
def test_preemption_inside_and_at_end_of_chunk(
    engine: Engine, truths: list[ResultBits], mode: DeterminismMode
) -> None:
    places = set()
    for at, cut in product((0, 1, 4, 6), (1, 2, 3)):
        one = schedule(engine, determinism=mode, prefix_cache=cut % 2 == 0)
        number = _submit(one, PROMPTS[at], SAMPLED)
        results: list[Result] = []
        pushed = False
        while one.has_work:
            results += [update.result for update in one.step() if update.result is not None]
            (seq,) = one.scheduler.requests or (None,)
            if seq is not None and not pushed and seq.tokens.num_output >= cut:
                places.add((seq.tokens.committed_len - 1) % CHUNK)
                _push_out(one, number)
                pushed = True
        assert outcomes(results) == [truths[at]]
        assert results[0].stats.preemptions == 1
    assert places == set(range(CHUNK))


def _push_out(engine: Engine, number: int) -> None:
    """Preempt as a page shortage would."""
    queue = engine.scheduler._queue
    seq = queue.running[number]
    queue.free_index(queue.remove(seq))
    engine.scheduler._spot_checker.forget(seq)
    seq.preempt()
    queue.enqueue(seq)
    engine.check()


@pytest.mark.parametrize("mode", MODES)
def test_thinking_answer_is_invariant_to_page_shortage(engine: Engine, mode: DeterminismMode) -> None:
    rng = random.Random(7)
    long = greedy(40)
    truth = [result_bits(ask_all(schedule(engine), [prompt], long)[0]) for prompt in PROMPTS[:3]]
    preemptions = 0
    for at, expected in enumerate(truth):
        one = schedule(engine, num_pages=8, determinism=mode)
        older = [draw_prompt(rng, rng.randint(1, 15), 290) for _ in range(4)]
        growing = [one.prepare(prompt, greedy(60, deterministic=False)) for prompt in older]
        (result,) = answer(one, [*growing, one.prepare(PROMPTS[at], long)])[len(growing) :]
        assert outcomes([result]) == [expected]
        preemptions += result.stats.preemptions
    assert preemptions > 0


class FaultyThoughts(FaultyProposer):
    """Injects wrong thoughts and nothing else."""

    def _corrupt_samples(self, samples: tuple[Sampled, ...]) -> tuple[Sampled, ...]:
        return samples


@pytest.mark.parametrize("proposer", [FaultyProposer, FaultyThoughts])
@pytest.mark.parametrize("chance", [0.6, 1.0])
def test_injected_wrong_tokens_and_thoughts_are_rolled_back(
    engine: Engine, truths: list[ResultBits], proposer: type[FaultyProposer], chance: float
) -> None:
    one = schedule(engine, determinism="verify", speculation="off")
    one.runner = proposer(one.runner, one.limits.vocab_size, chance)
    results = ask_all(one, PROMPTS, SAMPLED)
    assert outcomes(results) == truths
    assert sum(result.stats.rolled_back for result in results) > 0
    if proposer is FaultyThoughts:  # windows that cross a chunk boundary are shortened
        guessed = sum(result.stats.guessed for result in results)
        assert sum(result.stats.guessed_right for result in results) < guessed


def test_injected_wrong_ngram_candidates_are_rolled_back(
    engine: Engine, truths: list[ResultBits], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = ask_all(schedule(engine), PROMPTS, SAMPLED)
    inject_ngram_faults(monkeypatch, engine.limits.vocab_size, 0.2, truths=known)
    for seed in range(3):
        results = ask_all(schedule(engine, max_pass_tokens=64 + 32 * seed), PROMPTS, SAMPLED)
        assert outcomes(results) == truths
        assert sum(result.stats.rolled_back for result in results) > 0
        assert sum(result.stats.accepted for result in results) > 0


@pytest.mark.parametrize("mode", [pytest.param("auto", marks=pytest.mark.long), "verify"])
def test_thinking_choices_follow_their_seeds(engine: Engine, mode: DeterminismMode) -> None:
    several = replace(SAMPLED, n=3)
    alone = [
        outcomes(ask_all(schedule(engine, prefix_cache=False), [prompt], several))[0] for prompt in PROMPTS
    ]
    together = schedule(engine, determinism=mode, max_pass_tokens=40)
    assert outcomes(ask_all(together, PROMPTS, several)) == alone
    assert [len({choice.token_ids for choice in one.choices}) for one in alone] == [3] * len(alone)
    first = outcomes(ask_all(schedule(engine), PROMPTS, SAMPLED))
    assert [one.choices[0].thoughts for one in first] == [one.choices[0].thoughts for one in alone]


@pytest.mark.parametrize("while_answering", [True, False])
def test_thinking_score_equals_generation_logprobs(
    folder: Path, tmp_path: Path, while_answering: bool
) -> None:
    mine = tmp_path / "model"
    shutil.copytree(folder, mine)
    change_thinking(mine, while_answering=while_answering)
    engine = open_thinker(mine)
    given = ask_all(schedule(engine), PROMPTS, SAMPLED)
    for rows, cache in ((32, True), (128, False)):
        one = schedule(engine, max_pass_tokens=rows, prefix_cache=cache)
        for _ in range(2):  # a cold cache and a warm one
            found = scored(
                one, [(prompt, truth.token_ids) for prompt, truth in zip(PROMPTS, given, strict=True)]
            )
            assert scores_of(found) == logprobs_of(given)
            assert [*map(thoughts_of, found)] == [*map(thoughts_of, given)]
    answered = any(
        len(result.prompt_token_ids) <= last.position for result in given for last in result.thoughts[-1:]
    )
    assert answered is while_answering


@pytest.mark.parametrize("how", [{"think": False}, {"forced_thoughts": {0: (7,), 2: ()}}], ids=str)
def test_score_with_think_off_or_forced_thoughts_equals_generation(
    engine: Engine, how: dict[str, Any]
) -> None:
    given = ask_all(schedule(engine), PROMPTS, replace(SAMPLED, **how))
    one, pairs = (
        schedule(engine, max_pass_tokens=32),
        [(each.prompt_token_ids, each.token_ids) for each in given],
    )
    assert scores_of(scored(one, pairs, **how)) == logprobs_of(given)
    assert scores_of(scored(one, pairs)) != logprobs_of(given)


@pytest.mark.parametrize("mode", MODES)
def test_prompt_logprobs_across_chunks_equal_scores(engine: Engine, mode: DeterminismMode) -> None:
    prompts = PROMPTS[1:]
    one = schedule(engine, determinism=mode)
    expected = scores_of(scored(one, [(prompt[:1], prompt[1:]) for prompt in prompts]))
    for rows, guesses in ((32, 4096), (48, 4096), (128, 0)):
        one = schedule(engine, determinism=mode, max_pass_tokens=rows, max_guesses=guesses)
        assert scores_of(ask_all(one, prompts, replace(SAMPLED, prompt_logprobs=1))) == expected


@pytest.mark.parametrize("mode", [pytest.param("auto", marks=pytest.mark.long), "verify"])
def test_embeddings_across_chunks_and_wrong_guesses(engine: Engine, mode: DeterminismMode) -> None:
    def embed(engine: Engine, prompts: Sequence[Ids] = PROMPTS, **how: Any) -> list[bytes | None]:
        params, mean = score_params(deterministic=True, **how), Pooling("mean")
        asked = [engine.prepare(prompt, params, pooling=mean, want_receipt=False) for prompt in prompts]
        return [result.embedding for result in answer(engine, asked)]

    alone = schedule(engine, prefix_cache=False, max_guesses=0)
    expected = [bits for prompt in PROMPTS for bits in embed(alone, [prompt])]
    for rows, guesses in ((32, 4096), (48, 4096), (128, 0)):
        one = schedule(engine, determinism=mode, max_pass_tokens=rows, max_guesses=guesses)
        ask_all(one, PROMPTS[3:], SAMPLED)
        assert embed(one) == expected
    assert embed(one, think=False) != embed(one)


@pytest.mark.parametrize("mode", MODES)
def test_thinking_answer_with_grammar(engine: Engine, mode: DeterminismMode) -> None:
    form = replace(
        SAMPLED,
        structured=StructuredOutput(regex=r"(heads|tails)( (heads|tails)){3,6}"),
        ignore_eos=False,
        max_tokens=24,
    )
    prompts = PROMPTS[::2]
    truth = [outcomes(ask_all(schedule(engine), [prompt], form))[0] for prompt in prompts]
    assert all(one.choices[0].finish_reason == "stop" and "s" in one.choices[0].text for one in truth)
    one = schedule(engine, determinism=mode, max_pass_tokens=48)
    one.runner = FaultyProposer(one.runner, one.limits.vocab_size, 0.5)
    assert outcomes(ask_all(one, prompts, form)) == truth


@pytest.mark.parametrize("mode", MODES)
def test_abort_keeps_prefix_and_other_answers(
    engine: Engine, truths: list[ResultBits], mode: DeterminismMode
) -> None:
    for step in (1, 3, 6, 9):
        one = schedule(engine, determinism=mode, max_pass_tokens=32)
        ids = [_submit(one, prompt, SAMPLED) for prompt in PROMPTS]
        found: dict[int, Result] = {}
        for number in range(1000):
            updates = one.step() if one.has_work else []
            if number == step:
                updates += [update for at in ids[::2] for update in one.abort(at)]
            found.update(
                {update.request_id: update.result for update in updates if update.result is not None}
            )
        one.check()
        assert one.scheduler.pool.num_held == 0
        for at, truth in zip(ids, truths, strict=True):
            (whole,), choice = truth.choices, found[at].choices[0]
            if found[at].finish_reason == "abort":
                assert choice.token_ids == whole.token_ids[: len(choice.token_ids)]
                assert choice.thoughts == whole.thoughts[: len(choice.thoughts)]
            else:
                assert result_bits(found[at]) == truth


def _submit(engine: Engine, prompt: Ids, params: SamplingParams) -> int:
    request = engine.prepare(prompt, params)
    engine.submit(request)
    return request.request_id


# Without thinking, and with other thoughts


@pytest.mark.parametrize("mode", MODES)
def test_think_off_equals_backbone(engine: Engine, plain: Engine, mode: DeterminismMode) -> None:
    params = replace(SAMPLED, prompt_logprobs=1)
    bare = [
        _without_record(one) for one in outcomes(ask_all(schedule(plain, determinism=mode), PROMPTS, params))
    ]
    one = schedule(engine, determinism=mode)
    asked = [
        one.prepare(prompt, replace(params, think=think)) for prompt in PROMPTS for think in (True, False)
    ]
    results = answer(one, asked)
    assert [_without_record(one) for one in outcomes(results[1::2])] == bare
    assert all(result.thoughts == () for result in results[1::2])
    assert [_without_record(one) for one in outcomes(results[::2])] != bare
    assert engine.limits.thinking is not None and plain.limits.thinking is None


def _without_record(outcome: ResultBits) -> ResultBits:
    return replace(outcome, choices=tuple(replace(choice, recorded=None) for choice in outcome.choices))


@pytest.mark.parametrize("first", [True, False])
def test_think_off_requests_share_no_pages_with_thinking_ones(engine: Engine, first: bool) -> None:
    one = schedule(engine)
    prompt = PROMPTS[-1]
    ask_all(one, [prompt], replace(SAMPLED, think=first))
    (other,) = ask_all(one, [prompt], replace(SAMPLED, think=not first))
    assert other.stats.cached_tokens == 0
    (again,) = ask_all(one, [prompt], SAMPLED)
    assert again.stats.cached_tokens > 0


@pytest.mark.parametrize("mode", MODES)
def test_forced_thoughts_are_reported_and_change_the_answer(engine: Engine, mode: DeterminismMode) -> None:
    one, prompt = schedule(engine, determinism=mode), PROMPTS[-1]
    (usual,) = ask_all(one, [prompt], SAMPLED)
    chunk, thought = next(pair for pair in thoughts_of(usual) if pair[1])
    forced = {chunk: (*thought[:-1], (thought[-1] + 1) % 290)}
    (other,) = ask_all(one, [prompt], replace(SAMPLED, forced_thoughts=forced))
    assert thoughts_of(other)[: chunk + 1] == (*thoughts_of(usual)[:chunk], (chunk, forced[chunk]))
    assert other.logprobs != usual.logprobs
    assert other.stats.cached_tokens == 0
    same = {number: known for number, known in thoughts_of(usual) if number % 2}
    (again,) = ask_all(one, [prompt], replace(SAMPLED, forced_thoughts=same))
    assert result_bits(again).choices[0].logprob_bits == result_bits(usual).choices[0].logprob_bits
    assert thoughts_of(again) == thoughts_of(usual)
    silent = {number: () for number, _ in thoughts_of(usual)}
    (still,) = ask_all(one, [prompt], replace(SAMPLED, forced_thoughts=silent))
    (without,) = ask_all(one, [prompt], replace(SAMPLED, think=False))
    assert result_bits(still).choices[0].logprob_bits == result_bits(without).choices[0].logprob_bits
    assert thoughts_of(still) == tuple(silent.items())
    (last,) = ask_all(one, [prompt], SAMPLED)  # nobody reads what was forced
    assert result_bits(last) == result_bits(usual)
