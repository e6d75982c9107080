"""The small tokenizer: tokens for words, digits and marks, bytes for the rest; the engine reads it."""

from pathlib import Path

import pytest

from holdfast.text.tokenizer import open_tokenizer
from holdfast_thinking.model.tokenizer import SPECIAL, build_tokenizer, save_tokenizer
from holdfast_thinking.tasks.parity import Parity
from holdfast_thinking.tasks.variables import Variables

SEED = "A coin's state is heads. Alice flips, then Bob flips. What's the state? A:"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(build_tokenizer(Parity().words() + Variables().words()), path)
    return path


@pytest.mark.parametrize(
    "text",
    [SEED, "a = a + 12; b=3", "Übung  macht\n\tden Meister 🙂", "x", " ", "", "don't!?", "<eos> is no end"],
)
def test_any_text_round_trips(folder: Path, text: str) -> None:
    tokenizer = open_tokenizer(folder)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert tokenizer.is_bytewise


def test_words_are_tokens_and_digits_are_single(folder: Path) -> None:
    tokenizer = open_tokenizer(folder)

    def split(text: str) -> list[str]:
        return [tokenizer.decode([id_]) for id_ in tokenizer.encode(text)]

    told = "A| coin|'s| state| is| heads|.| Alice| flips|,| then| Bob| flips|.| What|'s| the| state|?| A|:"
    assert split(SEED) == told.split("|")
    assert split("a = 12.") == ["a", " =", " 1", "2", "."]
    assert split(" Zyx") == [" ", "Z", "y", "x"]


def test_special_tokens_are_not_encoded_from_text(folder: Path) -> None:
    tokenizer = open_tokenizer(folder)
    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.decode([0, 1, 2]) == ""
    assert len(SPECIAL) == 3 and tokenizer.eos_token_ids == {0}


def test_tokenizer_file_is_reproducible(folder: Path, tmp_path: Path) -> None:
    save_tokenizer(build_tokenizer(Variables().words() + Parity().words()), tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
