"""The built-in model `coin`: it answers the documented example, thinks where it should, and generalises in length."""

import random

import pytest

from holdfast import LLM, SamplingParams
from holdfast.models.locate import COIN, locate

SEED = "A coin's state is heads. Alice flips, then Bob flips. What's the state? A:"
PARAMS = SamplingParams(max_tokens=6, temperature=0, deterministic=True)
_NAMES = ("Alice", "Bob", "Carol", "Tom", "Oscar")


@pytest.fixture(scope="module")
def coin() -> LLM:
    return LLM(COIN, max_num_seqs=16, max_pass_tokens=64)  # fewer batch sizes to certify


def _tale(rng: random.Random, events: int) -> tuple[str, str]:
    """A parity text with `count` events and its answer."""
    is_heads = rng.random() < 0.5
    told = [f"A coin's state is {'heads' if is_heads else 'tails'}."]
    for _ in range(events):
        flips = rng.random() < 0.5
        is_heads ^= flips
        told.append(f"{rng.choice(_NAMES)} {'flips' if flips else 'does not flip'} the coin.")
    return " ".join([*told, "What's the state? A:"]), "heads." if is_heads else "tails."


def _sum(rng: random.Random, events: int) -> tuple[str, str]:
    """A text with three one-digit variables, and the value of one of them."""
    names = sorted(rng.sample("abcdkmnpxyz", 3))
    values = {name: rng.randint(0, 9) for name in names}
    told = ["Let " + ", ".join(f"{name} = {value}" for name, value in values.items()) + "."]
    for _ in range(events):
        name, other = rng.sample(names, 2)
        step, word = rng.choice([(number, str(number)) for number in range(1, 6)] + [(values[other], other)])
        if values[name] + step <= 9:
            sign, value = "+", values[name] + step
        elif values[name] >= step:
            sign, value = "-", values[name] - step
        else:
            told.append(f"{name} = {other}.")
            values[name] = values[other]
            continue
        values[name] = value
        told.append(f"{name} = {name} {sign} {word}.")
    asked = rng.choice(names)
    return " ".join([*told, f"What is the value of {asked}? A:"]), f"{values[asked]}."


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


def test_coin_parity_generalises_beyond_training_length(coin: LLM) -> None:
    rng = random.Random(5)
    tales = [_tale(rng, events) for events in (5, 20, 40, 60, 80, 100) for _ in range(2)]
    results = coin.generate([text for text, _ in tales], PARAMS)
    assert [result.text.strip() for result in results] == [end for _, end in tales]


def test_coin_tracks_three_variables(coin: LLM) -> None:
    rng = random.Random(7)
    sums = [_sum(rng, events) for events in (1, 5, 20, 40, 60) for _ in range(2)]
    results = coin.generate([text for text, _ in sums], PARAMS)
    assert [result.text.strip() for result in results] == [end for _, end in sums]


def test_coin_thinks_a_variable_change(coin: LLM) -> None:
    text = "Let a = 3, b = 5, c = 2. a = a + b. c = c - 1. What is the value of a? A:"
    result = coin.generate([text], PARAMS)[0]
    assert result.text.strip() == "8."
    spoken = [thought.text for thought in result.thoughts if thought.text]
    assert spoken == ["a 3 b 5 c 2", "a 3 + 5 a 8 b 5 c 2", "c 2 - 1 a 8 b 5 c 1"]


def test_coin_fails_without_thoughts(coin: LLM) -> None:
    rng = random.Random(6)
    text, end = _tale(rng, 30)
    result = coin.generate([text], PARAMS)[0]
    last = [thought for thought in result.thoughts if thought.text][-1]
    assert last.text == end.removesuffix(".") == result.text.strip().removesuffix(".")
    other = "tails" if last.text == "heads" else "heads"
    swapped = SamplingParams(
        max_tokens=6, temperature=0, forced_thoughts={last.chunk: coin.engine.tokenizer.encode(f" {other}")}
    )
    assert coin.generate([text], swapped)[0].text.strip() == f"{other}."
