"""A small tokenizer for models trained from scratch: a token for each word, digit and mark, else
bytes.

A word of the vocabulary is one token, with the space before it. Any other word is encoded as bytes,
so every text can be encoded. Tokens do not depend on the words around them: phrases that end at
word boundaries can be encoded one by one.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

EOS, START, END = "<eos>", "<think>", "</think>"  # end of an answer; start and end of a thought
SPECIAL = (EOS, START, END)
# One question at a time; the answer follows " A:".
_CHAT_TEMPLATE = (
    "{% set question = messages[-1]['content'].rstrip() %}{{ question }}"
    "{{ ' A:' if add_generation_prompt and not question.endswith(' A:') }}"
)
_WORDS = r"'\p{L}+| ?\p{L}+| ?\d| ?[^\s\p{L}\d]|\s"


def build_tokenizer(texts: Iterable[str]) -> "Tokenizer":
    """Make a token of every word, digit and mark of the texts, with and without a space before it."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    split = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    words = {word for text in texts for word, _ in split.pre_tokenize_str(text)}
    words |= set("0123456789.,:;?!=+-*/()$%\"'")
    bare = {word.removeprefix("Ġ") for word in words if word != "Ġ"}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    whole = sorted((bare | {"Ġ" + word for word in bare if not word.startswith("'")}) - set(alphabet))
    vocab = {token: index for index, token in enumerate((*SPECIAL, *alphabet, *whole))}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    backend.pre_tokenizer = split
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return backend


def save_tokenizer(tokenizer: "Tokenizer", folder: Path) -> None:
    folder.joinpath("tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    config = {
        "eos_token": EOS,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "chat_template": _CHAT_TEMPLATE,
    }
    folder.joinpath("tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
