"""Builds a tokenizer from a GGUF file's metadata (`tokenizer.ggml.*`).

Two kinds are supported: "gpt2", byte-level BPE with a pre-tokenizer that the file only names
(`tokenizer.ggml.pre`), and "llama", sentencepiece BPE with scores and byte fallback. An unknown
pre-tokenizer is refused: a similar one would give wrong tokens silently. The backend is built from
the vocabulary and the merges, not through JSON text, because start-up time matters.
"""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from holdfast.errors import ModelError, UnsupportedModel
from holdfast.text.tokenizer_data import (
    HARMONY_ENDS,
    TextAffixes,
    TokenizerData,
    TokenizerIdentity,
    find_special_ids,
)

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
LLAMA3 = CONTRACTIONS + (
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SUFFIX = f"{CONTRACTIONS}?"
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{_SUFFIX}|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GPT2, _DIGITS = (
    "gpt-2",
    "digits, then gpt-2",
)  # built into the library, so named here instead of written as a regex
_PRE_TOKENIZERS = {
    "gpt-2": _GPT2,
    "default": _GPT2,
    "phi-2": _GPT2,
    "olmo": _GPT2,  # OLMoE
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "command-r": _DIGITS,
    "llama-bpe": LLAMA3,
    "llama3": LLAMA3,
    "llama-v3": LLAMA3,
    "qwen2": QWEN2,
    "deepseek-r1-qwen": QWEN2,
    "dbrx": LLAMA3,  # OLMo 2, Phi-4
    "gpt-4o": _GPT4O,  # gpt-oss, Phi-4-mini
    "tekken": _TEKKEN,
}
# A word that is a token is not merged from its parts, and texts begin with BOS.
_WITH_WHOLE_WORDS = frozenset({"llama-bpe", "llama3", "llama-v3", "tekken"})
_EOS_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")
_END_OF_TURN_TOKENS = ("<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>")
_NAMED_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def read_gguf_tokenizer(metadata: Mapping[str, object]) -> TokenizerData:
    """Return the tokenizer a GGUF file describes."""
    ggml = _GgmlFields(metadata)
    kind = ggml.text("model", "")
    if kind == "gpt2":
        backend, adds_bos = _build_byte_level(ggml)
    elif kind == "llama":
        backend, adds_bos = _build_sentencepiece(ggml), True
    elif not kind:
        raise ModelError("the GGUF file carries no tokenizer (tokenizer.ggml.model is missing)")
    else:
        raise UnsupportedModel(f"tokenizer.ggml.model is {kind!r}; Holdfast supports 'gpt2' and 'llama'")
    _add_tokens(backend, ggml)
    bos, eos = ggml.token_id("bos_token_id"), ggml.token_id("eos_token_id")
    bos = 1 if bos is None and kind == "llama" else bos
    eos = 2 if eos is None and kind == "llama" else eos
    affixes = TextAffixes(
        prefix_ids=(bos,) if bos is not None and ggml.flag("add_bos_token", adds_bos) else (),
        suffix_ids=(eos,) if eos is not None and ggml.flag("add_eos_token", False) else (),
    )
    return TokenizerData(
        backend=backend,
        vocab_size=len(ggml.tokens),
        identity=TokenizerIdentity(ggml.identity),
        affixes=affixes,
        bos_token_id=bos,
        eos_token_ids=ggml.eos_ids() | ({eos} if eos is not None else frozenset()),
        special_ids=find_special_ids(backend),
        special_tokens=ggml.named_tokens(),
        chat_templates=_find_templates(metadata),
    )


class _GgmlFields:
    """The `tokenizer.ggml.*` values. Each read checks its type."""

    def __init__(self, metadata: Mapping[str, object]) -> None:
        prefix = "tokenizer.ggml."
        self.values = {key[len(prefix) :]: value for key, value in metadata.items() if key.startswith(prefix)}
        self.tokens: Sequence[str] = self.array("tokens", str) or []
        types = self.array("token_type", int)
        self.types: Sequence[int] = types if types is not None else [_NORMAL] * len(self.tokens)
        if not isinstance(self.values.get("model", ""), str) or len(self.types) != len(self.tokens):
            raise ModelError(
                f"{len(self.tokens)} tokens and {len(self.types)} token types do not belong together"
            )

    @cached_property
    def marked(self) -> list[int]:
        """The ids of tokens that are not ordinary text."""
        return [id_ for id_, kind in enumerate(self.types) if kind != _NORMAL]

    def array(self, key: str, kind: type) -> list[Any] | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not set(map(type, value)) <= {kind}:
            raise ModelError(
                f"tokenizer.ggml.{key} is not a list of {kind.__name__}; the GGUF file is broken"
            )
        return value

    def text(self, key: str, default: str) -> str:
        return str(self.values.get(key, default))

    def flag(self, key: str, default: bool) -> bool:
        return bool(self.values.get(key, default))

    def token_id(self, key: str) -> int | None:
        value = self.values.get(key)
        if value is None or value == 0xFFFFFFFF:  # some writers' value for "none"
            return None
        if not isinstance(value, int) or not 0 <= value < len(self.tokens):
            raise ModelError(f"tokenizer.ggml.{key} is {value!r}, outside a vocabulary of {len(self.tokens)}")
        return value

    def eos_ids(self) -> frozenset[int]:
        """Return the ids that end an answer: those in the file, and control tokens known to end a turn."""
        named = [self.token_id(key) for key in _EOS_KEYS]
        control = {self.tokens[id_]: id_ for id_ in self.marked if self.types[id_] == _CONTROL}
        is_harmony = all(token in control for token in HARMONY_ENDS)
        ends = HARMONY_ENDS if is_harmony else _END_OF_TURN_TOKENS
        end_of_turn = [control[token] for token in ends if token in control]
        return frozenset([id_ for id_ in named if id_ is not None] + end_of_turn)

    def named_tokens(self) -> dict[str, str]:
        found = {name: self.token_id(key) for name, key in _NAMED_TOKENS.items()}
        return {name: self.tokens[id_] for name, id_ in found.items() if id_ is not None}

    def identity(self) -> bytes:
        return json.dumps(self.values, sort_keys=True, separators=(",", ":")).encode()


def _build_byte_level(ggml: _GgmlFields) -> tuple[Tokenizer, bool]:
    pre = ggml.text("pre", "default")
    if pre not in _PRE_TOKENIZERS:
        known = ", ".join(sorted(_PRE_TOKENIZERS))
        raise UnsupportedModel(f"the GGUF file's pre-tokenizer is {pre!r}; Holdfast supports {known}")
    merges = ggml.array("merges", str)
    if not ggml.tokens or merges is None:
        raise ModelError("the GGUF file's BPE tokenizer lacks its tokens or its merges")
    pattern = _PRE_TOKENIZERS[pre]
    pairs = _split_merges(merges)
    backend = _make_bpe(ggml, pairs, ignore_merges=pre in _WITH_WHOLE_WORDS)
    if pattern == QWEN2:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = _pre_tokenizer(pattern)
    backend.decoder = decoders.ByteLevel()
    return backend, pre in _WITH_WHOLE_WORDS


def _split_merges(merges: Sequence[str]) -> list[tuple[str, str]]:
    return [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]


def _pre_tokenizer(pattern: str) -> pre_tokenizers.PreTokenizer:
    if pattern == _GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pattern == _DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, _pre_tokenizer(_GPT2)])
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([split, plain])


