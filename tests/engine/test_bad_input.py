"""Bad input end to end: each is refused with a clear error, and the engine serves the other requests."""

import json
import math
import pickle
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from holdfast import SamplingParams
from holdfast.engine.config import EngineConfig, parse_bytes
from holdfast.engine.llm import LLM
from holdfast.errors import (
    BadWeights,
    ConfigError,
    HoldfastError,
    InvalidRequest,
    ModelError,
    ModelNotFound,
    PromptTooLong,
    TemplateError,
    UnsupportedModel,
)
from support.tiny import EOS, VOCAB_SIZE, tiny_gguf

GOOD = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, deterministic=True, logprobs=1)
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def serving(llm: LLM) -> Any:
    """An engine with a running request, whose answer must not change whatever the test does."""
    expected = llm.generate(["the fox"], GOOD)[0]
    engine = llm.engine
    request = engine.prepare("the fox", GOOD)
    engine.submit(request)
    updates = engine.step() + engine.step()
    yield llm
    while engine.has_work:
        updates += engine.step()
        engine.check()
    result = updates[-1].result
    assert result is not None
    assert (result.token_ids, result.logprobs) == (expected.token_ids, expected.logprobs)


BAD_PROMPTS: list[tuple[Any, type[HoldfastError], str]] = [
    ("", InvalidRequest, "empty"),
    ([], InvalidRequest, "empty"),
    ([VOCAB_SIZE], InvalidRequest, f"token id {VOCAB_SIZE} is not in the vocabulary of {VOCAB_SIZE}"),
    ([-1], InvalidRequest, "token id -1"),
    ([10**5000], InvalidRequest, "a number of 16610 bits is not in the vocabulary"),
    ([5] * 505, PromptTooLong, "505 tokens and max_tokens is 8, together more than the context of 512"),
    ("fox " * 100_000, PromptTooLong, "context of 512"),
    ([1.0], InvalidRequest, "not a token id"),
    ([True], InvalidRequest, "not a token id"),
    (["a"], InvalidRequest, "not a token id"),
    ([None], InvalidRequest, "not a token id"),
    ([[1, 2]], InvalidRequest, "not a token id"),
    (5, InvalidRequest, "not int"),
    (None, InvalidRequest, "not NoneType"),
    (b"the fox", InvalidRequest, "not bytes"),
    (bytearray(b"the fox"), InvalidRequest, "not bytearray"),
    ({"a": 1}, InvalidRequest, "not dict"),
    ({1, 2}, InvalidRequest, "not set"),
    (object(), InvalidRequest, "not object"),
    (math.nan, InvalidRequest, "not float"),
    ("\ud800", InvalidRequest, "surrogate"),
]


@pytest.mark.parametrize(
    ("prompt", "kind", "message"),
    [pytest.param(*case, id=f"{n}-{case[2][:20]}") for n, case in enumerate(BAD_PROMPTS)],
)
def test_bad_prompt_is_refused(serving: LLM, prompt: Any, kind: type[HoldfastError], message: str) -> None:
    waiting = serving.engine.scheduler.num_waiting
    with pytest.raises(kind, match=message):
        serving.generate(["the fox", prompt], GOOD)
    assert serving.engine.scheduler.num_waiting == waiting, "nothing of a refused call is queued"


BAD_SETTINGS: list[dict[str, Any]] = [
    {"temperature": math.nan},
    {"temperature": -1},
    {"temperature": math.inf},
    {"max_tokens": 0},
    {"max_tokens": -5},
    {"max_tokens": 10**18},
    {"min_tokens": 9, "max_tokens": 8},
    {"top_p": 0},
    {"top_p": math.nan},
    {"top_k": -3},
    {"logprobs": 10**9},
    {"logprobs": -1},
    {"seed": -1},
    {"seed": 1 << 64},
    {"stop": [""]},
    {"stop_token_ids": [-1]},
]


@pytest.mark.parametrize("bad", BAD_SETTINGS, ids=str)
def test_bad_setting_is_refused(serving: LLM, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(bad)).split("_")[0]):
        serving.generate(["the fox"], SamplingParams(**bad))


def test_settings_that_do_not_fit_the_model_are_refused(serving: LLM) -> None:
    with pytest.raises(PromptTooLong, match="lower max_tokens"):
        serving.generate(["the fox"], SamplingParams(max_tokens=512))
    with pytest.raises(InvalidRequest, match="token id 320"):
        serving.generate(["the fox"], SamplingParams(stop_token_ids=[VOCAB_SIZE]))


