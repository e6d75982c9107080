"""Engine answers and thoughts equal the reference, for every family, chunk length and backend."""

import random
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch

from holdfast.numerics.recipe import KernelBackend
from support.thinking_engines import (
    Ids,
    answer,
    change_thinking,
    draw_prompt,
    greedy,
    open_thinker,
    thoughts_of,
)
from support.thinking_models import thinker_folder
from thinking.reference import open_reference

# family, chunk, the layers behind which the state is added and the rows are read, of three, and whether
# states are carried, and whether the prompt's last chunk is closed
MODELS = [
    ("llama", 4, 1, 2, False, False), ("llama", 16, 1, 1, False, True), ("mistral", 2, 2, 3, False, False),
    ("mistral", 8, 3, 3, True, True), ("qwen2", 8, 1, 3, False, False), ("qwen3", 16, 2, 2, False, False),
    ("llama", 4, 1, 2, True, True), ("qwen3", 2, 1, 3, True, False), ("llama", 4, 1, 2, False, True),
]  # fmt: skip
MAX_TOKENS = 10


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    family, chunk, l_in, l_out, carry, settle = request.param
    folder = tmp_path_factory.mktemp(family) / "model"
    how = {"chunk": chunk, "l_in": l_in, "l_out": l_out, "carry": carry, "settle": settle}
    return thinker_folder(folder, family, **how), chunk


