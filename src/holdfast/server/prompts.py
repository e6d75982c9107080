"""From what a client sends to token ids, beside the event loop: whatever can take long runs in a few threads (`apart`).

What cannot fit the context, however well it is tokenised, is refused before it is looked at: a token has so many bytes and no
more.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from holdfast.errors import PromptTooLong
from holdfast.text.chat_template import ChatTemplate
from holdfast.text.tokenizer import Tokenizer

_THREADS = 2
_BESIDES = 1 << 20  # characters a template may be shown besides what it writes
T = TypeVar("T")


class Prompts:
    """Reads prompts for one model. max_model_len is known once the engine is."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.template = ChatTemplate.of(tokenizer)
        self.max_model_len: int | None = None
        self._longest_token: int | None = None
        self._pool = ThreadPoolExecutor(_THREADS, "holdfast-prompts")

    async def warm(self) -> None:
        """Do now what the first prompt would have to wait for."""
        self.template.warm()
        await self.apart(self._bytes_a_token)

    async def apart(self, work: Callable[[], T]) -> T:
        """Do it in a thread of ours. Who waits for it holds nobody up."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self.template.close()

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """The ids of a text."""
        return await self.apart(lambda: self._encode(text, add_special_tokens))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        variables: Mapping[str, Any],
    ) -> list[int]:
        """The ids of a conversation; takes its time, so it is called `apart`. The template writes its own special tokens."""
        self._require_fit(len(json.dumps([messages, tools, variables])) - _BESIDES)
        text = self.template.render(
            messages, tools=tools, add_generation_prompt=add_generation_prompt, variables=variables
        )
        return self._encode(text, add_special_tokens=False)

    async def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of ids."""
        return await self.apart(lambda: self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def token_text(self, token_id: int) -> str:
        """One token, as well as it can be shown by itself."""
        return self.tokenizer.token_bytes(token_id).decode("utf-8", "replace")

    def require_room(self, num_tokens: int) -> None:
        """Refuse ids that cannot fit, before anybody looks at them one by one."""
        longest = self.max_model_len
        if longest is not None and num_tokens > longest:
            raise PromptTooLong(
                f"the prompt has {num_tokens} tokens, more than the context of {longest}; shorten it"
            )

    def _require_fit(self, num_chars: int) -> None:
        longest = self.max_model_len
        if longest is not None and num_chars > longest * self._bytes_a_token():
            raise PromptTooLong(
                f"the prompt has {num_chars} characters, which cannot fit the context of {longest} tokens; shorten it"
            )

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        self._require_fit(len(text))
        return self.tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def _bytes_a_token(self) -> int:
        if self._longest_token is None:
            lengths = (len(self.tokenizer.token_bytes(id_)) for id_ in range(self.tokenizer.vocab_size))
            self._longest_token = max(lengths, default=1) or 1
        return self._longest_token
