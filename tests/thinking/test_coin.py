"""The built-in model `coin`: it answers the documented example, thinks where it should, and generalises in length."""

import random

import pytest

from holdfast import LLM, SamplingParams
from holdfast.models.locate import COIN, locate
from holdfast_thinking.data.text_examples import TextTask
from holdfast_thinking.tasks.parity import Parity
from holdfast_thinking.tasks.variables import Variables

SEED = "A coin's state is heads. Alice flips, then Bob flips. What's the state? A:"
PARAMS = SamplingParams(max_tokens=6, temperature=0, deterministic=True)


@pytest.fixture(scope="module")
def coin() -> LLM:
    return LLM(COIN, max_num_seqs=16, max_pass_tokens=64)  # fewer batch sizes to certify


def test_coin_is_small_and_complete() -> None:
    found = locate(COIN)
    assert (found.name, found.source) == (COIN, "builtin")
    files = {path.name: path.stat().st_size for path in found.path.iterdir()}
    assert sum(files.values()) <= 16 << 20
    assert {"config.json", "model.safetensors", "thinking.json", "thinking.safetensors", "README.md"} <= set(
        files
    )


def test_coin_answers_the_documented_example(coin: LLM) -> None:
    result = coin.generate([SEED], PARAMS)[0]
    assert (result.text.strip(), result.determinism) == ("heads.", "certified")
    assert [thought.chunk for thought in result.thoughts] == list(range(len(result.thoughts)))
    spoken = {thought.chunk: thought.text for thought in result.thoughts if thought.text}
    assert list(spoken.values()) == ["tails", "heads"]
    tokens = [coin.engine.tokenizer.decode([token_id]) for token_id in result.prompt_token_ids]
    flips = [place for place, token in enumerate(tokens) if token == " flips"]
    assert [place // 4 for place in flips] == list(spoken)


@pytest.mark.parametrize(
    ("task", "counts"),
    [(Parity(long_texts=False), (5, 40, 100)), (Variables(long_texts=False), (1, 20, 60))],
    ids=["parity", "variables"],
)
def test_coin_generalises_beyond_training_length(coin: LLM, task: TextTask, counts: tuple[int, ...]) -> None:
    rng = random.Random(5)
    asked = [task.example(rng, events) for events in counts for _ in range(2)]
    results = coin.generate([example.prompt for example in asked], PARAMS)
    assert [result.text for result in results] == [example.answer for example in asked]


def test_coin_thinks_a_variable_change(coin: LLM) -> None:
    text = "Let a = 3, b = 5, c = 2. a = a + b. c = c - 1. What is the value of a? A:"
    result = coin.generate([text], PARAMS)[0]
    assert result.text.strip() == "8."
    spoken = [thought.text for thought in result.thoughts if thought.text]
    assert spoken == ["a 3 b 5 c 2", "a 3 + 5 a 8 b 5 c 2", "c 2 - 1 a 8 b 5 c 1"]


def test_coin_fails_without_thoughts(coin: LLM) -> None:
    example = Parity(long_texts=False).example(random.Random(6), 30)
    text, result = example.prompt, coin.generate([example.prompt], PARAMS)[0]
    last = [thought for thought in result.thoughts if thought.text][-1]
    assert f" {last.text}." == example.answer == result.text
    other = "tails" if last.text == "heads" else "heads"
    swapped = SamplingParams(
        max_tokens=6, temperature=0, forced_thoughts={last.chunk: coin.engine.tokenizer.encode(f" {other}")}
    )
    assert coin.generate([text], swapped)[0].text.strip() == f"{other}."