def _build_sentencepiece(ggml: _GgmlFields) -> Tokenizer:
    scores = ggml.array("scores", float)
    merges = ggml.array("merges", str)
    if not ggml.tokens or (merges is None and (scores is None or len(scores) != len(ggml.tokens))):
        raise ModelError("the GGUF file's sentencepiece tokenizer lacks its tokens or their scores")
    if merges is not None:
        pairs = _split_merges(merges)
    else:
        assert scores is not None
        normal = [kind == _NORMAL for kind in ggml.types]
        pairs = sentencepiece_merges(ggml.tokens, scores, normal)
    unknown = ggml.token_id("unknown_token_id") or 0
    backend = _make_bpe(ggml, pairs, unk_token=ggml.tokens[unknown], fuse_unk=True, byte_fallback=True)
    space = normalizers.Replace(" ", "▁")
    steps: list[Any] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if ggml.flag("add_space_prefix", True):
        backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), space])
        steps.append(decoders.Strip(content=" ", left=1, right=0))
    else:
        backend.normalizer = space
    backend.decoder = decoders.Sequence(steps)
    return backend


def sentencepiece_merges(
    tokens: Sequence[str], scores: Sequence[float], mergeable: Sequence[bool]
) -> list[tuple[str, str]]:
    """Return the merge list of a sentencepiece BPE model, best first. Only `mergeable` tokens (no control
    or byte tokens) take part.

    Sentencepiece stores no merges: it joins the two neighbours whose joint token has the best
    score. As a merge list that is every way to split a token into two tokens, best token first. The
    order is total, so the same scores always give the same list.
    """
    ids = {token: id_ for id_, token in enumerate(tokens) if mergeable[id_]}
    order = sorted(ids.values(), key=lambda id_: (-scores[id_], id_))
    merges: list[tuple[str, str]] = []
    for id_ in order:
        token = tokens[id_]
        splits = ((token[:at], token[at:]) for at in range(1, len(token)))
        pairs = [pair for pair in splits if pair[0] in ids and pair[1] in ids]
        pairs.sort(key=lambda pair: (-len(pair[0]), ids[pair[0]], ids[pair[1]]))
        merges += pairs
    return merges


def _make_bpe(ggml: _GgmlFields, pairs: list[tuple[str, str]], **options: Any) -> Tokenizer:
    vocab = {token: id_ for id_, token in enumerate(ggml.tokens)}
    try:
        return Tokenizer(BPE(vocab=vocab, merges=pairs, **options))
    except Exception as error:
        raise ModelError(f"the GGUF file's merges do not fit its vocabulary: {error}") from error


def _add_tokens(backend: Tokenizer, ggml: _GgmlFields) -> None:
    typed = [(ggml.tokens[id_], ggml.types[id_]) for id_ in ggml.marked]
    special = [token for token, kind in typed if kind in (_CONTROL, _UNKNOWN) and token]
    plain = [token for token, kind in typed if kind == _USER_DEFINED and token]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in plain])


def _find_templates(metadata: Mapping[str, object]) -> dict[str, str]:
    prefix = "tokenizer.chat_template"
    found = {
        key[len(prefix) :].lstrip(".") or "default": value
        for key, value in metadata.items()
        if key == prefix or key.startswith(prefix + ".")
    }
    return {name: source for name, source in found.items() if isinstance(source, str)}
