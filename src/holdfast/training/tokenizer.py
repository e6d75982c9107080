"""A small tokenizer for models trained from scratch: a word is one token, a digit one, a mark one; all else is bytes.

A word that is in the vocabulary is a token, with the space before it; one that is not is spelt in bytes, so any text
can be typed. How a text is cut does not depend on what stands around a word: pieces encoded one by one are the whole
encoded at once, as long as they are cut where words end.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenizers import Tokenizer

EOS, START, END = "<eos>", "<think>", "</think>"  # of an answer; before a thought, behind it
SPECIAL = (EOS, START, END)
# One question at a time; the answer follows " A:", whoever writes it.
_CHAT_TEMPLATE = (
    "{% set question = messages[-1]['content'].rstrip() %}{{ question }}"
    "{{ ' A:' if add_generation_prompt and not question.endswith(' A:') }}"
)
_WORDS = r"'\p{L}+| ?\p{L}+| ?\d| ?[^\s\p{L}\d]|\s"


def build_tokenizer(texts: Iterable[str]) -> "Tokenizer":
    """Every word of the texts becomes a token, with and without a space before it; so does every digit and mark."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

    cut = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    words = {word for text in texts for word, _ in cut.pre_tokenize_str(text)}
    words |= set("0123456789.,:;?!=+-*/()$%\"'")
    bare = {word.removeprefix("Ġ") for word in words if word != "Ġ"}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    whole = sorted((bare | {"Ġ" + word for word in bare if not word.startswith("'")}) - set(alphabet))
    vocab = {token: index for index, token in enumerate((*SPECIAL, *alphabet, *whole))}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[], ignore_merges=True))
    backend.pre_tokenizer = cut
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return backend


def save_tokenizer(tokenizer: "Tokenizer", folder: Path) -> None:
    """tokenizer.json and tokenizer_config.json, as the engine reads them."""
    folder.joinpath("tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    config = {
        "eos_token": EOS,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "chat_template": _CHAT_TEMPLATE,
    }
    folder.joinpath("tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
