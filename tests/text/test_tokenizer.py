"""Tokenizers against the library and transformers, and files that are refused."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE, Unigram

from holdfast.errors import HoldfastError, InvalidRequest, ModelError, ModelNotFound, UnsupportedModel
from holdfast.models.locate import locate
from holdfast.text.tokenizer import Tokenizer, open_tokenizer
from support.chat_models import write_chat_tokenizer
from support.model_edits import Gguf

CORPUS = [
    "The quick brown fox doesn't jump over 12345 lazy dogs, it'll sleep.\n\n  Then it wakes: 3.14!",
    "Ein Würfel rollt über 42 Brücken; 你好，世界 😀 naïve café — déjà vu.\r\n\tfoo(bar)[0] += 1",
    "I'M HERE AND WE'RE DONE   with   spaces ￼ and ١٢٣ digits",
] * 3
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
GPT4O = "|".join(  # o200k_base
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
PRE_TOKENIZERS = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
    "llama-bpe": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), BYTE_LEVEL]),
    "qwen2": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"), BYTE_LEVEL]),
    "olmo": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "dbrx": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), BYTE_LEVEL]),
    "gpt-4o": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(GPT4O), "isolated"), BYTE_LEVEL]),
}
TEXTS = st.one_of(st.text(max_size=60), st.lists(st.sampled_from(" ".join(CORPUS).split(" "))).map(" ".join))


def train_byte_level(pre: str) -> Backend:
    backend = Backend(BPE(ignore_merges=pre == "llama-bpe"))
    backend.pre_tokenizer = PRE_TOKENIZERS[pre]
    backend.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|end|>", "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def as_gguf(backend: Backend, **more: object) -> dict[str, object]:
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    values = {
        "tokens": tokens,
        "token_type": [3 if token.startswith("<|") else 1 for token in tokens],
        "merges": [" ".join(merge) for merge in model["merges"]],
        "eos_token_id": 0,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (values | more).items() if value is not None}


def open_gguf(metadata: dict[str, object]) -> Tokenizer:
    return open_tokenizer(Path("unused.gguf"), metadata=metadata)


def sentencepiece_metadata() -> dict[str, object]:
    """Hand-made tokens whose scores fall with the id, as Llama's do; "▁" is the space."""
    plain = ["▁t", "he", "▁the", "in", "▁a", "at", "▁c", "▁cat", "er", "▁in", "▁▁", "the", "inner"]
    letters = ["▁", *"abcdefghijklmnopqrstuvwxyz", "é", "."]
    pieces = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)], *plain, *letters]
    types = [2, 3, 3, *[6] * 256, *[1] * (len(plain) + len(letters))]
    scores = [0.0] * 259 + [-float(rank) for rank in range(len(plain))] + [-1e6] * len(letters)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


@pytest.fixture(scope="session")
def smollm2() -> Tokenizer:
    return open_tokenizer(locate(None).path)


@pytest.mark.smollm2
def test_smollm2_metadata(smollm2: Tokenizer) -> None:
    assert smollm2.vocab_size == 49152
    assert smollm2.encode("<|endoftext|><|im_start|><|im_end|>") == [0, 1, 2]
    assert smollm2.eos_token_ids == {2}
    assert smollm2.special_ids == set(range(17))
    assert smollm2.special_tokens["eos_token"] == "<|im_end|>"
    assert smollm2.chat_template is not None
    assert smollm2.decode([1, *smollm2.encode(" naïve 你好 😀")]) == " naïve 你好 😀"
    assert smollm2.decode([1], skip_special_tokens=False) == "<|im_start|>"


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_byte_level_gguf_matches_its_original(pre: str) -> None:
    original = train_byte_level(pre)
    rebuilt = open_gguf(as_gguf(original, model="gpt2", pre=pre, bos_token_id=1, add_bos_token=False))

    @settings(max_examples=120, deadline=None)
    @given(TEXTS)
    def compare(text: str) -> None:
        ids = original.encode(text).ids
        assert rebuilt.encode(text) == ids
        assert rebuilt.decode(ids) == original.decode(ids)

    compare()
    for text in CORPUS:
        assert rebuilt.encode(text) == original.encode(text).ids


