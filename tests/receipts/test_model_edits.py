"""Same fingerprint, same bits: every small edit of a model's files is refused with a clear error, or changes the
fingerprint, or changes no prompt, no token, no text and no bit. And what is read twice reads the same."""

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram

from holdfast import LLM, SamplingParams
from holdfast.engine.llm.chat_tokenizer import ChatTokenizer
from holdfast.errors import HoldfastError
from holdfast.models.adapter import AdapterInfo, norms_digest, write_adapter
from holdfast.models.checkpoint import open_checkpoint
from support.chat_models import QWEN3, write_chat_tokenizer
from support.model_edits import Edit, Gguf, copied, edits_of
from support.thinking_models import thinker_folder
from support.tiny import CHAT_TEMPLATE, tiny_gguf, tiny_model

NUM_EDITS = 240
TALKS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hello  there, a b c"}],
    [
        {
            "role": "user",
            "content": "<tool_response>a<b></tool_response><|im_end|></s>",
            "name": "n",
            "x": None,
        }
    ],
    [{"role": "user", "content": "x"}, {"role": "assistant", "content": "<think>y</think>z"}],
]
TEXTS = [
    "Hello, thinking about the answer: the quick dog sleeps.\n\n 123",
    " b a <s></s><think> é 東京 </think>",
    "",
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
SAMPLED = SamplingParams(max_tokens=6, temperature=0.8, seed=3, logprobs=2)


def named_templates(*texts: str) -> list[dict[str, str]]:
    return [
        {"name": name, "template": text}
        for name, text in zip(("default", "tool_use", "rag"), texts, strict=True)
    ]


def bpe_folder(folder: Path) -> Path:
    """Llama, byte-level BPE, three templates, tokens named in four files."""
    tiny_model(
        folder, num_hidden_layers=1, rope_scaling={"rope_type": "linear", "factor": 2.0}, rope_theta=5e4
    )
    write_chat_tokenizer(folder, "qwen3")
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    added = {
        "300": {"content": "<tool_response>", "special": False, "lstrip": True},
        "310": {"content": "<b>"},
    }
    templates = named_templates(CHAT_TEMPLATE, QWEN3, "<b>")
    path.write_text(json.dumps(config | {"chat_template": templates, "added_tokens_decoder": added}))
    (folder / "special_tokens_map.json").write_text('{"unk_token": {"content": "a"}, "pad_token": "b"}')
    return folder


def unigram_folder(folder: Path) -> Path:
    """Gemma 2, Unigram with byte fallback, a template in a file of its own."""
    tiny_model(folder, "gemma2", num_hidden_layers=2)
    pieces = [
        ("<unk>", 0.0),
        ("<s>", 0.0),
        ("</s>", 0.0),
        *((f"<0x{byte:02X}>", -20.0) for byte in range(256)),
    ]
    words = ["▁", "▁the", "▁quick", "▁dog", "the", "he", "ll", *"abcdeghiklnoqrstu"]
    pieces += [(word, -3.1 - index / 7) for index, word in enumerate(words)]
    backend = Backend(Unigram(pieces, unk_id=0, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" ", "▁")])
    backend.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(["<s>", "</s>"])
    backend.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A $B", [("<s>", 1)])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        '{"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}'
    )
    (folder / "chat_template.jinja").write_text("{{ bos_token }}" + CHAT_TEMPLATE)
    return folder


def expert_folder(folder: Path) -> Path:
    """Qwen2-MoE, and a tokenizer that adds tokens only because its configuration says so."""
    tiny_model(folder, "qwen2_moe")
    path = folder / "tokenizer_config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text()) | {"bos_token": "<|im_start|>", "add_bos_token": True})
    )
    return folder


def bpe_gguf(folder: Path) -> Path:
    path = tiny_gguf(folder / "tiny.gguf", quant="Q8_0", num_hidden_layers=1)
    Gguf.read(path).with_pairs(**{"tokenizer.chat_template.rag": "<|im_end|>"}).write(path)
    return path


