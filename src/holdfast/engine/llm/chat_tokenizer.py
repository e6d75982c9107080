"""The model's tokenizer and chat template, with the methods that users of transformers expect."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from holdfast.core.logprobs import TokenTexts
from holdfast.errors import InvalidRequest
from holdfast.text.chat_content import PromptText, TemplateInput, render_conversation
from holdfast.text.chat_template import ChatTemplate, supports_tools
from holdfast.text.tokenizer import Tokenizer


class ChatTokenizer:
    """What `LLM.get_tokenizer` returns. Any thread may use it.

    It has the common part of a transformers tokenizer, with the same defaults. Chat templates run
    in a process of their own; `strftime_now` gives them a fixed date.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._template = ChatTemplate.of(tokenizer)
        self._token_texts = TokenTexts(lambda id_: tokenizer.token_bytes(id_).decode("utf-8", "replace"))

    def warm(self) -> None:
        """Start the process of the chat template without waiting for it. Optional."""
        self._template.warm()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text.

        add_special_tokens: add what the model expects around a text, such as a BOS token. Turn it
        off for a rendered chat template, which has its special tokens already.
        """
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def decode(self, token_ids: int | Iterable[int], *, skip_special_tokens: bool = False) -> str:
        """Return the text of token ids, or of one id.

        skip_special_tokens: leave out tokens such as the end of text. Invalid UTF-8 becomes U+FFFD.
        """
        ids = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        return self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def batch_decode(
        self, sequences: Iterable[Iterable[int]], *, skip_special_tokens: bool = False
    ) -> list[str]:
        """`decode` for each of several lists of ids."""
        return [self.decode(each, skip_special_tokens=skip_special_tokens) for each in sequences]

    def __call__(
        self, text: str | Sequence[str], *, add_special_tokens: bool = True
    ) -> dict[str, list[int] | list[list[int]]]:
        """`{"input_ids": ids}` of a text, or of each of several texts."""
        if isinstance(text, str):
            return {"input_ids": self.encode(text, add_special_tokens=add_special_tokens)}
        return {"input_ids": [self.encode(each, add_special_tokens=add_special_tokens) for each in text]}

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **variables: Any,
    ) -> Any:
        """Return a conversation as the prompt's token ids, or as its text with tokenize=False.

        conversation: messages with a role and a content, or a list of such conversations; then the
            result is a list, too.
        tools: functions the model may call, in OpenAI's form.
        add_generation_prompt: end with the start of the assistant's answer.
        continue_final_message: end where the last message ends, so that the answer continues it.
        variables: further variables of the template, such as enable_thinking.
        """
        options = {
            "tools": tools,
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "variables": variables,
        }
        if conversation and all(isinstance(each, Sequence) for each in conversation):
            return [self._apply(each, tokenize, **options) for each in conversation]
        return self._apply(conversation, tokenize, **options)

    def _apply(self, messages: Any, tokenize: bool, **options: Any) -> str | list[int]:
        prompt = self.render(messages, **options)
        return self.encode_rendered(prompt) if tokenize else prompt.text

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> PromptText:
        """Return the text of one conversation's prompt. Raises `InvalidRequest` or `TemplateError`."""
        if tools and not self._supports_tools:
            raise InvalidRequest(
                "this model's chat template does not take tools; leave tools out and describe them in a message"
            )

        def render(conversation: TemplateInput) -> str:
            return self._template.render(
                conversation.messages,
                tools=conversation.tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                variables=conversation.variables or {},
            )

        return render_conversation(TemplateInput(messages, tools or None, variables), render, self._tokenizer)

    def encode_rendered(self, prompt: PromptText) -> list[int]:
        """Return the token ids of a rendered conversation. Special tokens in its contents stay text."""
        return self._tokenizer.encode(prompt.text, add_special_tokens=False, content=prompt.content)

    @property
    def _supports_tools(self) -> bool:
        source = self._tokenizer.chat_templates.get("tool_use", self._tokenizer.chat_template)
        return supports_tools(source or "")

    @property
    def token_texts(self) -> TokenTexts:
        """The text of each token, by id. Bytes that are not UTF-8 become U+FFFD."""
        return self._token_texts

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id. A model may have more logits than that."""
        return self._tokenizer.vocab_size

    def __len__(self) -> int:
        return self.vocab_size

    @property
    def eos_token(self) -> str | None:
        """The token that ends a text."""
        return self._tokenizer.special_tokens.get("eos_token")

    @property
    def eos_token_id(self) -> int | None:
        """The id of `eos_token`. `eos_token_ids` has every id that ends an answer."""
        known = self._id_of(self.eos_token)
        return min(self.eos_token_ids, default=None) if known is None else known

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Every id that ends an answer."""
        return self._tokenizer.eos_token_ids

    @property
    def bos_token(self) -> str | None:
        """The token that starts a text, if the model has one."""
        return self._tokenizer.special_tokens.get("bos_token")

    @property
    def bos_token_id(self) -> int | None:
        """The id of `bos_token`."""
        return self._tokenizer.bos_token_id

    @property
    def pad_token(self) -> str | None:
        """The token for padding, if the model names one. Holdfast pads nothing."""
        return self._tokenizer.special_tokens.get("pad_token")

    @property
    def pad_token_id(self) -> int | None:
        """The id of `pad_token`."""
        return self._id_of(self.pad_token)

    @property
    def all_special_ids(self) -> list[int]:
        """The ids that skip_special_tokens leaves out."""
        return sorted(self._tokenizer.special_ids)

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """The named special tokens: eos_token, bos_token and so on."""
        return dict(self._tokenizer.special_tokens)

    @property
    def chat_template(self) -> str | None:
        """The source of the model's chat template."""
        return self._tokenizer.chat_template

    def close(self) -> None:
        """End the process that renders chat templates. A later rendering starts it again."""
        self._template.close()

    def _id_of(self, token: str | None) -> int | None:
        ids = [] if token is None else self._tokenizer.encode(token, add_special_tokens=False)
        return ids[0] if len(ids) == 1 else None
