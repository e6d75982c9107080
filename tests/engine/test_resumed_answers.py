"""An answer that one engine began and another one continues: no token is repeated, missing or changed."""

import random
from array import array
from dataclasses import replace
from typing import Any

import pytest

from holdfast import LLM
from holdfast.bench.faults import FaultyProposer
from holdfast.core.results import Delta, Result
from holdfast.core.sampling_params import SamplingParams, StructuredOutput
from holdfast.core.sent import Sent
from holdfast.engine.engine import Engine
from holdfast.engine.input_processor import Prompt
from holdfast.errors import GuaranteeLost, InvalidRequest
from support.deferred_engine import deferred_engine
from support.thinking_engines import draw_prompt, open_thinker
from support.thinking_models import thinker_folder

PROMPT = "the quick brown fox jumps over the lazy dog"
SEED = 11
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 1.0},
    "logprobs": {"temperature": 0.8, "logprobs": 4},
    "penalties": {"temperature": 0.7, "repetition_penalty": 1.3, "frequency_penalty": 0.5},
    "stop": {"temperature": 1.0, "stop": ["zzq", "e"], "min_tokens": 20},
    "n": {"temperature": 1.0, "n": 3, "ignore_eos": False, "logprobs": 1},
    "json": {"temperature": 1.0, "structured": StructuredOutput(json_object=True), "ignore_eos": False},
    "words": {"temperature": 1.0, "bad_words": ["the", "a"], "echo": True},
    "prompt_logprobs": {"temperature": 1.0, "prompt_logprobs": 2, "n": 2, "ignore_eos": False},
}
MORE_KINDS: dict[str, dict[str, Any]] = {
    "stops": {
        "temperature": 2.0,
        "stop": ["ab", "e ", "the quick"],
        "include_stop_str_in_output": True,
        "n": 3,
    },
    "masks": {"temperature": 1.0, "logit_bias": {5: 4.0, 6: -100.0}, "allowed_token_ids": range(3, 99)},
    "ends": {"temperature": 1.5, "ignore_eos": False, "n": 6, "logit_bias": {0: 4.0}, "min_tokens": 2},
    "one": {"max_tokens": 1, "n": 4, "logprobs": 1},
    "choice": {"structured": StructuredOutput(choice=("the quick", "a dog")), "ignore_eos": False, "n": 3},
    "regex": {"structured": StructuredOutput(regex="[a-z ]{10,50}!"), "ignore_eos": False},
}


def params_of(kind: str, deterministic: bool) -> SamplingParams:
    settings = {"max_tokens": 40, "ignore_eos": True, **(KINDS | MORE_KINDS)[kind]}
    return SamplingParams(**settings, seed=SEED, deterministic=deterministic)


def run(
    engine: Engine,
    params: SamplingParams,
    sent: tuple[Sent, ...] = (),
    stop_after: int | None = None,
    *,
    prompt: Prompt = PROMPT,
    num_neighbours: int = 0,
) -> tuple[list[Delta], Result | None]:
    """All deltas and the result, or the first deltas of an engine that ends then."""
    deltas: list[Delta] = []
    request = engine.prepare(prompt, params, sent=sent)
    engine.submit(request)
    for number in range(num_neighbours):
        settings = SamplingParams(max_tokens=25, ignore_eos=True, seed=number, deterministic=number % 2 == 0)
        engine.submit(engine.prepare([5, 6, 7][: number + 1], settings))
    while engine.has_work:
        for output in engine.step():
            if output.request_id != request.request_id:
                continue
            if not output.delta.is_empty:
                deltas.append(output.delta)
            if output.result is not None:
                return deltas, output.result
            if stop_after is not None and len(deltas) >= stop_after:
                return deltas, None
        if stop_after == 0:
            return deltas, None
    raise AssertionError("the request did not end")


def restarted(llm: LLM) -> Engine:
    """An engine that knows nothing of the requests before."""
    llm.engine = fresh(llm.engine)
    return llm.engine


def fresh(engine: Engine) -> Engine:
    return engine.restarted(engine.scheduler.config)


