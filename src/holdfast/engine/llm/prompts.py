"""Prompts as a Python caller writes them, and as the engine takes them.

"text"                                      tokenised, without a chat template
[1, 2, 3]                                   token ids
{"prompt": "text"}                          as vLLM's TextPrompt
{"prompt_token_ids": [1, 2, 3]}             as vLLM's TokensPrompt; "prompt" may name their text
[{"role": "user", "content": "text"}]       a conversation, for `chat`
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from holdfast.core.sampling_params import SamplingParams, show
from holdfast.engine.input_processor import Prompt
from holdfast.engine.llm.chat_tokenizer import ChatTokenizer
from holdfast.errors import InvalidRequest
from holdfast.text.chat_content import check_messages

Messages = Sequence[Mapping[str, Any]]


class TextPrompt(TypedDict):
    """A prompt as text."""

    prompt: str


class TokensPrompt(TypedDict):
    """A prompt as token ids. prompt is their text, for `Result.prompt`."""

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str | None]


class ChatOptions(TypedDict, total=False):
    """How a conversation becomes a prompt. `LLM.chat` explains each."""

    tools: Sequence[Mapping[str, Any]] | None
    add_generation_prompt: bool | None
    continue_final_message: bool
    chat_template_kwargs: Mapping[str, Any] | None


PromptInput = str | Sequence[int] | TextPrompt | TokensPrompt

_KEYS = ("prompt", "prompt_token_ids")


@dataclass(frozen=True)
class ReadPrompt:
    """A prompt for the engine, and its text where it is known."""

    prompt: Prompt
    text: str | None


def read_prompts(prompts: object) -> list[ReadPrompt]:
    """One prompt or a list of them. `InvalidRequest` says which of them is wrong, and how."""
    if isinstance(prompts, str | Mapping) or _is_token_ids(prompts):
        return [read_prompt(prompts)]
    if isinstance(prompts, bytes | bytearray) or not isinstance(prompts, Sequence):
        raise InvalidRequest(
            f"prompts must be a prompt or a list of prompts, not {type(prompts).__name__}{_array_hint(prompts)}; "
            f"{_EXPECTED}"
        )
    return [read_prompt(each, f"prompts[{number}]: ") for number, each in enumerate(prompts)]


_EXPECTED = 'a prompt is text, a list of token ids, {"prompt": text} or {"prompt_token_ids": ids}'


def read_prompt(prompt: object, where: str = "") -> ReadPrompt:
    """One prompt, in any of its forms. Token ids are checked by the engine."""
    if isinstance(prompt, str):
        return ReadPrompt(prompt, prompt)
    if isinstance(prompt, Mapping):
        return _read_mapping(prompt, where)
    if isinstance(prompt, Sequence) and not isinstance(prompt, bytes | bytearray):
        return ReadPrompt(prompt, None)
    raise InvalidRequest(f"{where}{_EXPECTED}, not {type(prompt).__name__}{_array_hint(prompt)}")


def _array_hint(value: object) -> str:
    return "; call tolist() on an array" if hasattr(value, "tolist") else ""


def _read_mapping(prompt: Mapping[Any, Any], where: str) -> ReadPrompt:
    unknown = [key for key in prompt if key not in _KEYS]
    if unknown:
        raise InvalidRequest(
            f"{where}a prompt has the keys prompt and prompt_token_ids; {show(unknown[0])} is not supported"
        )
    text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if not isinstance(text, str | None):
        raise InvalidRequest(f"{where}prompt must be text, not {type(text).__name__}")
    if ids is not None:
        if isinstance(ids, str | Mapping):
            raise InvalidRequest(
                f"{where}prompt_token_ids must be a list of token ids, not {type(ids).__name__}"
            )
        return ReadPrompt(read_prompt(ids, where).prompt, text)
    if text is None:
        raise InvalidRequest(f"{where}a prompt needs the key prompt or prompt_token_ids")
    return ReadPrompt(text, text)


def _is_token_ids(prompts: object) -> bool:
    """Return whether this is one prompt of token ids. An empty list is no prompt at all."""
    if isinstance(prompts, str | bytes | bytearray) or not isinstance(prompts, Sequence) or not prompts:
        return False
    return isinstance(prompts[0], int) and not isinstance(prompts[0], bool)


def params_for_each(
    num_prompts: int,
    params: SamplingParams | Sequence[SamplingParams] | None,
    sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
) -> list[SamplingParams]:
    """Return the settings of each prompt: its own, or those for all. Both arguments are the same setting;
    without any there are the defaults."""
    if params is not None and sampling_params is not None:
        raise InvalidRequest("params and sampling_params are the same setting; give one of them")
    given = sampling_params if params is None else params
    if given is None or isinstance(given, SamplingParams):
        return [given or SamplingParams()] * num_prompts
    if isinstance(given, str | bytes | bytearray) or not isinstance(given, Sequence):
        raise InvalidRequest(
            f"sampling_params must be SamplingParams or a list of them, not {type(given).__name__}"
        )
    if len(given) != num_prompts:
        raise InvalidRequest(
            f"{num_prompts} prompts but {len(given)} settings; give one each, or one for all"
        )
    return list(given)


def is_batch(messages: object) -> bool:
    """Return whether these are several conversations. `InvalidRequest` if they are neither one nor several."""
    if isinstance(messages, str | bytes | bytearray | Mapping) or not isinstance(messages, Sequence):
        raise InvalidRequest(
            "messages must be a conversation (a list of messages) or a list of conversations"
        )
    several = [isinstance(each, Sequence) and not isinstance(each, str | bytes) for each in messages]
    if any(several) and not all(several):
        raise InvalidRequest(
            "messages holds both messages and conversations; give one conversation or a list of conversations"
        )
    return any(several)


def chat_prompt(
    tokenizer: ChatTokenizer,
    messages: object,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool = False,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> ReadPrompt:
    """Return a conversation through the model's chat template. The template writes its special tokens."""
    if not isinstance(chat_template_kwargs, Mapping | None):
        raise InvalidRequest(
            f"chat_template_kwargs must map names to values, not {type(chat_template_kwargs).__name__}"
        )
    starts_answer = not continue_final_message if add_generation_prompt is None else add_generation_prompt
    rendered = tokenizer.render(
        check_messages(messages),
        tools=tools,
        add_generation_prompt=starts_answer,
        continue_final_message=continue_final_message,
        variables=chat_template_kwargs or {},
    )
    return ReadPrompt(tokenizer.encode_rendered(rendered), rendered.text)