def test_special_tokens_are_added_only_on_request() -> None:
    both = open_gguf(
        as_gguf(
            train_byte_level("gpt-2"), model="gpt2", bos_token_id=1, add_bos_token=True, add_eos_token=True
        )
    )
    assert both.encode("a")[0] == 1
    assert both.encode("a")[-1] == 0
    assert both.encode("a")[1:-1] == both.encode("a", add_special_tokens=False)


def test_end_of_a_message_does_not_end_an_answer_of_gpt_oss() -> None:
    metadata = as_gguf(train_byte_level("gpt-4o"), model="gpt2", pre="gpt-4o")
    assert open_gguf(metadata).eos_token_ids == {0}  # <|end|>
    tokens, types = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list) and isinstance(types, list)
    harmony = {"tokens": [*tokens, "<|return|>", "<|call|>"], "token_type": [*types, 3, 3]}
    harmony["eos_token_id"] = len(tokens)
    found = open_gguf(metadata | {f"tokenizer.ggml.{key}": value for key, value in harmony.items()})
    assert found.eos_token_ids == {len(tokens), len(tokens) + 1}


def test_llama_bpe_adds_bos_by_default() -> None:
    backend = train_byte_level("llama-bpe")
    assert open_gguf(as_gguf(backend, model="gpt2", pre="llama-bpe", bos_token_id=1)).encode("")[0] == 1
    silent = as_gguf(backend, model="gpt2", pre="llama-bpe", bos_token_id=1, add_bos_token=False)
    assert open_gguf(silent).encode("") == []


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("the cat", ["▁the", "▁cat"]),
        (" the", ["▁", "▁the"]),
        ("inner", ["▁in", "n", "er"]),
        ("aé你", ["▁a", "é", "<0xE4>", "<0xBD>", "<0xA0>"]),
        ("a</s>a", ["▁a", "</s>", "▁a"]),
        ("", []),
    ],
)
def test_sentencepiece_gguf(text: str, pieces: list[str]) -> None:
    metadata = sentencepiece_metadata()
    names = metadata["tokenizer.ggml.tokens"]
    assert isinstance(names, list)
    ids = open_gguf(metadata).encode(text)
    assert [names[id_] for id_ in ids] == ["<s>", *pieces]
    plain = text.replace("</s>", "")
    assert open_gguf(metadata).decode(ids) == (plain if plain == text else "a a")


def join_by_score(text: str, scores: dict[str, float]) -> list[str]:
    """Sentencepiece's own rule, written simply: join the pair whose token has the best score."""
    pieces = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        joint = [(scores[a + b], -at) for at, (a, b) in enumerate(pairwise(pieces)) if a + b in scores]
        if not joint:
            return pieces
        at = -max(joint)[1]
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


@given(st.text("thecatinner ▁.", max_size=30))
@settings(max_examples=300, deadline=None)
def test_sentencepiece_gguf_merges_by_score(text: str) -> None:
    metadata = sentencepiece_metadata()
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    assert isinstance(tokens, list)
    assert isinstance(scores, list)
    normal = dict(list(zip(tokens, scores, strict=True))[259:])
    ids = open_gguf(metadata).encode(text, add_special_tokens=False)
    assert [tokens[id_] for id_ in ids] == join_by_score(text, normal)


def test_sentencepiece_gguf_without_space_prefix() -> None:
    metadata = sentencepiece_metadata() | {
        "tokenizer.ggml.add_space_prefix": False,
        "tokenizer.ggml.add_bos_token": False,
    }
    tokenizer = open_gguf(metadata)
    assert [tokenizer.token_bytes(id_) for id_ in tokenizer.encode("the cat")] == [b"the", b" cat"]
    assert tokenizer.decode(tokenizer.encode(" the")) == " the"


@given(st.text(max_size=40))
@settings(max_examples=150, deadline=None)
def test_sentencepiece_gguf_round_trips_text(text: str) -> None:
    tokenizer = open_gguf(sentencepiece_metadata())
    assert tokenizer.decode(tokenizer.encode(text)) == text.replace("▁", " ")