def merged(deltas: list[Delta], num_choices: int) -> list[tuple[Any, ...]]:
    """What the client has of each choice."""
    choices = []
    for index in range(num_choices):
        own = [delta for delta in deltas if delta.index == index]
        choices.append(
            (
                "".join(delta.text for delta in own),
                [id_ for delta in own for id_ in delta.token_ids],
                [value for delta in own for value in delta.token_logprobs],
                [one for delta in own for one in delta.logprobs or ()],
                [(delta.finish_reason, delta.stop_reason) for delta in own if delta.finish_reason],
                [thought for delta in own for thought in delta.thoughts],
            )
        )
    return choices


def record_of(deltas: list[Delta], params: SamplingParams) -> tuple[Sent, ...]:
    sent = tuple(Sent() for _ in range(params.n))
    for delta in deltas:
        sent[delta.index].add(delta, keeps_logprobs=not params.deterministic)
    return sent


def check_resumes(
    engine: Engine,
    params: SamplingParams,
    rng: random.Random,
    *,
    prompt: Prompt = PROMPT,
    num_places: int,
    num_neighbours: int = 0,
) -> None:
    """The engine ends after some outputs, the next one after a few more: the third one continues."""
    engine = fresh(engine)
    whole, expected = run(engine, params, prompt=prompt)
    assert expected is not None and expected.receipt is not None
    settings: dict[str, Any] = {"prompt": prompt, "num_neighbours": num_neighbours}
    for stop_after in rng.sample(range(len(whole)), min(num_places, len(whole))):
        sent: list[Delta] = []
        for num_more in (stop_after, rng.randrange(6), None):
            engine = fresh(engine)
            more, result = run(engine, params, record_of(sent, params) if sent else (), num_more, **settings)
            sent += more
            if result is not None:
                break
        assert result is not None and result.error is None, stop_after
        assert merged(sent, params.n) == merged(whole, params.n), stop_after
        assert (result.choices, result.prompt_logprobs) == (expected.choices, expected.prompt_logprobs)
        tokens = sum(len(choice.token_ids) for choice in result.choices)
        assert result.stats.accepted + result.stats.canonical_tokens == tokens
        for name in ("choices", "prompt_logprobs", "seed", "settings", "mode"):
            assert result.receipt is not None and result.receipt[name] == expected.receipt[name]
    engine = fresh(engine)
    engine.check()


@pytest.mark.parametrize(
    ("num_places", "num_neighbours"),
    [
        pytest.param(1, 0, id="once"),
        pytest.param(6, 0, id="alone", marks=pytest.mark.long),
        pytest.param(6, 3, id="neighbours", marks=pytest.mark.long),
    ],
)
@pytest.mark.parametrize("deterministic", [True, False], ids=["deterministic", "ordinary"])
@pytest.mark.parametrize("kind", [*KINDS, *(pytest.param(one, marks=pytest.mark.long) for one in MORE_KINDS)])
def test_answer_continues_twice_from_any_place(
    llm: LLM, kind: str, deterministic: bool, num_places: int, num_neighbours: int
) -> None:
    params = params_of(kind, deterministic)
    if not deterministic and params.logprobs is None:
        params = replace(params, logprobs=0)  # else a receipt has none of an ordinary answer
    rng = random.Random(kind)
    check_resumes(llm.engine, params, rng, num_places=num_places, num_neighbours=num_neighbours)


@pytest.mark.long
@pytest.mark.parametrize("deterministic", [True, False], ids=["deterministic", "ordinary"])
def test_answer_with_rollbacks_continues(verify_llm: LLM, deterministic: bool) -> None:
    engine = verify_llm.engine
    right = engine.runner
    engine.runner = FaultyProposer(right, engine.limits.vocab_size, 0.3, ends=tuple(engine.limits.eos_ids))
    try:
        for kind in ("greedy", "stop", "json", "penalties", "prompt_logprobs"):
            params = params_of(kind, deterministic)
            check_resumes(engine, params, random.Random(kind), num_places=8, num_neighbours=2 * deterministic)
    finally:
        engine.runner = right


THOUGHTS: dict[str, dict[str, Any]] = {
    "sampled": {},
    "n": {"n": 3, "ignore_eos": False, "logprobs": 1},
    "forced": {"forced_thoughts": {0: [5, 6], 3: [7], 9: []}},
    "unthinking": {"think": False},
    "scored": {"prompt_logprobs": 1, "n": 2},
    "only_scored": {"max_tokens": 0, "prompt_logprobs": 1},
}