def sentencepiece_gguf(folder: Path) -> Path:
    path = tiny_gguf(folder / "tiny.gguf", "mistral", sliding_window=20, num_hidden_layers=1)
    words = ["▁", "▁the", "▁quick", "▁dog", "the", "he", "ll", *"abcdeghiklnoqrstu"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    tokenizer = {
        "ggml.model": "llama",
        "ggml.tokens": tokens,
        "ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * len(words)],
        "ggml.scores": [0.0] * 259 + [-1.5 - index / 7 for index in range(len(words))],
        "ggml.bos_token_id": 1,
        "ggml.eos_token_id": 2,
        "chat_template": CHAT_TEMPLATE,
    }
    file = Gguf.read(path).without("tokenizer.")
    file.with_pairs(**{f"tokenizer.{key}": value for key, value in tokenizer.items()}).write(path)
    return path


def adapter_folder(folder: Path) -> Path:
    """T and C of a thinking model, apart from its backbone."""
    base, adapter = thinker_folder(folder.with_name("base")), folder
    adapter.mkdir()
    for name in ("thinking.json", "thinking.safetensors"):
        shutil.move(base / name, adapter / name)
    write_adapter(adapter, AdapterInfo(str(base), norms_digest(open_checkpoint(base))))
    return adapter


FAMILIES: dict[str, Callable[[Path], Path]] = {
    "bpe": bpe_folder,
    "unigram": unigram_folder,
    "experts": expert_folder,
    "gguf": bpe_gguf,
    "sentencepiece": sentencepiece_gguf,
    "adapter": adapter_folder,
}


def read(path: Path) -> tuple[str, Any]:
    """Return a model's fingerprint, and all that it says."""
    options = {"determinism": "off", "max_pass_tokens": 64, "max_num_seqs": 4, "kv_memory": "4MiB"}
    with closing(LLM(str(path), **options)) as llm:
        said = read_prompts(llm.get_tokenizer()), [attempt(answer, llm, text) for text in TEXTS[:2]]
        return llm.engine.fingerprint.digest, said


def read_prompts(tokenizer: ChatTokenizer) -> list[Any]:
    """Return the prompts of conversations and texts, and the text of every token."""
    return [
        *(attempt(tokenizer.apply_chat_template, one, add_generation_prompt=True) for one in TALKS),
        attempt(tokenizer.apply_chat_template, TALKS[0], TOOLS),
        *(attempt(tokenizer.encode, one) for one in TEXTS),
        *(
            attempt(tokenizer.decode, range(len(tokenizer)), skip_special_tokens=skips)
            for skips in (True, False)
        ),
    ]


def answer(llm: LLM, text: str) -> Any:
    choice = llm.generate([text], SAMPLED)[0].choices[0]
    logprobs = [(one.logprob.hex(), one.top) for one in choice.logprobs or ()]
    return choice.token_ids, choice.text, choice.finish_reason, choice.thoughts, logprobs


def attempt(ask: Callable[..., Any], *args: Any, **options: Any) -> Any:
    try:
        return ask(*args, **options)
    except HoldfastError as error:
        return type(error).__name__


class Edited:
    """A model, and what became of its edits."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.model, self.folder = model, folder
        self.before = read(model)

    def judge(self, edit: Edit) -> str:
        """Return what an edit does: "refused", "another fingerprint", "nothing"; else what is wrong."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        model = copied(self.model, self.folder / self.model.name)
        edit.apply(model)
        try:
            fingerprint, said = read(model)
            again = read(model)
        except HoldfastError as error:
            return "refused" if len(str(error)) > 20 else f"an unclear error: {error!r}"
        except Exception as error:
            return f"an error that names no file: {error!r}"
        if again != (fingerprint, said):
            return "other bits each time"
        if fingerprint != self.before[0]:
            return "another fingerprint"
        return "nothing" if said == self.before[1] else "the same fingerprint, other bits"


def draw(edits: list[Edit], number: int) -> list[Edit]:
    """Return random edits, of each file as many as of another, as far as it has them."""
    random.Random(46).shuffle(edits)
    seen: Counter[str] = Counter()
    turns = []
    for edit in edits:
        file = edit.name.partition(":")[0]
        turns.append((seen[file], edit))
        seen[file] += 1
    return [edit for _, edit in sorted(turns, key=lambda turn: turn[0])][:number]


FAMILIES_IN_FULL = [pytest.param(one, NUM_EDITS, marks=pytest.mark.long) for one in FAMILIES]


@pytest.mark.parametrize(("family", "num_edits"), [("bpe", 5), ("gguf", 5), *FAMILIES_IN_FULL])
def test_edit_is_refused_or_named_or_changes_nothing(family: str, num_edits: int, tmp_path: Path) -> None:
    edited = Edited(FAMILIES[family](tmp_path / "model"), tmp_path / "copy")
    edits = list(edits_of(edited.model))
    drawn = draw(edits, num_edits)
    outcomes = [(edit.name, edited.judge(edit)) for edit in drawn]
    print(f"{family}: {len(drawn)} of {len(edits)} edits: {dict(Counter(what for _, what in outcomes))}")
    assert [one for one in outcomes if one[1] not in ("refused", "another fingerprint", "nothing")] == []
    assert num_edits < NUM_EDITS or len({what for _, what in outcomes}) == 3
