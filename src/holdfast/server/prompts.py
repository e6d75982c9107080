"""Renders and tokenises prompts, in bounded threads and fairly between clients (`WorkQueue`).

Text that cannot fit the context is refused before it is tokenised (`text.token_bounds`). Longer texts
are tokenised in slices: tokenising ends when the context is full, or when the client leaves.
"""

import json
import os
from collections.abc import Callable, Sequence
from typing import TypeVar

from holdfast.core.cancel_token import CancelToken
from holdfast.errors import PromptTooLong
from holdfast.server.reasoning.chat_format import ChatFormat, choose_chat_format
from holdfast.server.tenants.work_queue import Work, WorkQueue
from holdfast.text.chat_content import TemplateInput, render_conversation
from holdfast.text.chat_template import ChatTemplate
from holdfast.text.special_tokens import Span
from holdfast.text.token_bounds import SLICE_CHARS
from holdfast.text.tokenizer import Tokenizer

_INLINE_CHARS = 512
_MAX_UNWRITTEN = 1 << 20  # characters a template may read without writing them to the prompt
_SECONDS_PER_BYTE = 1e-6  # tokenising, roughly
_BASE_SECONDS = 0.001

T = TypeVar("T")


class PromptReader:
    """Renders and tokenises prompts. max_model_len is set once the engine is ready."""

    def __init__(self, tokenizer: Tokenizer, chat_format: ChatFormat | None = None) -> None:
        self.tokenizer = tokenizer
        self.chat_format = chat_format or choose_chat_format(tokenizer)
        self.template = ChatTemplate.of(tokenizer)
        self.max_model_len: int | None = None
        self._longest_token: int | None = None
        workers = max(2, (os.cpu_count() or 1) // 2)
        self._work = WorkQueue("holdfast-work", workers=workers, max_per_client=workers // 2)

    async def warm_up(self) -> None:
        """Do now what the first prompt would wait for."""
        self.template.warm()
        await self.run("", lambda token: self._warm_up(), size=1 << 20)

    def _warm_up(self) -> None:
        self._max_token_bytes()
        self.tokenizer.bounds.min_tokens("", 0)
        self.tokenizer.digest()
        if not self.tokenizer.controls_in_content:
            self.tokenizer.control_tokens.warm()

    def close(self) -> None:
        self._work.close()
        self.template.close()

    async def run(self, client: str, work: Work[T], *, size: int) -> T:
        """Do work in the client's turn. If this task is cancelled, so is the work. size: of its input, in bytes
        or characters."""
        return await self._work.run(client, work, cost=_BASE_SECONDS + size * _SECONDS_PER_BYTE)

    async def encode(
        self, text: str, *, client: str, add_special_tokens: bool = True, whole: bool = False
    ) -> list[int]:
        """Tokenise a text of this client. Refuses more tokens than the context has, unless `whole`.

        A short text is tokenised at once, if no pattern can backtrack: a thread would cost more.
        """
        if len(text) <= _INLINE_CHARS and self.tokenizer.bounds.can_slice:
            return self.tokenize(text, CancelToken(), add_special_tokens=add_special_tokens, whole=whole)
        return await self.run(
            client,
            lambda token: self.tokenize(text, token, add_special_tokens=add_special_tokens, whole=whole),
            size=len(text),
        )

    def tokenize(
        self,
        text: str,
        token: CancelToken,
        *,
        add_special_tokens: bool = True,
        content: Sequence[Span] = (),
        whole: bool = False,
    ) -> list[int]:
        """See `encode`. Slow: call it in a thread. content: see `Tokenizer.encode`."""
        self._require_fit(len(text))
        longest = None if whole else self.max_model_len
        if longest is not None and len(text) > longest:
            at_least = self.tokenizer.bounds.min_tokens(text, longest, token)
            if at_least > longest:
                self.require_room(at_least, "at least ")
        if content:
            return self.tokenizer.encode(text, add_special_tokens=add_special_tokens, content=content)
        ids = self.tokenizer.encode_slices(
            text, add_special_tokens=add_special_tokens, max_tokens=longest, token=token
        )
        if longest is not None and len(text) > SLICE_CHARS:
            self.require_room(len(ids), "at least ")
        return ids

    def render(
        self,
        conversation: TemplateInput,
        render: Callable[[TemplateInput], str],
        token: CancelToken,
        *,
        whole: bool = False,
    ) -> list[int]:
        """Render and tokenise a conversation. `render` makes one text of it, in the template's words.

        Slow: call it in a thread. The template writes its own special tokens; those in the
        conversation stay text (`text.chat_content`).
        """
        parts = [conversation.messages, conversation.tools, conversation.variables]
        self._require_fit(len(json.dumps(parts)) - _MAX_UNWRITTEN)
        prompt = render_conversation(conversation, render, self.tokenizer)
        return self.tokenize(
            prompt.text, token, add_special_tokens=False, content=prompt.content, whole=whole
        )

    def token_text(self, token_id: int) -> str:
        """One token as text; bytes that are not UTF-8 become U+FFFD."""
        return self.tokenizer.token_bytes(token_id).decode("utf-8", "replace")

    def require_room(self, num_tokens: int, about: str = "") -> None:
        """Refuse ids that cannot fit, before they are checked one by one."""
        longest = self.max_model_len
        if longest is not None and num_tokens > longest:
            raise PromptTooLong(
                f"the prompt has {about}{num_tokens} tokens, more than the context of {longest}; shorten it"
            )

    def _require_fit(self, num_chars: int) -> None:
        longest = self.max_model_len
        if longest is not None and num_chars > longest * self._max_token_bytes():
            raise PromptTooLong(
                f"the prompt has {num_chars} characters, which cannot fit the context of {longest} tokens; shorten it"
            )

    def _max_token_bytes(self) -> int:
        if self._longest_token is None:
            lengths = (len(self.tokenizer.token_bytes(id_)) for id_ in range(self.tokenizer.vocab_size))
            self._longest_token = max(lengths, default=1) or 1
        return self._longest_token
