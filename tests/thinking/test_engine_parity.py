"""Engine answers and thoughts equal the reference, for every family, chunk length and backend."""

import random
from functools import cache
from pathlib import Path

import pytest
import torch

from holdfast.numerics.recipe import KernelBackend
from holdfast.thinking.reference import open_reference
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

# family, chunk, the layers behind which the state is added and the rows are read, of three, and whether
# states are carried
MODELS = [
    ("llama", 4, 1, 2, False), ("llama", 16, 1, 1, False), ("mistral", 2, 2, 3, False), ("mistral", 8, 3, 3, True),
    ("qwen2", 8, 1, 3, False), ("qwen3", 16, 2, 2, False), ("llama", 4, 1, 2, True), ("qwen3", 2, 1, 3, True),
]  # fmt: skip
MAX_TOKENS = 10


@pytest.fixture(scope="module", params=MODELS, ids=lambda model: "-".join(map(str, model)))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    family, chunk, l_in, l_out, carry = request.param
    folder = tmp_path_factory.mktemp(family) / "model"
    return thinker_folder(folder, family, chunk=chunk, l_in=l_in, l_out=l_out, carry=carry), chunk


def _prompts(chunk: int) -> list[Ids]:
    """Shorter than a chunk, ending on an edge and one off it, and a long one."""
    rng = random.Random(chunk)
    edge = rng.randint(1, max(1, 20 // chunk)) * chunk
    lengths = [rng.randint(1, chunk - 1), edge, edge - 1, edge + 1, 90 if chunk == 4 else 40 + chunk]
    return [draw_prompt(rng, max(1, length), 290) for length in lengths]


@cache
def _truths(folder: Path, chunk: int, *, while_answering: bool) -> list[tuple[Ids, tuple[Ids, ...]]]:
    """The greedy answers, and what is thought up to their last token."""
    reference = open_reference(folder)
    truths = []
    for prompt in _prompts(chunk):
        with torch.inference_mode():
            answer, reading = reference.generate(prompt, MAX_TOKENS)
        settled = (len(prompt) + len(answer) - 1) // chunk  # nobody reads the last token
        thinks = settled if while_answering else len(prompt) // chunk
        truths.append((tuple(answer), tuple(reading.thoughts[: min(settled, thinks)])))
    return truths


@pytest.mark.parametrize("while_answering", [True, False])
def test_engine_answers_and_thoughts_equal_reference(model: tuple[Path, int], while_answering: bool) -> None:
    folder, chunk = model
    change_thinking(folder, while_answering=while_answering)
    truths = _truths(folder, chunk, while_answering=while_answering)
    prompts = _prompts(chunk)
    paths: tuple[KernelBackend, ...] = ("c", "torch")
    for kernels in paths:
        engine = open_thinker(folder, kernels, determinism="off")
        params = greedy(MAX_TOKENS, deterministic=False, ignore_eos=False)
        results = answer(engine, [engine.prepare(prompt, params) for prompt in prompts])
        for result, (tokens, thoughts) in zip(results, truths, strict=True):
            assert result.token_ids == tokens
            assert thoughts_of(result) == tuple(enumerate(thoughts))
    assert any(thought for _, thoughts in truths for thought in thoughts), "nothing was thought"
    if chunk == 4:
        assert any(not thought for _, thoughts in truths for thought in thoughts), (
            "all of it was thought about"
        )


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