def _prompts(chunk: int) -> list[Ids]:
    """Shorter than a chunk, ending on an edge and one off it, and a long one."""
    rng = random.Random(chunk)
    edge = rng.randint(1, max(1, 20 // chunk)) * chunk
    lengths = [rng.randint(1, chunk - 1), edge, edge - 1, edge + 1, 90 if chunk == 4 else 40 + chunk]
    lengths += range(22, 26) if chunk == 4 else range(38, 41, 2) if chunk > 4 else ()
    return [draw_prompt(rng, max(1, length), 290) for length in lengths]


@cache
def _truths(folder: Path, chunk: int, *, while_answering: bool) -> list[tuple[Ids, tuple[Ids, ...], int]]:
    """The greedy answers, what is thought up to their last token, and how many thoughts are about the prompt."""
    reference = open_reference(folder)
    truths = []
    for prompt in _prompts(chunk):
        with torch.inference_mode():
            answer, reading = reference.generate(prompt, MAX_TOKENS)
        num_read = len(prompt) + len(answer) - 1  # nobody reads the last token
        with torch.inference_mode():
            in_prompt = len(reference.read(reference.start(), prompt).thoughts)
        num_thoughts = max(in_prompt, num_read // chunk) if while_answering else in_prompt
        truths.append((tuple(answer), tuple(reading.thoughts[:num_thoughts]), in_prompt))
    return truths


@pytest.mark.parametrize(
    ("model", "while_answering"),
    [
        *product(MODELS, (True,)),
        *product(MODELS[::3], (False,)),
        *(pytest.param(one, False, marks=pytest.mark.long) for one in MODELS if one not in MODELS[::3]),
    ],
    indirect=["model"],
    ids=str,
)
@pytest.mark.parametrize("kernels", ["c", pytest.param("torch", marks=pytest.mark.long)])
def test_engine_answers_and_thoughts_equal_reference(
    model: tuple[Path, int], kernels: KernelBackend, while_answering: bool
) -> None:
    folder, chunk = model
    change_thinking(folder, while_answering=while_answering)
    truths = _truths(folder, chunk, while_answering=while_answering)
    prompts = _prompts(chunk)
    engine = open_thinker(folder, kernels, determinism="off")
    params = greedy(MAX_TOKENS, deterministic=False, ignore_eos=False)
    results = answer(engine, [engine.prepare(prompt, params) for prompt in prompts])
    for prompt, result, (tokens, thoughts, in_prompt) in zip(prompts, results, truths, strict=True):
        assert result.token_ids == tokens
        assert thoughts_of(result) == tuple(enumerate(thoughts))
        assert sum(thought.position < len(prompt) for thought in result.thoughts) == in_prompt
    assert any(thought for _, thoughts, _ in truths for thought in thoughts), "nothing was thought"
    if chunk == 4:
        assert any(not thought for _, thoughts, _ in truths for thought in thoughts), (
            "all of it was thought about"
        )


RESET = (7, 8, 9)


def _with_resets(prompt: Ids, chunk: int, rng: random.Random) -> Ids:
    """Message starts at several places of a chunk, across its end, and one that the prompt cuts off."""
    ids = list(prompt)
    for at in range(chunk, len(ids) - 3, 2 * chunk + 1):
        ids[at : at + 3] = RESET
    return (*ids, *RESET[: rng.randrange(4)])


@pytest.mark.parametrize(
    ("chunk", "kernels"),
    [(2, "c"), (4, "torch"), (16, "c"), pytest.param(4, "c", marks=pytest.mark.long)],
)
def test_engine_ends_carried_states_as_the_reference_does(
    tmp_path: Path, chunk: int, kernels: KernelBackend
) -> None:
    folder = thinker_folder(tmp_path / "model", chunk=chunk, carry=True, reset_ids=RESET)
    rng = random.Random(chunk)
    prompts = [_with_resets(draw_prompt(rng, length, 290), chunk, rng) for length in (30, 47, 64)]
    reference = open_reference(folder)
    with torch.inference_mode():
        truths = [reference.generate(prompt, MAX_TOKENS) for prompt in prompts]
    engine = open_thinker(folder, kernels, determinism="off")
    params = greedy(MAX_TOKENS, deterministic=False, ignore_eos=False)
    for _ in range(2):  # the second time from cached pages
        results = answer(engine, [engine.prepare(prompt, params) for prompt in prompts])
        for prompt, result, (tokens, reading) in zip(prompts, results, truths, strict=True):
            settled = (len(prompt) + len(tokens) - 1) // chunk
            assert result.token_ids == tuple(tokens)
            assert thoughts_of(result) == tuple(enumerate(reading.thoughts[:settled]))
    assert reference.thinking is not None
    reference.thinking = replace(reference.thinking, reset_ids=())
    with torch.inference_mode():
        others = [reference.generate(prompt, MAX_TOKENS) for prompt in prompts]
    assert any(mine[1].thoughts != other[1].thoughts for mine, other in zip(truths, others, strict=True))


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("how", [{"carry": True, "reset_ids": (7, 7)}, {"settle": True}])
def test_answer_with_other_states_than_a_prompt_shares_none(
    tmp_path: Path, how: dict[str, object], deterministic: bool
) -> None:
    """A message start ends a state in a prompt only; a chunk is closed early only where the prompt ends."""
    folder = thinker_folder(tmp_path / "model", chunk=4, **how)
    engine, alone = open_thinker(folder), open_thinker(folder, prefix_cache=False)
    first, second = (draw_prompt(random.Random(seed), 30, 290) for seed in (3, 4))
    says = greedy(40, allowed_token_ids=(7,), deterministic=deterministic)
    (said,) = answer(engine, [engine.prepare(first, says)])
    assert said.token_ids == (7,) * 40
    conversation = (*first, *said.token_ids, *second)
    params = greedy(8, deterministic=deterministic)
    (mine,), (expected,) = (answer(each, [each.prepare(conversation, params)]) for each in (engine, alone))
    assert mine.stats.cached_tokens == 16  # a page of the prompt
    assert (mine.token_ids, thoughts_of(mine)) == (expected.token_ids, thoughts_of(expected))
    assert mine.choices[0].logprobs == expected.choices[0].logprobs or not deterministic


def test_thought_after_prompt_precedes_first_token(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = thinker_folder(tmp_path_factory.mktemp("edge") / "model", chunk=4)
    engine = open_thinker(folder, determinism="off")
    engine.submit(engine.prepare(draw_prompt(random.Random(1), 8, 290), greedy(3, deterministic=False)))
    seen: list[str] = []
    while engine.has_work:
        for update in engine.step():
            seen += ["thought"] * len(update.delta.thoughts) + ["token"] * len(update.delta.token_ids)
    assert seen == ["thought", "thought", "token", "token", "token"]