def test_unsupported_gguf_tokenizer_is_refused() -> None:
    good = as_gguf(train_byte_level("gpt-2"), model="gpt2")
    tokens = good["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    for change, error, words in [
        ({"model": "bert"}, UnsupportedModel, "'gpt2' and 'llama'"),
        ({"model": None}, ModelError, "no tokenizer"),
        ({"pre": "martian"}, UnsupportedModel, "smollm"),
        ({"merges": None}, ModelError, "merges"),
        ({"merges": ["zz qq"]}, ModelError, "do not fit"),
        ({"merges": [1]}, ModelError, "not a list of str"),
        ({"tokens": tokens[:-1]}, ModelError, "belong together"),
        ({"eos_token_id": 10**6}, ModelError, "outside a vocabulary"),
        ({"model": "llama"}, None, ""),
        ({"model": "llama", "merges": None}, ModelError, "scores"),
    ]:
        changed = good | {f"tokenizer.ggml.{key}": value for key, value in change.items()}
        metadata = {key: value for key, value in changed.items() if value is not None}
        if error is None:
            open_gguf(metadata)
            continue
        with pytest.raises(error, match=words):
            open_gguf(metadata)


def write_folder(folder: Path, **files: object) -> Path:
    backend = train_byte_level("gpt-2")
    backend.add_special_tokens([AddedToken("<s>", special=True)])
    bos = backend.token_to_id("<s>")
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", bos)]
    )
    backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    "flags",
    [{}, {"add_bos_token": True}, {"add_bos_token": False}, {"add_eos_token": True}],
    ids=lambda flags: "+".join(f"{k}={v}" for k, v in flags.items()) or "none",
)
def test_folder_tokenizer_matches_transformers(tmp_path: Path, flags: dict[str, bool]) -> None:
    transformers = pytest.importorskip("transformers")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": {"content": "<|end|>", "__type": "AddedToken"},
        "added_tokens_decoder": {"420": {"content": "<extra>", "special": True, "normalized": False}},
        **flags,
    }
    ours = open_tokenizer(write_folder(tmp_path, tokenizer_config__json=config))
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    for text in [*CORPUS[:3], "", "a<|end|>b<extra>c<s>"]:
        ids = theirs(text)["input_ids"]
        assert ours.encode(text) == ids
        bare = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text, add_special_tokens=False) == bare
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
        assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)


def test_config_adds_special_tokens_if_tokenizer_does_not(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "add_bos_token": True}
    folder = write_folder(tmp_path, tokenizer_config__json=config)
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(content | {"post_processor": None}))
    assert open_tokenizer(folder).encode("")[0] == 419
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"add_bos_token": False}))
    assert open_tokenizer(folder).encode("") == []


def test_folder_eos_ids_are_merged(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path,
        tokenizer_config__json={"eos_token": "<|end|>", "bos_token": "<s>"},
        generation_config__json={"eos_token_id": [1, 7]},
        config__json={"eos_token_id": 9},
    )
    tokenizer = open_tokenizer(folder)
    assert tokenizer.eos_token_ids == {0, 1, 7, 9}
    assert tokenizer.bos_token_id == 419
    assert tokenizer.vocab_size == 420
    assert tokenizer.special_tokens == {"bos_token": "<s>", "eos_token": "<|end|>"}
    assert tokenizer.chat_template is None


def test_harmony_ends_with_return_and_call(tmp_path: Path) -> None:
    folder = tmp_path / "gpt-oss"
    write_chat_tokenizer(folder, "gpt-oss")
    (folder / "generation_config.json").unlink()  # config.json names one token only
    tokenizer = open_tokenizer(folder)
    ends = {tokenizer.special_id(one) for one in ("<|return|>", "<|call|>", "<|endoftext|>")}
    assert tokenizer.eos_token_ids == ends


