"""Bad input to a running engine: it is refused, and no other request changes or loses pages.

Each bad value is tested where it is refused: settings in `core/test_sampling_params`, prompts in
`test_input_processor`, engine settings in `test_engine_config`, conversations and templates in
`text/test_chat_template`, model files in `models` and `text/test_tokenizer`.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast import SamplingParams
from holdfast.engine.llm.llm import LLM
from holdfast.errors import (
    ConfigError,
    InvalidRequest,
    TemplateError,
)
from support.stepping import finish
from support.tiny import VOCAB_SIZE

GOOD = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True, deterministic=True, logprobs=1)
HELLO = [{"role": "user", "content": "hello"}]


def test_refused_call_queues_nothing_and_changes_no_running_request(llm: LLM) -> None:
    """Not even the good prompt of the same call is queued."""
    (expected,) = llm.generate(["the fox"], GOOD)
    engine, scheduler = llm.engine, llm.engine.scheduler
    request = engine.prepare("the fox", GOOD)
    engine.submit(request)
    engine.step()
    before = scheduler.num_waiting, scheduler.pool.num_held
    with pytest.raises(InvalidRequest):
        llm.generate(["the fox", [VOCAB_SIZE]], GOOD)
    assert (scheduler.num_waiting, scheduler.pool.num_held) == before
    result = finish(engine)[request.request_id]
    assert (result.token_ids, result.logprobs) == (expected.token_ids, expected.logprobs)


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


# Models


def start(model: Path, **config: Any) -> LLM:
    return LLM(str(model), **{"dtype": "fp32", "max_pass_tokens": 64, "max_num_seqs": 4, **config})


def test_bad_template_fails_and_plain_prompts_are_served(tiny_llama: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_llama, tmp_path / "model")
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