@pytest.mark.parametrize("params", [{"max_tokens": 3}, "greedy", 5, object(), [None], [GOOD, {"a": 1}]])
def test_params_of_wrong_type_are_refused(serving: LLM, params: Any) -> None:
    prompts = ["the fox"] * (len(params) if isinstance(params, list) else 1)
    with pytest.raises(InvalidRequest):
        serving.generate(prompts, params)


def test_wrong_number_of_params_is_refused(serving: LLM) -> None:
    with pytest.raises(InvalidRequest, match="2 prompts but 3 settings"):
        serving.generate(["a", "b"], [GOOD] * 3)
    with pytest.raises(InvalidRequest, match="2 prompts but 0 settings"):
        serving.generate(["a", "b"], [])


@pytest.mark.parametrize("prompts", [5, None, 1.5, True, object(), b"the fox", {"prompt": "a"}])
def test_prompts_of_wrong_type_are_refused(serving: LLM, prompts: Any) -> None:
    with pytest.raises(InvalidRequest, match="prompt"):
        serving.generate(prompts, GOOD)


def test_min_tokens_with_many_stop_ids_samples_other_tokens(llm: LLM) -> None:
    """Stop ids are forbidden before min_tokens; the other tokens remain."""
    params = SamplingParams(
        max_tokens=6, min_tokens=6, temperature=0, stop_token_ids=range(64), deterministic=True
    )
    (result,) = llm.generate(["the fox"], params)
    assert len(result.token_ids) == 6
    assert not set(result.token_ids) & {EOS, *range(64)}


@pytest.mark.parametrize("messages", [[], None, "hello", [{"role": "user"}], [{"content": "x"}], [5], [{}]])
def test_bad_conversations_are_refused(serving: LLM, messages: Any) -> None:
    with pytest.raises((InvalidRequest, TemplateError)):
        serving.chat(messages, GOOD)


# Models


@pytest.fixture
def folder(tiny_llama: Path, tmp_path: Path) -> Path:
    """A copy to corrupt."""
    return shutil.copytree(tiny_llama, tmp_path / "model")


def start(model: Path, **config: Any) -> LLM:
    return LLM(str(model), **{"dtype": "fp32", "max_pass_tokens": 64, "max_num_seqs": 4, **config})


def edit(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def cut(path: Path, keep: float) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * keep)])