@pytest.fixture(scope="module", params=[True, False], ids=["while_answering", "while_reading"])
def thinker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = thinker_folder(tmp_path_factory.mktemp("resumed") / "model", while_answering=request.param)
    return open_thinker(folder, max_num_seqs=4, max_pass_tokens=32, kv_memory="2MiB")


def check_thoughts(thinker: Engine, kind: str, deterministic: bool, num_places: int) -> None:
    prompt = draw_prompt(random.Random(kind), 37, 30)
    settings = {"max_tokens": 24, "ignore_eos": True, "logprobs": 0, **THOUGHTS[kind]}
    params = SamplingParams(**settings, seed=SEED, deterministic=deterministic)
    rng = random.Random(kind)
    check_resumes(thinker, params, rng, prompt=prompt, num_places=num_places, num_neighbours=1)


@pytest.mark.parametrize("deterministic", [True, False], ids=["deterministic", "ordinary"])
def test_thoughts_continue(thinker: Engine, deterministic: bool) -> None:
    """None is sent twice, none is missing."""
    check_thoughts(thinker, "n", deterministic, num_places=3)


@pytest.mark.long
@pytest.mark.parametrize("deterministic", [True, False], ids=["deterministic", "ordinary"])
@pytest.mark.parametrize("kind", THOUGHTS)
def test_thoughts_continue_from_any_place(thinker: Engine, kind: str, deterministic: bool) -> None:
    check_thoughts(thinker, kind, deterministic, num_places=14)


@pytest.mark.parametrize("deterministic", [True, False], ids=["deterministic", "ordinary"])
@pytest.mark.parametrize("mode", ["auto", "verify"])
def test_answer_continues_with_async_scheduling(auto_llm: LLM, mode: str, deterministic: bool) -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True, seed=SEED, deterministic=deterministic, n=2)
    whole, _ = run(deferred_engine(auto_llm, mode), params)
    for stop_after in range(1, len(whole) - 1, 7):
        begun, _ = run(deferred_engine(auto_llm, mode), params, stop_after=stop_after)
        engine = deferred_engine(auto_llm, mode)
        rest, result = run(engine, params, record_of(begun, params))
        assert merged(begun + rest, 2) == merged(whole, 2), stop_after
        assert result is not None and (result.determinism != "none") == deterministic
        while engine.has_work:
            engine.step()
        engine.check()


@pytest.mark.parametrize("change", ["logprob", "token"])
def test_contradiction_ends_with_guarantee_lost(llm: LLM, change: str) -> None:
    params = params_of("sampled", deterministic=True)
    begun, _ = run(restarted(llm), params, stop_after=4)
    sent = record_of(begun, params)
    choice = sent[0]
    ids, values = choice.token_ids[:], choice.values[:]
    if change == "token":
        ids[1] = (ids[1] + 1) % 300
    values[1] -= 1e-3 if change == "logprob" else 0.0
    forged = replace(choice, token_ids=ids, values=values)
    engine = restarted(llm)
    sizes = engine.scheduler.config.certified_sizes
    rest, result = run(engine, params, (forged,))
    assert result is not None and result.error_code == GuaranteeLost.code
    assert not any(delta.token_ids for delta in rest), "nothing after the contradiction is sent"
    assert engine.revocation is None and engine.scheduler.config.certified_sizes == sizes


def test_invalid_record_is_refused(llm: LLM) -> None:
    params = params_of("sampled", deterministic=True)
    begun, _ = run(restarted(llm), params, stop_after=4)
    sent = record_of(begun, params)
    choice = sent[0]
    bad = [
        ((choice, choice), "n is 1"),
        ((replace(choice, values=array("f")),), "the logprob of each"),
        ((replace(choice, token_ids=array("i", [1 << 20])),), "not in the vocabulary"),
        ((replace(choice, finish_reason="stop"),), "has ended"),
        ((replace(choice, token_ids=choice.token_ids * 20),), "ask for more tokens"),
    ]
    for record, message in bad:
        with pytest.raises(InvalidRequest, match=message):
            restarted(llm).prepare(PROMPT, params, sent=record)
