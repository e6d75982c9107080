"""Reads the file of `--shared-prompts`: prompts whose cached pages all tenants share.

The file is a JSON list. An entry is a text, as the prompt of a completion, or an object with the
fields of `POST /tokenize`: `prompt`, or `messages`, `tools` and `chat_template_kwargs`. A
conversation that ends with a system message is shared up to where the first user's words begin.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from holdfast.errors import ConfigError, HoldfastError
from holdfast.server.api.chat_prompt import ChatPrompts
from holdfast.server.api.schema.requests import TokenizeRequest
from holdfast.server.cache_isolation import SharedPrompts, common_len
from holdfast.server.errors import ApiError
from holdfast.server.prompts import Prompts

_MAX_BYTES = 64 << 20
_SYSTEM = ("system", "developer")


def read_shared_prompts(path: str | None, prompts: Prompts) -> SharedPrompts:
    """The prompts of a file; none without a file. `ConfigError` says which one is wrong, and how."""
    if path is None:
        return SharedPrompts()
    entries = _read_list(path)
    chat_prompts = ChatPrompts(prompts)
    found = []
    for index, entry in enumerate(entries):
        try:
            found.append(_encode(entry, prompts, chat_prompts))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ConfigError(f"{path}: prompt {index}: {where}: {first['msg']}") from None
        except (HoldfastError, ApiError) as error:
            raise ConfigError(f"{path}: prompt {index}: {error}") from None
    return SharedPrompts(found)


def _read_list(path: str) -> list[Any]:
    try:
        if Path(path).stat().st_size > _MAX_BYTES:
            raise ConfigError(f"{path} is larger than a file of shared prompts may be ({_MAX_BYTES} bytes)")
        entries = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"the shared prompts in {path} cannot be read as JSON: {error}") from None
    if not isinstance(entries, list):
        raise ConfigError(f"{path} must contain a JSON list of prompts, not {type(entries).__name__}")
    return entries


def _encode(entry: Any, prompts: Prompts, chat_prompts: ChatPrompts) -> Sequence[int]:
    body = TokenizeRequest.model_validate({"prompt": entry} if isinstance(entry, str) else entry)
    if isinstance(body.prompt, str):
        return prompts.tokenizer.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    messages = body.messages or []
    if not messages:
        raise ConfigError("a prompt is a text, or an object with prompt or messages")
    if messages[-1].role not in _SYSTEM:
        return chat_prompts.tokenize(body.model_copy(update={"add_generation_prompt": False}))
    kind = type(messages[0])
    one, other = (
        chat_prompts.tokenize(
            body.model_copy(update={"messages": [*messages, kind(role="user", content=content)]})
        )
        for content in ("A", "1")
    )
    return one[: common_len(one, other)]