class Bomb:
    """A pickle that runs code when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise SystemExit('the pickle ran')",)


SPOILED: dict[str, tuple[Callable[[Path], object], type[HoldfastError]]] = {
    "no weights": (lambda f: (f / "model.safetensors").unlink(), ModelError),
    "empty weights": (lambda f: cut(f / "model.safetensors", 0), BadWeights),
    "half the weights": (lambda f: cut(f / "model.safetensors", 0.5), BadWeights),
    "all but the last bytes": (lambda f: cut(f / "model.safetensors", 0.999), BadWeights),
    "a pickle": (lambda f: (f / "model.safetensors").write_bytes(pickle.dumps(Bomb())), BadWeights),
    "a torch pickle": (lambda f: torch.save({"a": torch.ones(2)}, f / "model.safetensors"), BadWeights),
    "only a pickle": (
        lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
        ModelError,
    ),
    "no config": (lambda f: (f / "config.json").unlink(), ModelError),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), ModelError),
    "config is a list": (lambda f: (f / "config.json").write_text("[]"), ModelError),
    "another architecture": (lambda f: edit(f, model_type="gpt2", architectures=["GPT2"]), UnsupportedModel),
    "huge hidden size": (lambda f: edit(f, hidden_size=10**12), UnsupportedModel),
    "huge layer count": (lambda f: edit(f, num_hidden_layers=10**9), UnsupportedModel),
    "huge vocabulary": (lambda f: edit(f, vocab_size=10**15), UnsupportedModel),
    "huge context": (lambda f: edit(f, max_position_embeddings=10**15), UnsupportedModel),
    "no heads": (lambda f: edit(f, num_attention_heads=0), UnsupportedModel),
    "negative layers": (lambda f: edit(f, num_hidden_layers=-1), UnsupportedModel),
    "NaN epsilon": (lambda f: edit(f, rms_norm_eps=math.nan), UnsupportedModel),
    "sizes that are not the weights'": (lambda f: edit(f, intermediate_size=161), BadWeights),
    "more layers than weights": (lambda f: edit(f, num_hidden_layers=3), BadWeights),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), ModelError),
    "tokenizer is no JSON": (lambda f: (f / "tokenizer.json").write_text("{"), ModelError),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILED)
def test_corrupt_model_folder_is_refused(folder: Path, name: str) -> None:
    spoil, kind = SPOILED[name]
    spoil(folder)
    with pytest.raises(kind) as caught:
        start(folder)
    assert isinstance(caught.value, ModelError)
    assert 10 < len(str(caught.value)) < 600


def test_corrupt_model_does_not_disturb_a_running_engine(serving: LLM, folder: Path) -> None:
    cut(folder / "model.safetensors", 0.5)
    with pytest.raises(BadWeights):
        start(folder)


@pytest.mark.parametrize("keep", [0.0, 0.01, 0.5, 0.999])
def test_truncated_gguf_is_refused(tmp_path: Path, keep: float) -> None:
    path = tiny_gguf(tmp_path / "model.gguf", quant="Q8_0")
    cut(path, keep)
    with pytest.raises(ModelError):
        start(path)


def test_pickle_named_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ModelError):
        start(path)


def test_missing_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        start(tmp_path / "nowhere")


# Templates


TEMPLATES = {
    "endless": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "enormous": "{% for a in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
    "memory": "{{ 'x' * 10**12 }}",
    "escape": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "broken": "{% for a in %}",
    "raises": "{{ raise_exception('no') }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_hostile_template_is_stopped_and_plain_prompts_go_on(folder: Path, name: str) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": TEMPLATES[name]}))
    llm = start(folder)
    started = time.monotonic()
    with pytest.raises(TemplateError):
        llm.chat(HELLO, GOOD)
    assert time.monotonic() - started < 30
    assert len(llm.generate(["the fox"], GOOD)[0].token_ids) == 8


# Settings of the engine


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"device": "tpu"}, "device"),
        ({"dtype": "int3"}, "dtype"),
        ({"determinism": "maybe"}, "determinism"),
        ({"kernels": "magic"}, "kernels"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"max_num_seqs": 10**9}, "max_num_seqs"),
        ({"max_num_seqs": True}, "max_num_seqs"),
        ({"max_pass_tokens": -1}, "max_pass_tokens"),
        ({"max_pass_tokens": 10**9}, "max_pass_tokens"),
        ({"max_model_len": 0}, "max_model_len"),
        ({"num_threads": 0}, "num_threads"),
        ({"kv_memory": "lots"}, "kv_memory"),
        ({"kv_memory": 0}, "kv_memory"),
        ({"kv_memory": -1}, "kv_memory"),
        ({"kv_memory": "9" * 40 + "GB"}, "kv_memory"),
        ({"kv_memory": 1.5}, "kv_memory"),
    ],
    ids=str,
)
def test_bad_engine_settings_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_model_len": 513}, "the model's context is 512"),
        ({"max_pass_tokens": 3}, "max_pass_tokens must be at least"),
        ({"max_num_seqs": 65}, "so that every running request"),
        ({"kv_memory": 100}, "does not hold one page"),
    ],
    ids=str,
)
def test_engine_settings_that_do_not_fit_the_model_are_refused(
    tiny_llama: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        start(tiny_llama, **config)


def test_request_larger_than_the_kv_budget_is_refused(tiny_llama: Path) -> None:
    """Six pages: a request that fits is served, one that never could is refused at once."""
    page = 2 * 2 * 2 * 16 * 16 * 4  # layers, keys and values, kv heads, head_dim, positions, bytes
    llm = start(tiny_llama, kv_memory=6 * page)
    assert llm.engine.scheduler.pool.num_pages == 6
    with pytest.raises(PromptTooLong, match=r"need 97 KV positions, the KV budget holds 96.*raise kv_memory"):
        llm.generate([[5] * 3, [5] * 89], GOOD)
    results = llm.generate([[5] * 88, [6] * 88, [7] * 3], GOOD)
    assert [len(result.token_ids) for result in results] == [8, 8, 8]
    llm.engine.check()
    assert llm.engine.scheduler.pool.num_held == 0


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1, 1),
        ("1", 1),
        ("2k", 2000),
        ("2KiB", 2048),
        ("1.5GB", 1_500_000_000),
        (" 3 MiB ", 3 << 20),
        ("7b", 7),
    ],
)
def test_parse_bytes(text: int | str, size: int) -> None:
    assert parse_bytes(text) == size
