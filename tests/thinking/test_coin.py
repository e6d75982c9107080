"""The small model that comes with Holdfast: it answers the example, thinks where it should, and keeps count far beyond."""

import random

import pytest

from holdfast import LLM, SamplingParams
from holdfast.models.locate import COIN, locate

SEED = "A coin's state is heads. Alice flips, then Bob flips. What's the state? A:"
PARAMS = SamplingParams(max_tokens=6, temperature=0, deterministic=True)
_NAMES = ("Alice", "Bob", "Carol", "Tom", "Oscar")


@pytest.fixture(scope="module")
def coin() -> LLM:
    return LLM(COIN, max_num_seqs=16)


def _tale(rng: random.Random, events: int) -> tuple[str, str]:
    """A text of so many events, and how it ends."""
    is_heads = rng.random() < 0.5
    told = [f"A coin's state is {'heads' if is_heads else 'tails'}."]
    for _ in range(events):
        flips = rng.random() < 0.5
        is_heads ^= flips
        told.append(f"{rng.choice(_NAMES)} {'flips' if flips else 'does not flip'} the coin.")
    return " ".join([*told, "What's the state? A:"]), "heads." if is_heads else "tails."


def test_it_is_small_and_whole() -> None:
    found = locate(COIN)
    assert (found.name, found.source) == (COIN, "builtin")
    files = {path.name: path.stat().st_size for path in found.path.iterdir()}
    assert sum(files.values()) <= 16 << 20
    assert {"config.json", "model.safetensors", "thinking.json", "thinking.safetensors", "README.md"} <= set(
        files
    )


def test_the_example(coin: LLM) -> None:
    result = coin.generate([SEED], PARAMS)[0]
    assert (result.text.strip(), result.determinism) == ("heads.", "certified")
    assert [thought.chunk for thought in result.thoughts] == list(range(len(result.thoughts)))
    spoken = {thought.chunk: thought.text for thought in result.thoughts if thought.text}
    assert list(spoken.values()) == ["tails", "heads"]
    tokens = [coin.engine.tokenizer.decode([token_id]) for token_id in result.prompt_token_ids]
    flips = [place for place, token in enumerate(tokens) if token == " flips"]
    assert [place // 4 for place in flips] == list(spoken)


def test_it_keeps_count_beyond_what_it_was_trained_on(coin: LLM) -> None:
    rng = random.Random(5)
    tales = [_tale(rng, events) for events in (5, 20, 40, 60, 80, 100) for _ in range(2)]
    results = coin.generate([text for text, _ in tales], PARAMS)
    assert [result.text.strip() for result in results] == [end for _, end in tales]


def test_its_thoughts_carry_it(coin: LLM) -> None:
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
