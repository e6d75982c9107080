"""Bad input to a running engine: it is refused, and no other request changes or loses pages.

Each bad value is tested where it is refused: settings in `core/test_sampling_params`, prompts in
`test_input_processor`, engine settings in `test_engine_config`, conversations and templates in
`text/test_chat_template`, model files in `models` and `text/test_tokenizer`.
"""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast import SamplingParams
from holdfast.engine.llm.llm import LLM
from holdfast.errors import (
    BadWeights,
    ConfigError,
    InvalidRequest,
    PromptTooLong,
    TemplateError,
)
from support.tiny import VOCAB_SIZE

GOOD = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, deterministic=True, logprobs=1)
HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture
def serving(llm: LLM) -> Iterator[LLM]:
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


def test_refused_call_queues_nothing_and_holds_no_pages(serving: LLM) -> None:
    """Not even for the good prompt of the same call."""
    scheduler = serving.engine.scheduler
    before = scheduler.num_waiting, scheduler.pool.num_held
    with pytest.raises(InvalidRequest):
        serving.generate(["the fox", [VOCAB_SIZE]], GOOD)
    assert (scheduler.num_waiting, scheduler.pool.num_held) == before


BAD_PROMPTS: list[tuple[Any, str]] = [
    (5, "not int"),
    (b"the fox", "not bytes"),
    (iter(["the fox"]), "not list_iterator"),
    ([5, "the fox"], "'the fox' is not a token id"),
    (["the fox", 5], r"prompts\[1\]: a prompt is text, .*, not int"),
    (["the fox", np.array([5])], r"prompts\[1\]: .* not ndarray; call tolist"),
    (np.array([5, 6]), r"not ndarray; call tolist"),
    (["the fox", [5.0]], "5.0 is not a token id"),
    (["the fox", {}], r"prompts\[1\]: a prompt needs the key prompt or prompt_token_ids"),
    ({"prompt": "the fox", "multi_modal_data": {}}, "'multi_modal_data' is not supported"),
    ({"prompt": 5}, "prompt must be text, not int"),
    ({"prompt_token_ids": "the fox"}, "prompt_token_ids must be a list of token ids, not str"),
]


@pytest.mark.parametrize(("prompts", "message"), BAD_PROMPTS, ids=range(len(BAD_PROMPTS)))
def test_wrong_prompts_are_refused_and_nothing_is_queued(auto_llm: LLM, prompts: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        auto_llm.generate(prompts, GOOD)
    assert not auto_llm.engine.has_work


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"params": GOOD, "sampling_params": GOOD}, "are the same setting; give one of them"),
        ({"sampling_params": 5}, "sampling_params must be SamplingParams or a list of them, not int"),
        ({"sampling_params": [GOOD] * 3}, "2 prompts but 3 settings"),
        ({"params": [GOOD, {"a": 1}]}, "params must be SamplingParams, not dict"),
        ({"use_tqdm": "yes"}, "use_tqdm must be"),
    ],
)
def test_wrong_arguments_are_refused_and_nothing_is_queued(
    auto_llm: LLM, arguments: Any, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        auto_llm.generate(["the fox", "the dog"], **arguments)
    assert not auto_llm.engine.has_work


@pytest.mark.parametrize(
    ("messages", "options", "message"),
    [
        ("hello", {}, "messages must be a conversation"),
        ([HELLO, HELLO[0]], {}, "both messages and conversations"),
        ([HELLO, [{"role": "user"}]], {}, "content must be"),
        (HELLO, {"tools": [{"type": "function"}]}, "chat template does not take tools"),
        (HELLO, {"chat_template_kwargs": 5}, "chat_template_kwargs must map names to values"),
        (HELLO, {"continue_final_message": True, "add_generation_prompt": True}, "set one of them"),
    ],
)
def test_wrong_chats_are_refused_and_nothing_is_queued(
    auto_llm: LLM, messages: Any, options: Any, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        auto_llm.chat(messages, GOOD, **options)
    assert not auto_llm.engine.has_work


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": -0.0},
        {"temperature": 5e-324},
        {"seed": (1 << 64) - 1},
        {"logit_bias": dict.fromkeys(range(VOCAB_SIZE), -100.0)},
        {"allowed_token_ids": [VOCAB_SIZE - 1]},
        {"stop": "\0"},
    ],
    ids=str,
)
def test_extreme_settings_are_served(llm: LLM, params: dict[str, Any]) -> None:
    (result,) = llm.generate(["a\0b \U0001f600"], SamplingParams(max_tokens=4, logprobs=20, **params))
    assert result.token_ids and result.error is None
    assert all(math.isfinite(one.logprob) for one in result.logprobs or ())


# Models


@pytest.fixture
def folder(tiny_llama: Path, tmp_path: Path) -> Path:
    """A copy to corrupt."""
    return shutil.copytree(tiny_llama, tmp_path / "model")


def start(model: Path, **config: Any) -> LLM:
    return LLM(str(model), **{"dtype": "fp32", "max_pass_tokens": 64, "max_num_seqs": 4, **config})


def truncate(path: Path, keep: float) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * keep)])


def test_corrupt_model_does_not_disturb_a_running_engine(serving: LLM, folder: Path) -> None:
    truncate(folder / "model.safetensors", 0.5)
    with pytest.raises(BadWeights):
        start(folder)


def test_bad_template_fails_and_plain_prompts_are_served(folder: Path) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": "{% for a in %}"}))
    llm = start(folder)
    with pytest.raises(TemplateError):
        llm.chat(HELLO, GOOD)
    assert len(llm.generate(["the fox"], GOOD)[0].token_ids) == 8


# Settings of the engine


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"max_model_len": 513}, "the model's context is 512"),
        ({"max_pass_tokens": 3}, "max_pass_tokens must be at least"),
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