def test_jinja_file_overrides_config_template(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    folder = write_folder(tmp_path, tokenizer_config__json={"chat_template": named})
    assert open_tokenizer(folder).chat_template == "plain"
    (folder / "chat_template.jinja").write_text("file")
    tokenizer = open_tokenizer(folder)
    assert tokenizer.chat_template == "file"
    assert tokenizer.chat_templates == {"default": "file", "tool_use": "tools"}


def test_tokenizer_digest_covers_tokens_only(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, tokenizer_config__json={"bos_token": "<s>"})
    first = open_tokenizer(folder).digest()
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(content.items())), indent=3))
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "chat_template": "other"}')
    assert open_tokenizer(folder).digest() == first
    (folder / "tokenizer_config.json").write_text('{"bos_token": "<s>", "add_bos_token": false}')
    assert open_tokenizer(folder).digest() == first
    content["normalizer"] = {"type": "NFC"}
    path.write_text(json.dumps(content))
    assert open_tokenizer(folder).digest() != first
    metadata = sentencepiece_metadata()
    changed = metadata | {"tokenizer.ggml.add_space_prefix": False}
    assert open_gguf(metadata).digest() == open_gguf(metadata | {"general.name": "x"}).digest()
    assert open_gguf(metadata).digest() != open_gguf(changed).digest()


def test_tokenizer_of_a_folder_is_that_of_its_weights(tmp_path: Path) -> None:
    """A GGUF file has its own; the server reads the one that the engine does."""
    folder = write_folder(tmp_path)
    file = Gguf([], [], b"").with_pairs(**sentencepiece_metadata())
    file.write(folder / "model.gguf")
    own = open_gguf(sentencepiece_metadata()).encode("the cat")
    assert open_tokenizer(folder).encode("the cat") == own
    (folder / "model.safetensors").write_bytes(b"")
    assert open_tokenizer(folder).encode("the cat") != own


def test_tokenizer_digest_covers_the_special_tokens_map(tmp_path: Path) -> None:
    """A named token is special: it is left out of answers."""
    folder = write_folder(tmp_path, special_tokens_map__json={"unk_token": "a"})
    named = open_tokenizer(folder)
    (folder / "special_tokens_map.json").write_text('{"unk_token": {"content": "b"}}')
    other = open_tokenizer(folder)
    ids = named.encode("ab")
    assert named.decode(ids) != other.decode(ids)
    assert named.digest() != other.digest()


def test_tokenizer_digest_covers_the_spelling_of_scores(tmp_path: Path) -> None:
    """The library reads the last bit of a number by its spelling, as JSON values they are equal."""

    def digest(score: str) -> str:
        pieces = [("<unk>", 0.0), ("a", -1.0), ("b", -8.5)]
        content = Backend(Unigram(pieces, unk_id=0)).to_str().replace("-8.5", score)
        (tmp_path / "tokenizer.json").write_text(content)
        return open_tokenizer(tmp_path).digest()

    assert digest("-0.1") != digest("-0.1000000000000000055511151")


@pytest.mark.parametrize(
    ("files", "error", "words"),
    [
        ({}, ModelError, "no tokenizer.json"),
        ({"tokenizer.model": "x"}, UnsupportedModel, "convert it"),
        ({"tokenizer.json": "{"}, ModelError, "is not a tokenizer"),
        ({"tokenizer.json": b"\xff"}, ModelError, "UTF-8"),
        ({"a.gguf": "", "b.gguf": ""}, ModelNotFound, "several GGUF files"),
        ({"a.gguf": "no gguf at all, but long enough"}, ModelError, "GGUF"),
    ],
)
def test_broken_folder_is_refused(
    tmp_path: Path, files: dict[str, str | bytes], error: type[HoldfastError], words: str
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(error, match=words):
        open_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "content", ["[1]", "{", '{"added_tokens_decoder": {"x": {}}}', '{"chat_template": [3]}']
)
def test_broken_tokenizer_config_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(ModelError, match=r"tokenizer_config\.json"):
        open_tokenizer(write_folder(tmp_path, tokenizer_config__json=content))


def test_missing_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="no model at"):
        open_tokenizer(tmp_path / "nowhere")


def test_invalid_input_is_refused() -> None:
    tokenizer = open_gguf(sentencepiece_metadata())
    with pytest.raises(InvalidRequest, match="lone surrogate at 1"):
        tokenizer.encode("a\ud800b")
    with pytest.raises(InvalidRequest, match="not bytes"):
        tokenizer.encode(b"a")  # type: ignore[arg-type]
    for id_ in (-1, tokenizer.vocab_size, 2**40):
        with pytest.raises(InvalidRequest, match="outside the vocabulary"):
            tokenizer.decode([id_])
